"""`TuneStep`: a step that is measured; `StepKey`: what of a step decides which entry serves it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cute_attn.codegen.spec import LATENT_DIMS
from cute_attn.variants import Variant, causal

_FEW_ROWS = (8, 16, 64)
"""Packed query rows of the longest request up to which kernels differ in kind: decode tiles of 8
and of 16 rows, and one consumer warpgroup. More: 0."""
_STEPS = 2
"""Keys of steps per factor of two."""


class StepKey(NamedTuple):
    """Lengths of a step, coarsely: what `plan` looks up.

    Attributes:
        kind: 8, 16 or 64: packed query rows of the longest request, at most; 0: more.
        rows: packed query rows of a request, in the mean.
        keys: keys that a query token sees at most, in the mean.
        load: packed query rows of all requests and KV heads per SM.

    The last three are logarithms to base 2, in halves.
    """

    kind: int
    rows: int
    keys: int
    load: int

    def distance(self, other: StepKey) -> float | None:
        """How far apart two steps are, in factors of two added up; None: they have nothing to say
        of each other, because one of the three differs by more than a factor of two, or the kind.
        """
        if self.kind != other.kind:
            return None
        apart = [abs(a - b) for a, b in zip(self[1:], other[1:], strict=True)]
        return sum(apart) / _STEPS if max(apart) <= _STEPS else None


def step_key(
    longest: int, q_tokens: int, requests: int, seen: int, group: int, kv_heads: int, num_sms: int
) -> StepKey:
    """The key of a step.

    Args:
        longest: packed query rows (query tokens x group) of the longest request.
        q_tokens: of all requests.
        requests: with queries.
        seen: keys that query tokens see at most, added up over tokens.
        group: query heads per KV head.
        kv_heads: KV heads.
        num_sms: of the GPU.
    """
    kind = next((rows for rows in _FEW_ROWS if longest <= rows), 0)
    packed = q_tokens * group
    return StepKey(
        kind,
        _log(packed / max(requests, 1)),
        _log(seen / max(q_tokens, 1)),
        _log(packed * kv_heads / num_sms),
    )


def _log(value: float) -> int:
    return round(_STEPS * math.log2(value)) if value > 0 else 0


@dataclass(frozen=True)
class TuneStep:
    """One step that is measured.

    Attributes:
        name: for people; unique in a list of steps.
        q_lens, kv_lens: tokens of each request.
        num_qo_heads, num_kv_heads, head_dim, head_dim_vo: sizes.
        page_size: tokens per page, or None for ragged KV.
        dtype: "bf16" or "fp16".
        variant: the hooks.
        scalars: of the variant.
    """

    name: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int | None = None
    dtype: str = "bf16"
    variant: Variant = field(default_factory=causal)
    scalars: tuple[tuple[str, float], ...] = ()
    value_dim: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("bf16", "fp16"):
            raise ValueError(f"dtype is {self.dtype!r}; tuning takes 'bf16' or 'fp16'")
        if (self.head_dim, self.value_dim) == LATENT_DIMS:
            raise ValueError(
                f"head_dim is {self.head_dim} and value_dim {self.value_dim}; the kernel of latent"
                " rows has one tile, so there is nothing to tune"
            )

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_qo_heads // self.num_kv_heads

    @property
    def packed_rows(self) -> tuple[tuple[int, int], ...]:
        """(requests, packed query rows of each)."""
        counts = Counter(n * self.group for n in self.q_lens if n)
        return tuple((count, rows) for rows, count in sorted(counts.items()))

    @property
    def head_dim_vo(self) -> int:
        """Elements of a value row."""
        return self.value_dim or self.head_dim

    @property
    def band(self) -> tuple[int, int]:
        """(window_left, window_right) of the variant."""
        return self.variant.band.resolve(self.variant.values(dict(self.scalars)))

    @property
    def kv_bytes(self) -> int:
        """Of K and V."""
        width = self.head_dim + self.head_dim_vo
        return 2 * width * self.num_kv_heads * sum(self.kv_lens)

    def key(self, num_sms: int) -> StepKey:
        """What `plan` would look up."""
        most = sum(self.band) + 1
        pairs: Sequence[tuple[int, int]] = list(zip(self.q_lens, self.kv_lens, strict=True))
        seen = sum(q * min(kv, most) for q, kv in pairs)
        return step_key(
            max(self.q_lens) * self.group,
            sum(self.q_lens),
            sum(q > 0 for q in self.q_lens),
            seen,
            self.group,
            self.num_kv_heads,
            num_sms,
        )
