"""`CompositeAttention`: a batch whose requests share ranges of keys, which are read once for all.

attention = CompositeAttention(32, 8, 128, dtype=torch.bfloat16)
attention.plan(qo_indptr, PagedKV(...))      # what page tables share is found
out = attention.run(q, cache)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cute_attn.api import checks
from cute_attn.api.batch import BatchAttention
from cute_attn.api.row_merge import RowMerge
from cute_attn.api.sharing import SHARE, shared_levels
from cute_attn.api.step import band_of
from cute_attn.formats import KVFormat, Level, LevelsKV
from cute_attn.formats.errors import indptr
from cute_attn.formats.stack import Stack, stack
from cute_attn.variants import Variant
from cute_attn.variants.looked_up import POSITIONS, REQUESTS, looked_up, needs_look_up


class CompositeAttention:
    """`BatchAttention` for requests that share ranges of keys: a system prompt, a document, the
    prompt of several samples, the trunk of a tree of beams.

    A shared range is one request of all query rows that see it, in a large query tile; what each
    request has for itself is another. Both kinds are one plan and run in the same launches; states
    are merged exactly. Positions are true ones: masks, windows, biases and rotary embeddings are
    what they would be for each request by itself.

    Args:
        num_qo_heads, num_kv_heads, head_dim: as for `BatchAttention`.
        share_prefixes: of page tables that plan() is given: "auto": what they begin with in common
            is shared where the cost model says that it pays, if kernels need not look up positions
            for it; "always": all of it; "never".
        variant: as for `BatchAttention`, with softmax and without hooks on finished rows.
        max_rows: most stacked query rows of a step: those of all levels together. Default: grows
            (cuda_graph: as many as the first plan's, rounded up).
        options: of `BatchAttention`, but for batch_invariant and bundle. max_requests counts ranges
            of keys, not requests.

    Not for use by several threads at once, nor for runs on several streams at the same time.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """

    def __init__(
        self,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        share_prefixes: str = "auto",
        variant: str | Variant = "causal",
        max_rows: int | None = None,
        **options: Any,
    ) -> None:
        checks.one_of("share_prefixes", share_prefixes, SHARE)
        if max_rows is not None:
            checks.positive("max_rows", max_rows)
        for name in ("batch_invariant", "bundle"):
            if options.get(name):
                raise ValueError(
                    f"{name} is {options[name]!r}; CompositeAttention does not take it: what a"
                    " request shares, and so its kernels, depends on the others"
                )
        self._share = share_prefixes
        self._sizes, self._options = (num_qo_heads, num_kv_heads, head_dim), options
        self._plain = BatchAttention(*self._sizes, variant=variant, **options)
        shape = self._plain._shape
        _check_variant(shape.variant)
        if shape.is_fp8:
            raise TypeError(
                f"dtype is {shape.dtype}; levels take torch.bfloat16 or torch.float16, in which"
                " their results are merged"
            )
        self._shape = shape
        self._looks_up = needs_look_up(shape.variant)
        self._by_row: BatchAttention | None = None  # where positions have to be looked up
        self._fixed = bool(options.get("cuda_graph"))
        self._rows = RowMerge(
            shape, fixed=self._fixed, max_rows=max_rows, on_host=shape.device.type == "cpu"
        )
        self._stack: Stack | None = None
        self._used: BatchAttention | None = None
        self.levels: LevelsKV | None = None

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        return self._plain.device

    @property
    def stack(self) -> Stack | None:
        """The last step as one batch, as its kernels see it; None: nothing is shared."""
        return self._stack

    @property
    def attention(self) -> BatchAttention:
        """What serves the last step; its `explain()` shows ranges of keys as requests.

        Raises:
            RuntimeError: not planned.
        """
        if self._used is None:
            raise RuntimeError("attention before plan(): plan the step first")
        return self._used

    def plan(
        self,
        qo_indptr: Any,
        kv: KVFormat | LevelsKV,
        *,
        scalars: Mapping[str, float | int] | None = None,
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> CompositeAttention:
        """Decides which thread block does what for one step; run() then serves every layer.

        Args:
            qo_indptr: (num_requests + 1,) integers on the host: query rows of each request; the
                last one stands at the request's last key.
            kv: `LevelsKV`; or any format of `BatchAttention` whose positions are known, of which
                what is shared is found (`share_prefixes`). Page numbers must then be on the host to
                be compared, else nothing is shared.
            scalars, tensors: as for `BatchAttention.plan`; tensors that are indexed by requests and
                positions mean those of the batch, whatever is shared.

        Returns:
            self.

        Raises:
            TypeError, ValueError: an argument is wrong or a capacity is exceeded.
            Others as `BatchAttention.plan`.
        """
        rows = indptr("qo_indptr", qo_indptr)
        if not isinstance(kv, (KVFormat, LevelsKV)):
            raise TypeError(f"kv is a {type(kv).__name__}; it takes LevelsKV, PagedKV, ...")
        if isinstance(kv, KVFormat) and kv.heads_in_ids:
            raise TypeError(
                "kv is a PerHeadKV, whose requests share nothing; BatchAttention takes it"
            )
        count = kv.num_requests
        if rows.size - 1 != count:
            raise ValueError(f"qo_indptr describes {rows.size - 1} requests, kv {count}")
        values = dict(scalars) if scalars is not None else None
        _, band = band_of(self._shape.variant, values)
        if isinstance(kv, LevelsKV):
            levels: LevelsKV | None = kv
        else:
            shape, constants = self._shape, self._plain._backend.constants
            share = "never" if self._share == "auto" and self._looks_up else self._share
            levels = shared_levels(share, shape, constants, rows, kv, band)
        if levels is None and self._fixed:
            assert isinstance(kv, KVFormat)
            levels = LevelsKV([Level(kv)], count)  # captured graphs copy and merge
        if levels is None:
            assert isinstance(kv, KVFormat)
            self._plain.plan(rows, kv, scalars=scalars, tensors=tensors)
            self._stack, self._used, self.levels = None, self._plain, None
            return self
        self._plan_levels(rows, levels, band, scalars, tensors)
        return self

    def _plan_levels(
        self,
        rows: Any,
        levels: LevelsKV,
        band: tuple[int, int],
        scalars: Mapping[str, float | int] | None,
        tensors: Mapping[str, torch.Tensor] | None,
    ) -> None:
        steps = stack(levels, rows, band)
        shared = steps.kv.num_requests != levels.num_requests or not steps.is_flat
        by_row = not steps.follows or (shared and self._looks_up)
        used = self._looking_up() if by_row else self._plain
        if self._fixed and self._used is not None and used is not self._used:
            raise ValueError(
                "the step has another kernel than the first plan of this cuda_graph=True object:"
                " only one of the two has shared ranges that not all of their query rows see"
            )
        if self._rows.reserve(steps) and self._stack is not None:
            self._used = None  # what run() of the last plan read is gone
        expected = None
        if by_row:
            own = {t.name for t in used._shape.variant.tensors}
            tables = {POSITIONS.name: self._rows.tables[0], REQUESTS.name: self._rows.tables[1]}
            known = {
                POSITIONS.name: steps.positions.astype(np.int32),
                REQUESTS.name: steps.requests.astype(np.int32),
            }
            given = variant_tensors(self._shape.variant, tensors)
            tensors = {**given, **{name: x for name, x in tables.items() if name in own}}
            expected = {name: x for name, x in known.items() if name in own}
        kv = steps.by_row() if by_row else steps.kv
        used.plan(None, kv, scalars=scalars, tensors=tensors, expected=expected)
        self._rows.send(steps)
        self._stack, self._used, self.levels = steps, used, levels

    def _looking_up(self) -> BatchAttention:
        if self._by_row is None:
            variant = looked_up(self._shape.variant)
            self._by_row = BatchAttention(*self._sizes, variant=variant, **self._options)
        return self._by_row

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        v: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        """Attention of the planned step, for one layer; arguments and results as those of
        `BatchAttention.run`.

        Of a step with shared ranges, what a row sees of each is rounded to `dtype` before it is
        merged.

        Raises:
            TypeError, ValueError: a tensor does not fit the plan; nothing was launched.
            RuntimeError: not planned.
        """
        if self._used is None:
            raise RuntimeError("run() before plan(): plan the step first")
        if self._stack is None:
            return self._used.run(q, k, v, out=out, lse=lse, return_lse=return_lse)
        if torch.is_grad_enabled() and isinstance(q, torch.Tensor):
            checks.no_gradients(q=q)  # of the copies nothing would be known
        shape, tokens = self._shape, self._stack.state_indptr.size - 1
        shape.check_q(q, tokens, padded=self._fixed)
        count = int(q.shape[0])
        self._rows.check_tokens(count)
        if out is None:
            out = shape.new_out(count)
        shape.check_out(out, count)
        if lse is None and return_lse:
            lse = shape.new_lse(count)
        if lse is not None:
            shape.check_lse(lse, count)
        if count == 0:
            return out if lse is None else (out, lse)
        rows = self._rows
        copied = rows.copy(q)
        stacked_out, stacked_lse = rows.out[: rows.count], rows.lse[: rows.count]
        self._used.run(copied, k, v, out=stacked_out, lse=stacked_lse)
        rows.merge(out, lse)
        return out if lse is None else (out, lse)


def variant_tensors(
    variant: Variant, tensors: Mapping[str, torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """Those that are given, overlaid on those that the variant captured."""
    captured = {t.name: t.captured.tensor for t in variant.tensors if t.captured is not None}
    return {**captured, **(tensors or {})}


def _check_variant(variant: Variant) -> None:
    """Raises ValueError for variants whose rows cannot be merged from parts."""
    if not variant.softmax:
        raise ValueError(
            f"variant {variant.name!r} has no softmax; CompositeAttention merges by the log-sum-exp"
            " of rows, which it has not"
        )
    for role in ("row_state", "output"):
        if role in variant.hooks:
            raise ValueError(
                f"variant {variant.name!r} has a {role} hook, which is for rows that have seen all"
                " their keys; CompositeAttention takes variants without"
            )
