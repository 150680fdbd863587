"""The benchmark cases: names, lengths and kernels, without a GPU.

Names, sizes and lengths are those of the peers' records. Lengths of a batch: "c1024" constant,
"u1-8192" uniform, drawn by `random.Random(0)`, "z2048" Zipf: request i gets a share of 1 / i, with
the given mean.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from cute_attn import KernelSpec, Problem, causal, choose, full
from cute_attn.workloads import load_steps

PREFILL_TOKENS = 16384
PREFILL_HEADS = {64: 32, 128: 16, 256: 8}
PREFILL_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
SMALL_ROWS = 16
"""Packed query rows up to which the dispatcher takes the decode kernel."""


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
        num_qo_heads, num_kv_heads, head_dim: sizes.
        page_size: tokens per page, or None for ragged KV.
        is_causal: causal, else full.
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

    @property
    def group(self) -> int:
        return self.num_qo_heads // self.num_kv_heads

    @property
    def flops(self) -> float:
        """4 head_dim FLOPs per visible (query, key, head); causal counts n (n + 1) / 2 and so on
        exactly."""
        pairs = 0
        for q, kv in zip(self.q_lens, self.kv_lens, strict=True):
            if not self.is_causal:
                pairs += q * kv
            else:  # row i sees kv - q + 1 + i keys, if positive
                first = max(0, q - kv)
                rows = q - first
                pairs += rows * (kv - q + first + 1) + rows * (rows - 1) // 2
        return 4.0 * self.head_dim * self.num_qo_heads * pairs

    @property
    def nominal_flops(self) -> float:
        """FLOPs as the peers' rows count them: half of the square for causal prefill."""
        pairs = sum(q * kv for q, kv in zip(self.q_lens, self.kv_lens, strict=True))
        return 4.0 * self.head_dim * self.num_qo_heads * pairs / (2 if self.is_causal else 1)

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V in 16-bit elements."""
        return 4 * self.head_dim * self.num_kv_heads * sum(self.kv_lens)

    def spec(self, arch: str, schedule: str | None = None) -> KernelSpec:
        """The kernel that serves it on a device of `arch`; of another `schedule` if given."""
        variant = causal() if self.is_causal else full()
        dim = self.head_dim
        problem = Problem(arch, "bf16", dim, dim, self.group, variant, self.page_size)
        small = max(self.q_lens) * self.group <= SMALL_ROWS
        return choose(problem, small=small, schedule=schedule)


def prefill_dense() -> list[Case]:
    """Section A: 16k tokens in equal sequences, as many KV heads as query heads."""
    found = []
    for dim, heads in PREFILL_HEADS.items():
        for is_causal in (False, True):
            for length in PREFILL_LENGTHS:
                batch = PREFILL_TOKENS // length
                cfg = f"d{dim} {'causal' if is_causal else 'full  '} s{length}"
                same = (length,) * batch
                found.append(Case("A", cfg, same, same, heads, heads, dim, None, is_causal))
    return found


def prefill_paged() -> list[Case]:
    """Section B: 16 prompts over a paged cache, 32/8 heads, causal."""
    found = []
    for page_size in (16, 64, 1):
        for kind in ("c1024", "u512-1024", "z1024"):
            own = tuple(lengths(kind, 16))
            cfg = f"b16 {kind} p{page_size}"
            found.append(Case("B", cfg, own, own, 32, 8, 128, page_size, True))
    return found


def decode() -> list[Case]:
    """Section C: one token per request over a paged cache."""
    found = []
    shapes = [((32, 8), 16), ((32, 8), 1), ((32, 8), 64), ((64, 8), 16), ((32, 32), 16)]
    for (heads, kv_heads), page_size in shapes:
        for kind in ("c1024", "c8192", "u1-8192", "z2048"):
            for batch in (1, 4, 16, 64, 256):
                cfg = f"{heads}/{kv_heads} p{page_size} {kind} b{batch}"
                found.append(_decode(cfg, kind, batch, heads, kv_heads, 128, page_size))
    for dim in (64, 256):
        cfg = f"32/8 d{dim} p16 c8192 b64"
        found.append(_decode(cfg, "c8192", 64, 32, 8, dim, 16))
    return found


def _decode(
    cfg: str, kind: str, batch: int, heads: int, kv_heads: int, dim: int, page_size: int
) -> Case:
    own = tuple(lengths(kind, batch))
    return Case("C", cfg, (1,) * batch, own, heads, kv_heads, dim, page_size, True)


def steps() -> list[Case]:
    """Section T: real continuous-batching steps, 32/8 heads, page size 16, causal."""
    return [
        Case("T", step.name, step.q_lens, step.kv_lens, 32, 8, 128, 16, True)
        for step in load_steps()
    ]


def all_specs(arch: str) -> list[KernelSpec]:
    """Attention kernels of all benchmarks, none twice.

    The dense prefills also with the Ampere-style tile kernel (bench_prefill --schedule).
    """
    every = [*prefill_dense(), *prefill_paged(), *decode(), *steps()]
    specs = [case.spec(arch) for case in every]
    specs += [case.spec(arch, "ampere_tile") for case in prefill_dense()]
    return list({spec.name: spec for spec in specs}.values())
