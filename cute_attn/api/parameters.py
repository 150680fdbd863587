"""The parameters of a variant, bound to values: what the argument blocks of its kernels hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cute_attn.api.step import AnyStep, Step
from cute_attn.variants import Variant
from cute_attn.variants.tensor import index_shape


class Parameters(dict[str, float | int]):
    """Fields of the argument block by name: scalars, addresses, strides and sizes of tensors, and
    addresses of tables of ranges.

    Attributes:
        scalars: values of the variant's scalars.
        tensors: its tensors by name.
        missing: a tensor that it has and that was not given, or None.
        tables: memory of the tables of ranges, or None.
    """

    def __init__(
        self,
        scalars: dict[str, float | int],
        tensors: dict[str, torch.Tensor] | None = None,
        missing: str | None = None,
    ) -> None:
        super().__init__(scalars)
        self.scalars, self.tensors, self.missing = scalars, tensors or {}, missing
        self.tables: torch.Tensor | None = None
        for name, x in self.tensors.items():
            self[name] = x.data_ptr()
            self.update({f"{name}_stride_{i}": x.stride(i) for i in range(x.dim() - 1)})
            self.update({f"{name}_size_{i}": size for i, size in enumerate(index_shape(x))})


def bind(
    variant: Variant,
    scalars: dict[str, float | int],
    tensors: Mapping[str, torch.Tensor] | None,
    device: torch.device,
    num_qo_heads: int,
    step: AnyStep,
) -> Parameters:
    """Checks a variant's parameters for one step.

    Args:
        variant: whose they are.
        scalars: checked values.
        tensors: by name. None: those that the variant captured; if it has others, they are missing.
        device: where they have to be.
        num_qo_heads: query heads.
        step: how far indices can reach.

    Raises:
        TypeError, ValueError: a tensor is unknown or missing, of a wrong dtype, shape or device.
        IndexError: a hook may read outside a tensor. Not looked at where lengths are on the device.
    """
    if not variant.tensors and not tensors:
        return Parameters(scalars)
    if tensors is None:
        missing = next((t.name for t in variant.tensors if t.captured is None), None)
        if missing is not None:
            return Parameters(scalars, missing=missing)
    found = variant.arrays(tensors)
    for name, x in found.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; it takes a torch.Tensor")
        if x.device != device:
            raise TypeError(f"{name} is on device {x.device}; it takes {device}")
        if x.stride(-1) != 1 and x.shape[-1] > 1:
            raise ValueError(f"{name} has strides {x.stride()}; the last one must be 1")
        if max(index_shape(x)) >= 1 << 31:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; it takes less than 2^31 indices of each"
                " dimension"
            )
    if isinstance(step, Step) and (leaves := _reach(step, num_qo_heads)) is not None:
        shapes = {name: index_shape(x) for name, x in found.items()}
        variant.check_indices(shapes, leaves, scalars)
    return Parameters(scalars, found)


def _reach(step: Step, num_qo_heads: int) -> dict[str, Any] | None:
    """What requests, heads and positions of a step are between; None if it has no scores."""
    q_len, kv_len = step.requests.q_len, step.requests.kv_len
    live = (q_len > 0) & (kv_len > 0)
    if not live.any():
        return None
    requests = np.flatnonzero(live)
    longest = float(kv_len[live].max())
    return {
        "b": (float(requests[0]), float(requests[-1])),
        "h": (0.0, num_qo_heads - 1.0),
        "q_idx": (float((kv_len - q_len)[live].min()), longest - 1),
        "kv_idx": (0.0, longest - 1),
    }
