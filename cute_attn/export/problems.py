"""Which kernel serves which step: `cute_attn.api.dispatch`, asked for all lengths and written down.

A choice depends on the packed rows of the longest request, the tiles per SM and whether keys are
long. Numbers above the last limits of the tile tables all have the same answer, so few are asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from cute_attn import ampere, hopper
from cute_attn.api.dispatch import FEW_TILES, MOST_ROWS, choose
from cute_attn.api.dispatch import Problem as Asked
from cute_attn.codegen.kernels import range_tables
from cute_attn.codegen.spec import LATENT_DIMS, KernelSpec
from cute_attn.export.errors import BundleError
from cute_attn.export.host_text import limit_text, scale_texts
from cute_attn.export.manifest import Choice, Problem, Scalar
from cute_attn.runtime.device import capability_of

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """The kernel of steps within limits; None: no limit."""

    long: bool
    most_rows: int | None
    most_tiles: int | None
    spec: KernelSpec


def cells_of(asked: Asked, schedule: str | None = None) -> list[Cell]:
    """The kernels of all steps, by limits that rise; the first cell that holds a step is its.

    Raises:
        UnsupportedSpecError: there is no kernel.
        BundleError: the variant needs a kernel ahead of the attention, rows are latent, or every
            KV head has tables of its own.
    """
    if range_tables(asked.variant):
        raise BundleError(
            f"variant {asked.variant.name!r} has a mask that reads tensors and skips blocks by"
            " their ranges; bundles do not hold the kernel that finds these"
        )
    if (asked.head_dim_qk, asked.head_dim_vo) == LATENT_DIMS:
        raise BundleError(
            f"head_dim_qk is {asked.head_dim_qk} and head_dim_vo {asked.head_dim_vo}; bundles have"
            " no recipe for the two tensor maps of latent rows"
        )
    if asked.per_head:
        raise BundleError(
            "a problem has per_head True; bundles hold kernels and a planner for requests whose KV"
            " heads have one page table"
        )
    cells: list[Cell] = []
    for long in (False, True):
        columns = []
        for rows in range(1, MOST_ROWS + 2):
            column = [
                choose(asked, rows=rows, tiles_per_sm=tiles, long=long, schedule=schedule)
                for tiles in range(FEW_TILES + 2)
            ]
            columns.append((rows, tuple(_limits(list(enumerate(column)), FEW_TILES + 1))))
        for most_rows, column_cells in _limits(columns, MOST_ROWS + 1):
            cells += [Cell(long, most_rows, tiles, spec) for tiles, spec in column_cells]
    return cells


def _limits(numbered: list[tuple[int, T]], last: int) -> list[tuple[int | None, T]]:
    """Neighbours with the same answer as one, under the largest number that has it."""
    runs = [list(run) for _, run in groupby(numbered, key=lambda pair: pair[1])]
    return [(None if run[-1][0] == last else run[-1][0], run[-1][1]) for run in runs]


def problem_entry(asked: Asked, schedule: str | None, cells: list[Cell]) -> Problem:
    """The entry of a manifest.

    Raises:
        BundleError: what the host computes of the variant's scalars cannot be written down.
    """
    variant = asked.variant
    major, minor, _ = capability_of(asked.arch)
    sm_scale, scale_log2 = scale_texts(variant)
    return Problem(
        arch=asked.arch,
        capability=(major, minor),
        dtype=asked.dtype,
        head_dim_qk=asked.head_dim_qk,
        head_dim_vo=asked.head_dim_vo,
        group=asked.group,
        variant=variant.name,
        page_size=asked.page_size,
        schedule=schedule,
        scalars=tuple(
            Scalar(s.name, s.kind, float(s.default), s.live, s.comment) for s in variant.scalars
        ),
        window_left=limit_text(variant.band.left),
        window_right=limit_text(variant.band.right),
        sm_scale=sm_scale,
        scale_log2=scale_log2,
        decode_rows=ampere.DECODE_ROWS,
        long_keys=hopper.long_keys(asked.head_dim_qk, asked.head_dim_vo, variant),
        choices=tuple(Choice(c.long, c.most_rows, c.most_tiles, c.spec.name) for c in cells),
    )
