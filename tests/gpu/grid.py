"""The sampled grid of the GPU tests: which kernels, and which batches each of them gets.

Compiled axes (dtype, head_dim, group, variant, schedule, loader) are combined sparingly, each value
with several partners, because each combination is a kernel to compile. What is decided at run time
(page size, layout, strides, kind of table, lengths) is drawn freely with a fixed seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

LENGTHS = (0, 1, 2, 15, 16, 17, 97, 129, 1024, 5000)
PAGE_SIZES = (1, 3, 16, 64)
VARIANTS = ("causal", "full", "window", "soft_cap", "causal_window", "causal_soft_cap")
WINDOWS = (0, 5, 100, 1000)
MEMORY = ("packed", "combined", "strided")
LAYOUTS = ("NHD", "HND")
AMPERE_DIMS = (64, 128, 256)
SMALL_ROWS = 16  # packed query rows of a decode tile
CUT = 129  # longest length on the CPU and under sanitizers


@dataclass(frozen=True)
class Family:
    """What kernels of all schedules share, and their merge kernels with them."""

    dtype: str
    head_dim: int
    group: int
    head_dim_vo: int

    @property
    def is_hopper_only(self) -> bool:
        """The Ampere schedules have no kernels for these head dims."""
        return self.head_dim not in AMPERE_DIMS or self.head_dim_vo != self.head_dim

    def __str__(self) -> str:
        vo = f"x{self.head_dim_vo}" if self.head_dim_vo != self.head_dim else ""
        return f"{self.dtype} d{self.head_dim}{vo} g{self.group}"


def _family(dtype: str, head_dim: int, group: int, head_dim_vo: int = 0) -> Family:
    return Family(dtype, head_dim, group, head_dim_vo or head_dim)


FAMILIES = (
    _family("bf16", 128, 4),
    _family("fp16", 64, 2),
    _family("bf16", 256, 5),
    _family("bf16", 128, 1),
    _family("fp16", 128, 3),
    _family("bf16", 64, 7),
    _family("bf16", 128, 8),
    _family("fp16", 256, 2),
    _family("fp16", 64, 4),
    _family("bf16", 256, 16),
    _family("fp16", 128, 16),
    # For hopper_tile only. The two families of a pair of head dims are an odd multiple of three
    # apart: so they meet all six variants.
    _family("bf16", 80, 4),
    _family("fp16", 96, 2),
    _family("bf16", 112, 1),
    _family("fp16", 80, 16),
    _family("bf16", 96, 8),
    _family("fp16", 112, 7),
    _family("bf16", 192, 4),
    _family("fp16", 192, 1, 128),
    _family("bf16", 192, 16, 128),
    _family("fp16", 192, 5),
    _family("bf16", 192, 3, 128),
)


@dataclass(frozen=True)
class Role:
    """A schedule with one way to address KV: `page_sizes` to draw from, 0 = ragged."""

    schedule: str
    page_sizes: tuple[int, ...]


def roles(at: int) -> tuple[Role, ...]:
    """The kernels of family number `at`: its three of Hopper, and three of Ampere (ampere_tile gets
    one of its two loaders)."""
    if FAMILIES[at].is_hopper_only:
        return tuple(Role("hopper_tile", sizes) for sizes in ((16, 64), (0,), (1, 3)))
    return (
        Role("hopper_tile", (16, 64)),
        Role("ampere_decode", (1, 3, 16, 64)),
        Role("hopper_tile", (0,)),
        Role("hopper_tile", (1, 3)),
        Role("ampere_decode", (0,)),
        Role("ampere_tile", (0,) if at % 2 else PAGE_SIZES),
    )


# Batches that a schedule meets; see `_requests`.
BATCHES = {
    "hopper_tile": ("mixed", "prefill", "long_kv", "square", "decode"),
    "ampere_tile": ("mixed", "prefill", "long_kv", "square", "decode"),
    "ampere_decode": ("decode", "few_tokens", "long_kv_decode", "many", "mixed"),
}


@dataclass(frozen=True)
class Case:
    """One batch on one kernel.

    Attributes:
        family: dtype, head_dim and group.
        schedule: kernel family that must serve the batch.
        variant: of VARIANTS.
        page_size: tokens per page; 0 = ragged.
        table: "ragged", "csr", "block_tables" or "bsr".
        device_table: page numbers live on the device.
        memory: "packed", "combined" (one tensor for K and V) or "strided" (K and V strides differ,
            q is a slice of a fused QKV, out a slice of a larger tensor).
        layout: "NHD" or "HND".
        batch: kind of batch.
        lse: ask for the lse.
        num_kv_heads: KV heads.
        window_left, soft_cap: scalars of the variant.
        seed: of lengths and data.
    """

    family: Family
    schedule: str
    variant: str
    page_size: int
    table: str
    device_table: bool
    memory: str
    layout: str
    batch: str
    lse: bool
    num_kv_heads: int
    window_left: int
    soft_cap: float
    seed: int

    @property
    def num_qo_heads(self) -> int:
        return self.num_kv_heads * self.family.group

    def __str__(self) -> str:
        where = "ragged" if self.page_size == 0 else f"p{self.page_size} {self.table}"
        if self.device_table:
            where += " device"
        extra = f" w{self.window_left}" if "window" in self.variant else ""
        return (
            f"{self.schedule} {self.family} {self.variant}{extra} {where} {self.memory}"
            f" {self.layout} {self.batch} kv_heads{self.num_kv_heads} #{self.seed}"
        )

    def requests(self, longest: int = LENGTHS[-1]) -> list[tuple[int, int]]:
        """(q_len, kv_len) of every request, lengths of at most `longest`; not for "bsr"."""
        return _requests(random.Random(self.seed), self.batch, self.family.group, longest)

    def bsr(self) -> tuple[int, int, list[list[int]]]:
        """(rows per block row, column blocks, sorted column blocks of every block row)."""
        rng = random.Random(self.seed)
        small = self.schedule == "ampere_decode"
        rows = max(1, SMALL_ROWS // self.family.group) if small else rng.choice((20, 64, 130))
        columns = max(4, 640 // self.page_size)
        counts = [0, 1, columns, *(rng.randint(0, columns) for _ in range(4))]
        rng.shuffle(counts)
        return rows, columns, [sorted(rng.sample(range(columns), n)) for n in counts]


def _requests(rng: random.Random, batch: str, group: int, longest: int) -> list[tuple[int, int]]:
    lengths = [n for n in LENGTHS if n <= longest]
    short = [n for n in lengths if n <= 1024]
    most = max(1, SMALL_ROWS // group)  # query tokens of a decode tile
    decodes = [(1, rng.choice(lengths)) for _ in range(12)]
    if batch == "decode":
        return decodes
    if batch == "few_tokens":
        return [(rng.randint(0, most), rng.choice(lengths)) for _ in range(10)]
    if batch == "long_kv_decode":  # far more blocks than tiles: KV is split
        return [(most, longest), (1, rng.choice(lengths))]
    if batch == "many":  # far more tiles than blocks
        return [(1, rng.choice(short)) for _ in range(200)]
    if batch == "long_kv":
        return [(max(17, rng.choice(short)), longest), (rng.choice(short), rng.choice(lengths))]
    if batch == "square":
        return [(n, n) for n in rng.sample(short, min(4, len(short)))] + [(longest, longest)]
    if batch == "prefill":  # any pair of lengths: empty requests, and more queries than keys
        return [(rng.choice(short), rng.choice(lengths)) for _ in range(7)] + [(129, 97)]
    assert batch == "mixed"
    chunks = [(rng.choice((17, 97, 129)), rng.choice(lengths)) for _ in range(2)]
    requests = [*decodes, *chunks, (97, 129), (0, 17), (1, 0), (0, 0), (17, 2)]
    rng.shuffle(requests)
    return requests


def _cases() -> list[Case]:
    rng = random.Random(20261129)
    decks: dict[tuple[object, ...], list[int]] = {}

    def draw(values: tuple[T, ...]) -> T:
        """One of `values`: from shuffled decks, so that none is left out."""
        deck = decks.setdefault(values, [])
        if not deck:
            deck.extend(range(len(values)))
            rng.shuffle(deck)
        return values[deck.pop()]

    cases = []
    for at, family in enumerate(FAMILIES):
        for turn, role in enumerate(roles(at)):
            variant = VARIANTS[(at + turn) % len(VARIANTS)]
            # Without a mask the same kernel also serves block-sparse rows.
            tables: tuple[str, ...] = ("csr", "block_tables")
            if variant in ("full", "soft_cap"):
                tables = (*tables, "bsr")
            for batch in BATCHES[role.schedule]:
                page_size = draw(role.page_sizes)
                table = draw(tables) if page_size else "ragged"
                memory = draw(MEMORY)
                in_two = table in ("ragged", "bsr") or family.head_dim_vo != family.head_dim
                if memory == "combined" and in_two:
                    memory = "packed"
                cases.append(
                    Case(
                        family=family,
                        schedule=role.schedule,
                        variant=variant,
                        page_size=page_size,
                        table=table,
                        device_table=bool(page_size) and rng.random() < 0.4,
                        memory=memory,
                        layout=draw(LAYOUTS),
                        batch=batch,
                        lse=rng.random() < 0.8,
                        num_kv_heads=rng.choice((1, 2, 3)) if family.group <= 5 else 1,
                        window_left=draw(WINDOWS),
                        soft_cap=rng.choice((5.0, 30.0)),
                        seed=len(cases),
                    )
                )
    return cases


CASES = _cases()
