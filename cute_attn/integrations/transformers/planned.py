"""Planned attention for steps: a `BatchAttention` for each kind of layer, planned once per step.

Keys are read where the cache of Transformers has them, (batch, heads, length, head_dim):

- one batch row, or padding-free requests: ragged keys;
- rows that begin at the same key: a row is one page;
- rows that begin at different keys (left padding), or with gaps: pages of one key, by a view of the
  same memory whose page p starts p rows after the first.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cute_attn.api import (
    BatchAttention,
    BlockTableKV,
    PagedKV,
    RaggedKV,
    Variant,
    attention_sinks,
    causal,
    custom_mask,
    full,
)
from cute_attn.api import sliding_window as window_variant
from cute_attn.api import soft_cap as soft_cap_variant
from cute_attn.integrations.transformers.steps import Band, Step, indptr

KINDS = 32
"""Kinds of layers, per thread, whose `BatchAttention` is kept."""


@dataclass(frozen=True)
class Scores:
    """What a layer does with scores.

    Attributes:
        scaling: of them; None: 1 / sqrt(head_dim).
        softcap: their bound, or None.
        sinks: (num_qo_heads,) logits that take part in the softmax, or None.
    """

    scaling: float | None
    softcap: float | None
    sinks: torch.Tensor | None


@dataclass
class _Kind:
    """A `BatchAttention`, and what it is planned for."""

    batch: BatchAttention
    step: Step | None = None
    place: tuple[Any, ...] = ()
    rows: torch.Tensor | None = None  # query rows on the device
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


class _Kinds(threading.local):
    """Those of a thread: a `BatchAttention` is not for several."""

    def __init__(self) -> None:
        self.known: OrderedDict[tuple[Any, ...], _Kind] = OrderedDict()


_KINDS = _Kinds()


def attend(
    step: Step, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scores: Scores
) -> torch.Tensor:
    """Attention of one layer.

    Args:
        step: the requests.
        query: (batch, num_qo_heads, q_len, head_dim).
        key, value: (batch, num_kv_heads, length, head_dim).
        scores: what is done with scores.

    Returns:
        (batch, q_len, num_qo_heads, head_dim_vo); rows that are not used are 0.
    """
    _check(step, query, key, value)
    keys, values, place = _placed(step, key, value)
    kind = kind_of(step.band, query, keys, values, scores, bits=step.bits is not None)
    if kind.step is not step or kind.place != place:
        _plan(kind, step, place, key.device, scores)
    rows = query.transpose(1, 2).flatten(0, 1)
    used, most = int(step.qo_indptr[-1]), rows.shape[0]
    if kind.rows is not None:
        rows = rows.index_select(0, kind.rows)
    elif used < most:
        rows = rows[:used]
    out: torch.Tensor = kind.batch.run(
        rows.detach(), keys, values, tensors=tensors_of(kind, scores)
    )
    if used < most:
        whole = out.new_zeros((most, *out.shape[1:]))
        if kind.rows is None:
            whole[:used] = out
        else:
            whole.index_copy_(0, kind.rows, out)
        out = whole
    return out.view(query.shape[0], query.shape[2], *out.shape[1:])


def kind_of(
    band: Band,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scores: Scores,
    *,
    bits: bool = False,
) -> _Kind:
    """The planned object for layers like this one; `key`, `value`: (..., heads, keys, head_dim)."""
    variant = _variant(band, bits, scores.softcap is not None, scores.sinks is not None)
    head_dim = int(query.shape[-1])
    named = (
        int(query.shape[1]),
        int(key.shape[-3]),
        head_dim,
        int(value.shape[-1]),
        query.dtype,
        variant,
        1 / math.sqrt(head_dim) if scores.scaling is None else float(scores.scaling),
        query.device,
        scores.softcap,
    )
    known = _KINDS.known
    kind = known.get(named)
    if kind is None:
        heads, kv_heads, _, head_dim_vo, dtype, _, scale, device, _ = named
        kind = known[named] = _Kind(
            BatchAttention(
                heads,
                kv_heads,
                head_dim,
                head_dim_vo=head_dim_vo,
                dtype=dtype,
                variant=variant,
                sm_scale=scale,
                kv_layout="HND",
                device=device,
            )
        )
        if len(known) > KINDS:
            known.popitem(last=False)
    known.move_to_end(named)
    return kind


def scalars_of(band: Band, softcap: float | None) -> dict[str, float | int]:
    """Values of the variant's scalars."""
    scalars: dict[str, float | int] = {}
    if band.left is not None:
        scalars["window_left"] = band.left
    if band.right:
        scalars["window_right"] = band.right
    if softcap is not None:
        scalars["logits_soft_cap"] = softcap
    return scalars


def tensors_of(kind: _Kind, scores: Scores) -> dict[str, torch.Tensor] | None:
    """The variant's tensors; those of sinks are each layer's own."""
    if scores.sinks is None:
        return None  # as planned
    return {**kind.tensors, "sink": scores.sinks.detach().float()}


@lru_cache(maxsize=KINDS)
def _variant(band: Band, bits: bool, capped: bool, sinks: bool) -> Variant:
    if bits:
        variant = custom_mask()
    elif band.right:
        variant = window_variant(right=True)
    else:
        variant = full() if band.right is None else causal()
        if band.left is not None:
            variant = variant & window_variant()
    if capped:
        variant = variant & soft_cap_variant()
    return variant & attention_sinks() if sinks else variant


def _check(step: Step, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raises where a tensor is not what the step was made for, or autograd would miss it."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} requires grad, and cute_attn has no backward: call the model under"
                " torch.no_grad() or torch.inference_mode(), or train with"
                " attn_implementation='sdpa'"
            )
    rows = int(query.shape[0] * query.shape[2])
    needed = int(step.qo_indptr[-1]) if step.query_rows is None else 0
    if needed > rows:
        raise ValueError(f"query has {rows} rows; the mask was made for {needed}")
    if step.first is not None and len(step.kv_len) != key.shape[0]:
        raise ValueError(f"key has {key.shape[0]} batch rows; the mask was made for others")


def _placed(
    step: Step, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
    """Keys and values as `BatchAttention` takes them, and where they are, for the plan."""
    if step.first is not None and key.shape[0] == 1:
        key, value = (x[0, :, step.first :] for x in (key, value))
        return _aligned(key), _aligned(value), ("ragged",)
    if step.first is not None:
        key, value = _aligned(key[:, :, step.first :]), _aligned(value[:, :, step.first :])
        return key, value, ("rows", int(key.shape[2]))
    if step.ragged:
        return _aligned(key[0]), _aligned(value[0]), ("ragged",)
    key, value = _aligned(key), _aligned(value)
    (keys, units), (values, others) = _token_pages(key), _token_pages(value)
    if units != others:  # one page table for both: K and V have to lie alike
        keys, units = _token_pages(key.contiguous())
        values, _ = _token_pages(value.contiguous())
    return keys, values, ("tokens", *units)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x with rows as kernels load them: contiguous, at multiples of 16 bytes."""
    step = 16 // x.element_size()
    strides = (s for n, s in zip(x.shape[:-1], x.stride(), strict=False) if n > 1)
    if x.stride(-1) == 1 and not x.data_ptr() % 16 and all(s % step == 0 for s in strides):
        return x
    return x.contiguous()


def _token_pages(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
    """A view of (batch, heads, length, head_dim) as (pages, heads, 1, head_dim), and how many pages
    a batch row and a key are apart."""
    batch, heads, length, head_dim = x.shape
    row, head, token, _ = x.stride()
    row = row if batch > 1 else 0
    unit = math.gcd(row, token)
    pages = ((batch - 1) * row + (length - 1) * token) // unit + 1
    view = x.as_strided((pages, heads, 1, head_dim), (unit, head, unit, 1))
    return view, (row // unit, token // unit)


def _plan(
    kind: _Kind, step: Step, place: tuple[Any, ...], device: torch.device, scores: Scores
) -> None:
    kv_format: RaggedKV | PagedKV | BlockTableKV
    if place[0] == "ragged":
        kv_format = RaggedKV(indptr(step.kv_len))
    elif place[0] == "rows":
        pages = np.arange(len(step.kv_len), dtype=np.int32)[:, None]
        kv_format = BlockTableKV(pages, step.kv_len, place[1])
    else:
        assert step.key_rows is not None
        pages = (step.key_rows[0] * place[1] + step.key_rows[1] * place[2]).astype(np.int32)
        last = np.minimum(step.kv_len, 1)
        kv_format = PagedKV(indptr(step.kv_len), pages, last, 1)
    kind.step = None  # until all is done
    kind.tensors = {} if step.bits is None else _packed(step.bits)
    given = dict(kind.tensors)
    if scores.sinks is not None:
        given["sink"] = scores.sinks.detach().float()
    kind.batch.plan(
        step.qo_indptr,
        kv_format,
        scalars=scalars_of(step.band, scores.softcap),
        tensors=given or None,
    )
    kind.rows = None
    if step.query_rows is not None:
        kind.rows = torch.from_numpy(step.query_rows).to(device, non_blocking=True)
    kind.step, kind.place = step, place


def _packed(mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of `custom_mask` for (batch, q_len, keys) truth values, made where they are."""
    batch, q_len, keys = mask.shape
    bits = mask.reshape(batch, q_len * keys)
    bits = torch.nn.functional.pad(bits, (0, -bits.shape[1] % 8)).view(batch, -1, 8)
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=mask.device)
    size = bits.shape[1]
    numbers = {
        "mask_begin": [i * size for i in range(batch)],
        "mask_query": [keys - q_len] * batch,
        "mask_keys": [keys] * batch,
    }
    tensors = {
        name: torch.tensor(x, dtype=torch.int32, device=mask.device) for name, x in numbers.items()
    }
    tensors["mask_bits"] = (bits * weights).sum(dim=-1, dtype=torch.uint8).flatten()
    return tensors
