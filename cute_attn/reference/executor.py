"""Executes a plan on the CPU with NumPy, item by item, as the kernels do.

It reads the same plan buffer, computes the same items, writes the same partial slots and merges
them by the same split records; so it is the CPU path of the public calls, and what kernels are
compared with when they go wrong. It is not the oracle: that is `tests/oracle.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cute_attn.abi import Item, WorkWalker
from cute_attn.abi.plan import RequestRecord
from cute_attn.formats import KVFormat, as_numpy, gather_kv, kv_views
from cute_attn.reference.merge import merge_partials
from cute_attn.scheduler import Plan
from cute_attn.variants import Variant
from cute_attn.variants.evaluate import evaluate

Array = npt.NDArray[Any]

_LOG2_E = math.log2(math.e)


def execute(
    plan: Plan,
    q: Any,
    k: Any,
    v: Any,
    kv_format: KVFormat,
    variant: Variant,
    *,
    sm_scale: float | None = None,
    scalars: Mapping[str, float | int] | None = None,
    tensors: Mapping[str, Any] | None = None,
    layout: str = "NHD",
    dtype: Any = np.float32,
    v_scale: float = 1.0,
) -> tuple[Array, Array]:
    """Runs `plan`.

    Args:
        plan: made for this format's requests, in its order, and for `variant`'s band.
        q: (q_tokens, num_qo_heads, head_dim_qk), array or CPU tensor of any float dtype.
        k, v: as `cute_attn.formats.kv_views` takes them; v None if k is a whole paged cache.
        kv_format: where the keys are; page table on the host.
        variant: the hooks.
        sm_scale: default 1 / sqrt(head_dim_qk).
        scalars: values of the variant's scalars; defaults where not given.
        tensors: the variant's tensors, arrays or CPU tensors.
        layout: "NHD" or "HND".
        dtype: float32 or float64, of the arithmetic and the output.
        v_scale: factor of the values.

    Returns:
        out (q_tokens, num_qo_heads, head_dim_vo) and lse (q_tokens, num_qo_heads), natural log,
        both of `dtype`. A row that sees no key has out 0 and lse -inf, or what hooks on rows make
        of that. Rows of q that belong to no request are NaN, and so is lse without softmax.

    Raises:
        ValueError: the arrays do not fit the plan or the format.
    """
    run = _Run(
        plan, q, k, v, kv_format, variant, sm_scale, scalars, tensors, layout, dtype, v_scale
    )
    blocks = range(run.walker.num_blocks)
    # Request by request, so that each one's keys are gathered once; items do not depend on order.
    items = sorted(item for block in blocks for item in run.walker.items(block))
    for request, group in itertools.groupby(items, key=lambda item: item.request):
        run.request(request, list(group))
    for split in run.walker.split_tiles():
        run.merge(*split)
    return run.out, run.lse


class _Run:
    """One execution: inputs, outputs and partial slots."""

    def __init__(
        self,
        plan: Plan,
        q: Any,
        k: Any,
        v: Any,
        kv_format: KVFormat,
        variant: Variant,
        sm_scale: float | None,
        scalars: Mapping[str, float | int] | None,
        tensors: Mapping[str, Any] | None,
        layout: str,
        dtype: Any,
        v_scale: float,
    ) -> None:
        self.plan, self.kv_format, self.variant = plan, kv_format, variant
        self.walker = walker = WorkWalker(plan.view)
        self.views = kv_views(kv_format, k, v, layout)
        given = variant.arrays(tensors)
        arrays = {t.name: t.elements(as_numpy(given[t.name])) for t in variant.tensors}
        self.scalars = variant.values(scalars)
        self.parameters = {**self.scalars, **arrays}
        self.of_blocks = self._of_blocks(arrays)
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"dtype is {self.dtype}; it takes float32 or float64")
        self.q = as_numpy(q)
        self._check()
        scale = self.views.head_dim_qk**-0.5 if sm_scale is None else sm_scale
        self.sm_scale = self.dtype.type(scale)
        self.v_scale = self.dtype.type(v_scale)
        head_dim_vo = self.views.head_dim_vo
        # NaN shows what nobody wrote.
        self.out = np.full((*self.q.shape[:2], head_dim_vo), np.nan, self.dtype)
        self.lse = np.full(self.q.shape[:2], np.nan, self.dtype)
        slots = (plan.num_slots, walker.tile_q)
        self.partial_out = np.full((*slots, head_dim_vo), np.nan, self.dtype)
        self.partial_lse = np.full(slots, np.nan, self.dtype)

    def _of_blocks(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """What the mask's test of a KV block reads, beside its corners."""
        test = self.variant.block_test
        tables = () if test is None else test.tables
        found: dict[str, Any] = {f"params.{name}": value for name, value in self.scalars.items()}
        return {**found, **arrays, **{t.name: t.over(arrays[t.tensor]) for t in tables}}

    def _check(self) -> None:
        walker, views, q = self.walker, self.views, self.q
        kv_heads = walker.heads_in_ids or walker.num_kv_heads
        heads = kv_heads * walker.group
        if q.ndim != 3 or q.shape[1:] != (heads, views.head_dim_qk):
            raise ValueError(
                f"q has shape {q.shape}; it takes (q_tokens, {heads}, {views.head_dim_qk}): "
                f"{heads} heads were planned, k has head_dim {views.head_dim_qk}"
            )
        if views.num_kv_heads != kv_heads:
            raise ValueError(
                f"k has {views.num_kv_heads} heads but {kv_heads} KV heads were planned"
            )
        if self.plan.num_requests != self.kv_format.num_requests:
            raise ValueError(
                f"kv_format has {self.kv_format.num_requests} requests but "
                f"{self.plan.num_requests} were planned"
            )
        records = self.plan.view.requests[: self.plan.num_requests]
        last_row = int((records[:, 0].astype(np.int64) + records[:, 1]).max(initial=0))
        if last_row > q.shape[0]:
            raise ValueError(f"q has {q.shape[0]} rows but the plan reaches row {last_row}")

    def _rows(self, item: Item) -> tuple[Array, Array]:
        """(q row, query head) of each packed row of an item."""
        group = self.walker.group
        packed = np.arange(item.row_begin, item.row_begin + item.num_rows)
        token, member = packed // group, packed % group
        return self.plan.view.request(item.request).q_start + token, item.kv_head * group + member

    def request(self, request: int, items: list[Item]) -> None:
        """Computes the items of one record."""
        record = self.plan.view.request(request)
        tile_kv = self.walker.tile_kv
        first = min(item.block_begin for item in items) * tile_kv
        last = max(item.block_end for item in items) * tile_kv
        k, v = gather_kv(self.kv_format, self.views, record.batch, first, last)
        batch = self.walker.callers_request(request)
        k, v = k.astype(self.dtype), v.astype(self.dtype)
        for item in items:
            begin = min(item.block_begin * tile_kv, record.kv_len)
            end = min(item.block_end * tile_kv, record.kv_len)
            token, head = self._rows(item)
            q_idx = token - record.q_start + record.q_pos
            key = np.arange(begin, end)
            key = key[self._visible(record, batch, head, q_idx, key)]
            kv_idx = key + record.kv_pos
            own_q = self.q[token, head].astype(self.dtype)
            own_k, own_v = (x[key - first, item.kv_head] for x in (k, v))
            out, lse2 = self._attend(
                self._through("query", own_q, batch, head, q_idx),
                self._through("key", own_k, batch, item.kv_head, kv_idx),
                self._through("value", own_v, batch, item.kv_head, kv_idx),
                batch=batch,
                head=head[:, None],
                q_idx=q_idx[:, None],
                kv_idx=kv_idx[None, :],
            )
            out = out * self.v_scale
            if item.slot < 0:
                self._finish(request, token, head, out, lse2)
            else:
                self.partial_out[item.slot, : item.num_rows] = out
                self.partial_lse[item.slot, : item.num_rows] = lse2

    def _through(self, role: str, rows: Array, batch: int, head: Any, pos: Array) -> Array:
        """(rows, head_dim) through the variant's hook, if it has one."""
        hook = self.variant.vector_hooks.get(role)
        if hook is None:
            return rows
        return np.asarray(hook(rows, batch, head, pos, **self.parameters))

    def _visible(
        self, record: RequestRecord, batch: int, head: Array, q_idx: Array, key: Array
    ) -> Array:
        """Which keys lie in KV blocks that the mask does not empty."""
        tile_kv = self.walker.tile_kv
        test = self.variant.block_test
        if test is None or not key.size:
            return np.ones(key.size, np.bool_)
        block, own = np.unique(key // tile_kv, return_inverse=True)
        last = np.minimum((block + 1) * tile_kv, record.kv_len) - 1
        corners = {
            "b": batch,
            "h_first": head.min(),
            "h_last": head.max(),
            "q_first": q_idx[0],
            "q_last": q_idx[-1],
            "kv_first": block * tile_kv + record.kv_pos,
            "kv_last": last + record.kv_pos,
        }
        some = evaluate(test.visible.some, {**corners, **self.of_blocks})
        visible: Array = np.broadcast_to(some, block.shape)[own]
        return visible

    def _attend(
        self, q: Array, k: Array, v: Array, *, batch: int, head: Array, q_idx: Array, kv_idx: Array
    ) -> tuple[Array, Array]:
        """(out, base-2 lse) of packed query rows over some keys; 0 and -inf without any. Without
        softmax the lse is 0, whatever the keys."""
        scores = (q @ k.T) * self.sm_scale
        if self.variant.logits is not None:
            bent = self.variant.logits(scores, batch, head, q_idx, kv_idx, **self.parameters)
            scores = bent.astype(self.dtype)
        hidden = -np.inf if self.variant.softmax else 0
        if self.variant.mask is not None:
            visible = self.variant.mask(batch, head, q_idx, kv_idx, **self.parameters)
            visible = np.broadcast_to(visible, scores.shape)
            scores = np.where(visible, scores, self.dtype.type(hidden))
            # What no row sees may be anything, NaN too (an evicted page): 0 * NaN must not count.
            seen_keys = np.any(visible, axis=0, keepdims=True)
            if not seen_keys.all():
                v = np.where(seen_keys.T, v, self.dtype.type(0))
        if not self.variant.softmax:
            return scores @ v, np.zeros(len(scores), self.dtype)
        scores = scores * self.dtype.type(_LOG2_E)
        top = scores.max(axis=1, initial=-np.inf)
        seen = top > -np.inf
        p = np.exp2(scores - np.where(seen, top, 0)[:, None])
        total = np.where(seen, p.sum(axis=1), 1).astype(self.dtype)
        lse2 = np.where(seen, top + np.log2(total), -np.inf)
        return (p @ v) / total[:, None], lse2.astype(self.dtype)

    def merge(self, tile: int, request: int, first_slot: int, num_slots: int) -> None:
        """Merges the partial results of one split tile."""
        item = self.walker.tile_item(request, tile)
        slots = slice(first_slot, first_slot + num_slots)
        outs, lses = (x[slots, : item.num_rows] for x in (self.partial_out, self.partial_lse))
        if self.variant.softmax:
            out, lse2 = merge_partials(outs, lses)
        else:
            out, lse2 = outs.sum(axis=0), lses[0]
        token, head = self._rows(item)
        self._finish(request, token, head, out, lse2)

    def _finish(self, request: int, token: Array, head: Array, out: Array, lse2: Array) -> None:
        """Writes rows that have seen all their keys, through the hooks on them."""
        variant, record = self.variant, self.plan.view.request(request)
        lse = lse2 * self.dtype.type(math.log(2))
        batch = self.walker.callers_request(request)
        at = batch, head, token - record.q_start + record.q_pos
        if variant.row_state is not None:
            before, lse = lse, variant.row_state(lse, *at, **self.parameters)
            with np.errstate(invalid="ignore"):  # of -inf - -inf
                factor = np.where(before == -np.inf, 0, np.exp(before - lse))
            out = out * factor.astype(self.dtype)[:, None]
        if variant.output is not None:
            columns = np.arange(out.shape[1])[None, :]
            places = (at[0], at[1][:, None], at[2][:, None])
            out = variant.output(out, *places, columns, **self.parameters)
        self.out[token, head] = out
        if variant.softmax:
            self.lse[token, head] = lse
