"""The parameters of a variant, bound to values: what the argument blocks of its kernels hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from cute_attn.api import checks
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import AnyStep, Step
from cute_attn.variants import Variant
from cute_attn.variants.evaluate import evaluate
from cute_attn.variants.expression import Expression
from cute_attn.variants.tensor import index_shape

_LOG2_E = math.log2(math.e)


class Parameters(dict[str, float | int]):
    """Fields of the argument block by name: scalars and what scores are scaled by, addresses,
    strides and sizes of tensors, and addresses of tables of ranges.

    Attributes:
        scalars: values of the variant's scalars.
        tensors: its tensors by name.
        missing: a tensor that it has and that was not given, or None.
        tables: memory of the tables of ranges, or None.
        softmax_scale: what query times key is multiplied with.
        v_scale: what values are multiplied with; None: kernels know no such factor.
    """

    def __init__(
        self,
        scalars: dict[str, float | int],
        tensors: dict[str, torch.Tensor] | None = None,
        missing: str | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
        softmax_scale: float = 1.0,
        v_scale: float | None = None,
    ) -> None:
        super().__init__(scalars, sm_scale=scales[0], scale_log2=scales[1])
        if v_scale is not None:
            self["e4m3_v_scale"] = v_scale
        self.scalars, self.tensors, self.missing = scalars, tensors or {}, missing
        self.softmax_scale, self.v_scale = softmax_scale, v_scale
        self.tables: torch.Tensor | None = None
        for name, x in self.tensors.items():
            self[name] = x.data_ptr()
            self.update({f"{name}_stride_{i}": x.stride(i) for i in range(x.dim() - 1)})
            self.update({f"{name}_size_{i}": size for i, size in enumerate(index_shape(x))})


def bind(
    shape: BatchShape,
    scalars: dict[str, float | int],
    tensors: Mapping[str, torch.Tensor] | None,
    step: AnyStep,
    sm_scale: float | None = None,
    v_scale: float | None = None,
) -> Parameters:
    """Checks the parameters of a variant for one step.

    Args:
        shape: of the calls, the variant among it.
        scalars: checked values.
        tensors: by name. None: those that the variant captured; if it has others, they are missing.
        step: how far indices can reach.
        sm_scale: another softmax scale than that of `shape`.
        v_scale: factor of e4m3 values; default 1.

    Raises:
        TypeError, ValueError: a tensor is unknown or missing, of a wrong dtype, shape or device.
        IndexError: a hook may read outside a tensor. Not looked at where lengths are on the device.
    """
    variant, device = shape.variant, shape.device
    scale = shape.sm_scale if sm_scale is None else sm_scale
    made = partial(
        Parameters,
        scalars,
        scales=scales_of(variant, scale, scalars),
        softmax_scale=scale,
        v_scale=(1.0 if v_scale is None else v_scale) if shape.is_fp8 else None,
    )
    if not variant.tensors and not tensors:
        return made()
    if tensors is None:
        missing = next((t.name for t in variant.tensors if t.captured is None), None)
        if missing is not None:
            return made(missing=missing)
    found = checks.from_dlpack(**variant.arrays(tensors))
    if torch.is_grad_enabled():
        checks.no_gradients(**found)
    for name, x in found.items():
        if x.device != device:
            raise TypeError(f"{name} is on device {x.device}; it takes {device}")
        if x.stride(-1) != 1 and x.shape[-1] > 1:
            raise ValueError(f"{name} has strides {x.stride()}; the last one must be 1")
        if max(index_shape(x)) >= 1 << 31:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; it takes less than 2^31 indices of each"
                " dimension"
            )
    if isinstance(step, Step):
        shapes = {name: index_shape(x) for name, x in found.items()}
        rows = step.requests.q_len > 0
        scores = _reach(step, rows & (step.requests.kv_len > 0), shape)
        finished = _reach(step, rows, shape)
        variant.check_indices(shapes, scores, scalars, finished)
    return made(tensors=found)


def scales_of(
    variant: Variant, sm_scale: float, scalars: dict[str, float | int]
) -> tuple[float, float]:
    """What kernels multiply scores with: ahead of the logits hook (`sm_scale`), and to base-2
    exponents, or without a softmax to weights (`scale_log2`)."""
    logits = variant.logits
    base = _LOG2_E if variant.softmax else 1.0
    if logits is None:
        return sm_scale, sm_scale * base
    if logits.program is None:
        return sm_scale, base

    def value(factor: Expression | None) -> float:
        return 1.0 if factor is None else float(evaluate(factor, scalars, np.float64))

    stages = logits.program.stages
    return sm_scale * value(stages.factor), base * value(stages.exponent)


def _reach(step: Step, live: Any, shape: BatchShape) -> dict[str, Any] | None:
    """What requests, heads, positions and columns of the `live` requests of a step are between;
    None if there are none."""
    if not live.any():
        return None
    requests = np.flatnonzero(live) // max(step.kv_format.heads_in_ids, 1)
    _, q_len, _, kv_len, q_pos, kv_pos = step.requests.table[:, live]
    return {
        "b": (float(requests[0]), float(requests[-1])),
        "h": (0.0, shape.num_qo_heads - 1.0),
        "kv_head": (0.0, shape.num_kv_heads - 1.0),
        "head_dim_qk": (float(shape.head_dim_qk),) * 2,
        "head_dim_vo": (float(shape.head_dim_vo),) * 2,
        "q_idx": (float(q_pos.min()), float((q_pos + q_len).max()) - 1),
        "kv_idx": (float(kv_pos.min()), float((kv_pos + kv_len).max()) - 1),
        "d": (0.0, shape.head_dim_vo - 1.0),
    }
