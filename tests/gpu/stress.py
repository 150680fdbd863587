"""Kernels and batches of the tests of synchronisation, and launches whose bits are compared.

The kernels differ in who waits for whom: how K, V and Q come, Q tiles, consumer warpgroups, loops.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import torch

from cute_attn import BatchAttention
from cute_attn.scheduler import ARRIVALS_BYTES
from tests.gpu.batches import DTYPES, Batch, variant_of
from tests.gpu.check import as_integers
from tests.gpu.grid import Case, Family
from tests.gpu.serving import serving_case

Requests = list[tuple[int, int]]


def case_of(
    dtype: str, dims: int | tuple[int, int], group: int, variant: str, page_size: int = 0
) -> Case:
    """A kernel; requests are given to `make_batch`. page_size 0: ragged."""
    qk, vo = (dims, dims) if isinstance(dims, int) else dims
    return replace(
        serving_case(page_size=page_size),
        family=Family(dtype, qk, group, vo),
        schedule="hopper_tile",
        variant=variant,
        num_kv_heads=4,
        window_left=100,
        soft_cap=20.0,
    )


RAGGED = case_of("bf16", 128, 4, "full")
PAGED = case_of("bf16", 128, 4, "causal", 16)
GATHER = case_of("bf16", 128, 4, "causal", 3)
WIDE = case_of("bf16", 256, 4, "causal")  # one Q tile: an item begins after the one before

CASES = (
    RAGGED,
    PAGED,
    GATHER,
    WIDE,
    case_of("bf16", 64, 1, "full"),  # three consumer warpgroups
    case_of("bf16", 128, 5, "causal"),  # Q by cp.async of three warps
    case_of("bf16", 128, 5, "causal", 3),  # Q by cp.async of two warps
    case_of("bf16", 256, 2, "full", 1),  # gather with one Q tile
    case_of("fp16", 64, 2, "causal_window", 16),  # three loops
    case_of("bf16", (192, 128), 1, "causal", 16),
    case_of("fp16", 128, 4, "causal_soft_cap", 16),
)


def decode_case(case: Case, **changes: Any) -> Case:
    """The same for ampere_decode."""
    return replace(case, schedule="ampere_decode", **changes)


DECODES = (
    decode_case(PAGED),
    decode_case(PAGED, num_kv_heads=32),  # more tiles than SMs: two blocks per SM
    decode_case(RAGGED, num_kv_heads=128),  # and three
    decode_case(RAGGED),
    decode_case(case_of("fp16", 64, 4, "causal_soft_cap", 3)),
    decode_case(case_of("bf16", 128, 5, "causal_window", 16)),  # two tiles of eight query rows
    decode_case(case_of("bf16", 256, 8, "causal")),
)


def _many() -> Requests:
    """Several items per block, empty ones among them."""
    rng = random.Random(3)
    lengths = (0, 1, 64, 129, 200, 300)
    return [(rng.choice(lengths), rng.choice((0, 1, 97, 128, 300, 700))) for _ in range(90)]


BATCHES: dict[str, Requests] = {
    "many items": _many(),
    # Few tiles: nearly all are split over several blocks, whose last one merges the pieces.
    "split": [(64, 5000), (17, 3000), (1, 0), (0, 17), (129, 700)],
    "mixed": [(1, 5000), (129, 1024), (0, 17), (1, 1), (97, 97), (17, 2), (1, 129), (5, 900)],
    # Several tiles per block, cut where one block's share of the keys ends.
    "line": [
        (600, 600), (400, 1500), (129, 1024), (300, 300), (97, 97), (64, 2900), (1, 5000),
        (1, 129), (5, 900), (0, 17), (17, 2), (1, 0), (200, 200),
    ],
    # No more than 64 packed rows: one consumer warpgroup. Split, and several per block.
    "few rows": [
        (12, 5000), (4, 3000), (1, 0), (0, 17), (9, 700), *[(3, 300), (1, 129), (7, 97)] * 40,
    ],
}  # fmt: skip


class Runs:
    """Launches of one planned batch into poisoned memory, compared with the first, on the device.

    Args:
        case: the kernel.
        batch: its tensors.
        at_once: launches that follow each other without anything between them.

    Attributes:
        wrapper: planned.
        out, lse: (q_tokens, heads, head_dim_vo) and (q_tokens, heads) of a launch.
    """

    def __init__(self, case: Case, batch: Batch, at_once: int = 1) -> None:
        options: dict[str, Any] = {
            "head_dim_vo": case.family.head_dim_vo,
            "dtype": DTYPES[case.family.dtype],
            "variant": variant_of(case.variant),
            "device": batch.q.device,
            "schedule": case.schedule,
        }
        sizes = (case.num_qo_heads, case.num_kv_heads, case.family.head_dim)
        size = BatchAttention(*sizes, **options).workspace_size(case.page_size or None)
        self._workspace = torch.empty(size, dtype=torch.uint8, device=batch.q.device)
        self.wrapper = BatchAttention(*sizes, **options, workspace=self._workspace)
        self.wrapper.plan(batch.qo_indptr, batch.kv_format, scalars=batch.scalars)
        self._batch = batch
        shape = (at_once, *batch.q.shape[:2])
        self._outs = batch.q.new_empty((*shape, case.family.head_dim_vo))
        self._lses = torch.empty(shape, dtype=torch.float32, device=batch.q.device)
        self._different = torch.zeros((), dtype=torch.int64, device=batch.q.device)

    @property
    def out(self) -> torch.Tensor:
        return self._outs[0]

    @property
    def lse(self) -> torch.Tensor:
        return self._lses[0]

    def launch(self, *, poison: bool = True) -> None:
        """Poisons outputs and partial results (not the counters, which are zero between launches),
        and launches `at_once` times."""
        if poison:
            self._outs.fill_(math.nan)
            self._lses.fill_(math.nan)
            self._workspace[ARRIVALS_BYTES:].fill_(0xFF)
        for out, lse in zip(self._outs, self._lses, strict=True):
            self.wrapper.run(self._batch.q, *self._batch.kv, out=out, lse=lse)

    def compare(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Counts elements whose bits are not those of `out` and `lse`; does not wait."""
        self._different += (as_integers(self._outs) != as_integers(out)).sum()
        self._different += (as_integers(self._lses) != as_integers(lse)).sum()

    @property
    def different(self) -> int:
        """Elements found different so far."""
        return int(self._different)
