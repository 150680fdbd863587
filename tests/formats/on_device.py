"""A stand-in for CUDA tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class OnDevice:
    """Stands for a CUDA tensor: knows its shape, type and device, and tells when it is copied."""

    def __init__(self, values: Any, dtype: str = "torch.int32", stride: int | None = None) -> None:
        self.values = np.array(values, np.int32)
        self.shape = self.values.shape
        self.dtype = dtype
        self.device = torch.device("cuda", 0)
        self.copies = 0
        self._stride = stride

    def stride(self, axis: int) -> int:
        if axis == 0 and self._stride is not None:
            return self._stride
        return self.values.strides[axis] // 4

    def cpu(self) -> Any:
        self.copies += 1
        return self.values

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a device array was read without being asked to")
