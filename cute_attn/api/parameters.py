"""The parameters of a variant, bound to values: what the argument blocks of its kernels hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cute_attn.api.step import AnyStep, Step
from cute_attn.variants import Variant


class Parameters(dict[str, float | int]):
    """Fields of the argument block by name: scalars, and addresses, strides and sizes of tensors.

    Attributes:
        scalars: values of the variant's scalars.
        tensors: its tensors by name.
        missing: a tensor that it has and that was not given, or None.
    """

    def __init__(
        self,
        scalars: dict[str, float | int],
        tensors: dict[str, torch.Tensor] | None = None,
        missing: str | None = None,
    ) -> None:
        super().__init__(scalars)
        self.scalars, self.tensors, self.missing = scalars, tensors or {}, missing
        for name, x in self.tensors.items():
            self[name] = x.data_ptr()
            self.update({f"{name}_stride_{i}": x.stride(i) for i in range(x.dim() - 1)})
            self.update({f"{name}_size_{i}": x.shape[i] for i in range(x.dim())})


def bind(
    variant: Variant,
    scalars: dict[str, float | int],
    tensors: Mapping[str, torch.Tensor] | None,
    device: torch.device,
    heads: tuple[int, int],
    head_dims: tuple[int, int],
    step: AnyStep,
) -> Parameters:
    """Checks a variant's parameters for one step.

    Args:
        variant: whose they are.
        scalars: checked values.
        tensors: by name. None: those that the variant captured; if it has others, they are missing.
        device: where they have to be.
        heads: query heads and KV heads.
        head_dims: elements of query and key rows, and of value rows.
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
        if max(x.shape) >= 1 << 31:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it takes less than 2^31 each")
    if isinstance(step, Step) and (leaves := _reach(step, heads, head_dims)) is not None:
        shapes = {name: tuple(x.shape) for name, x in found.items()}
        variant.check_indices(shapes, leaves, scalars)
    return Parameters(scalars, found)


def _reach(step: Step, heads: tuple[int, int], head_dims: tuple[int, int]) -> dict[str, Any] | None:
    """What requests, heads and positions of a step are between; None if it has no scores."""
    q_len, kv_len = step.requests.q_len, step.requests.kv_len
    live = (q_len > 0) & (kv_len > 0)
    if not live.any():
        return None
    requests = np.flatnonzero(live)
    longest = float(kv_len[live].max())
    return {
        "b": (float(requests[0]), float(requests[-1])),
        "h": (0.0, heads[0] - 1.0),
        "kv_head": (0.0, heads[1] - 1.0),
        "head_dim_qk": (float(head_dims[0]),) * 2,
        "head_dim_vo": (float(head_dims[1]),) * 2,
        "q_idx": (float((kv_len - q_len)[live].min()), longest - 1),
        "kv_idx": (0.0, longest - 1),
    }
