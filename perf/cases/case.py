"""A benchmark case: lengths, sizes, the work in it and the kernel that serves it.

Lengths of a batch: "c1024" constant, "u1-8192" uniform, drawn by `random.Random(0)`, "z2048" Zipf:
request i gets a share of 1 / i, with the given mean.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import numpy as np

from cute_attn import KernelSpec, Problem, Variant, causal, choose, full, sliding_window
from cute_attn.api.dispatch import is_long, tiles_per_sm
from cute_attn.api.fixed_kernels import FixedKernels
from cute_attn.api.launches import Part, parts_of
from cute_attn.codegen.spec import LATENT_DIMS, element_bytes
from cute_attn.scheduler.constants import H200

NOMINAL_SECTIONS = ("A", "A16", "F", "H", "M")
"""Sections whose causal cases count half of the square, as the peers' dense rows do."""
GRAPH_SECTIONS = ("C", "D", "DH", "T", "K", "Q", "X", "SL")
"""Sections compared by `us_graph`, the time of a run within a replayed CUDA graph."""


def lengths(kind: str, batch: int) -> list[int]:
    """Lengths of a batch, e.g. lengths("u512-1024", 16).

    Raises:
        ValueError: unknown kind.
    """
    if match := re.fullmatch(r"c(\d+)", kind):
        return [int(match[1])] * batch
    if match := re.fullmatch(r"u(\d+)-(\d+)", kind):
        rng = random.Random(0)
        return [rng.randint(int(match[1]), int(match[2])) for _ in range(batch)]
    if match := re.fullmatch(r"z(\d+)", kind):
        mean = int(match[1])
        shares = [1 / (i + 1) for i in range(batch)]
        scaled = [max(1, round(mean * batch * share / sum(shares))) for share in shares]
        scaled[0] += mean * batch - sum(scaled)
        return scaled
    raise ValueError(f"kind of lengths is {kind!r}; it takes c<n>, u<low>-<high> or z<mean>")


@dataclass(frozen=True)
class Case:
    """One benchmark case.

    Attributes:
        sec, cfg: section and name, as in the peers' records.
        q_lens, kv_lens: tokens of every request.
        num_qo_heads, num_kv_heads, head_dim: sizes; head_dim of queries and keys.
        page_size: tokens per page, or None for ragged KV.
        is_causal: causal, else full.
        window: with is_causal: keys that a row sees at most, its own among them; None: all.
        value_dim: head_dim of values and outputs, where it is another.
        dtype: "bf16", "fp16" or "e4m3".
    """

    sec: str
    cfg: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int | None
    is_causal: bool
    window: int | None = None
    value_dim: int | None = None
    dtype: str = "bf16"

    @property
    def group(self) -> int:
        return self.num_qo_heads // self.num_kv_heads

    @property
    def head_dim_vo(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def is_latent(self) -> bool:
        """Whether values are columns of the keys: absorbed MLA."""
        return (self.head_dim, self.head_dim_vo) == LATENT_DIMS

    @property
    def variant(self) -> Variant:
        if not self.is_causal:
            return full()
        return causal() & sliding_window() if self.window is not None else causal()

    @property
    def scalars(self) -> dict[str, float | int]:
        """What plan() gets for the variant."""
        return {} if self.window is None else {"window_left": self.window - 1}

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs of a head; row i of q_len sees keys up to kv - q + i."""
        pairs = 0
        for q, kv in zip(self.q_lens, self.kv_lens, strict=True):
            if not self.is_causal:
                pairs += q * kv
            else:
                limit = kv if self.window is None else self.window
                pairs += _seen(kv, limit) - _seen(max(0, kv - q), limit)
        return pairs

    @property
    def flops(self) -> float:
        """2 (head_dim + head_dim_vo) FLOPs per visible (query, key, head)."""
        return self._work * self.pairs

    @property
    def counted_flops(self) -> float:
        """FLOPs as the peers' rows count them: dense causal cases as half of the square."""
        if self.sec not in NOMINAL_SECTIONS or not self.is_causal:
            return self.flops
        return self._work * sum(q * kv for q, kv in zip(self.q_lens, self.kv_lens, strict=True)) / 2

    @property
    def _work(self) -> float:
        return 2.0 * (self.head_dim + self.head_dim_vo) * self.num_qo_heads

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V."""
        elements = self.head_dim + (0 if self.is_latent else self.head_dim_vo)
        return element_bytes(self.dtype) * elements * self.num_kv_heads * sum(self.kv_lens)

    def spec(self, arch: str, schedule: str | None = None) -> KernelSpec:
        """The kernel that serves it on a device of `arch`; of another `schedule` if given.

        Raises:
            UnsupportedSpecError: there is none.
        """
        problem = self.problem(arch)
        band = self.variant.band.resolve(self.variant.values(self.scalars))
        long = is_long(problem, np.array(self.q_lens), np.array(self.kv_lens), band)
        rows, q_len = max(self.q_lens) * self.group, np.array(self.q_lens)
        tiles = tiles_per_sm(q_len, rows, self.num_kv_heads, H200.sms)
        return choose(problem, rows=rows, tiles_per_sm=tiles, long=long, schedule=schedule)

    def parts(self, arch: str, schedule: str | None = None) -> list[Part]:
        """The launches that serve it on a device of `arch` with as many SMs as an H200.

        Raises:
            UnsupportedSpecError: there are none.
        """
        return parts_of(
            self.q_lens,
            self.kv_lens,
            self.problem(arch),
            num_kv_heads=self.num_kv_heads,
            num_sms=H200.sms,
            scalars=self.scalars,
            schedule=schedule,
        )

    def invariant_specs(self, arch: str) -> list[KernelSpec]:
        """The kernels that serve it with batch_invariant=True, some perhaps not needed."""
        kernels = FixedKernels(self.problem(arch), self.num_kv_heads, H200.sms, None)
        return [kernels.prefill, kernels.decode] if max(self.q_lens) > 1 else [kernels.decode]

    def problem(self, arch: str) -> Problem:
        """What its kernels are chosen by on a device of `arch`, beside the lengths."""
        return Problem(
            arch,
            self.dtype,
            self.head_dim,
            self.head_dim_vo,
            self.group,
            self.variant,
            self.page_size,
        )


def _seen(rows: int, limit: int) -> int:
    """Pairs of the first `rows` rows of a causal square, each seeing at most `limit` keys."""
    head = min(rows, limit)
    return head * (head + 1) // 2 + (rows - head) * limit
