"""Layout of the kernels' shared-memory tiles, defined once.

A tile of R rows and D columns of 16-bit elements is stored as D / 64 panels, one after the other: R
rows of 64 columns, 128 bytes each. Of the eight 16-byte pieces of row r, piece c lies at place
c ^ (r % 8): CuTe's Swizzle<3, 4, 3> on byte addresses. This is at once what a TMA box of 64 columns
with the 128-byte swizzle writes, what a `wgmma` descriptor with the 128-byte layout reads, and what
`ldmatrix` reads without bank conflicts.

Head dims that are no multiple of 64 have panels of 32 columns where those pad less (80, 96): piece
c of four at place c ^ (r / 2 % 4), Swizzle<2, 4, 3>, the 64-byte swizzle of TMA and `wgmma`.

By groups, the units of 8 rows x a panel are in the other order: all columns of eight rows, then the
next eight. So a TMA box can hold all columns of rows that are a part of the tile, which halves the
boxes of a paged tile of 128 columns.

Tensor maps take their boxes from here; `hopper/include/.../wgmma.hpp`, `tile_copy.hpp` and
`ampere/include/.../smem_tile.hpp` hold the same arithmetic in C++, compared in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT_BYTES = 2
PIECE_ELEMENTS = 16 // ELEMENT_BYTES
SWIZZLE_ROWS = 8  # after as many rows the pattern repeats


def panel_columns(columns: int) -> int:
    """Columns of a panel of a tile of `columns`; in bytes, the span of the swizzle."""
    return 64 if columns % 64 == 0 or columns % 64 > 32 else 32


def padded_columns(columns: int) -> int:
    """Columns that a tile of `columns` takes in shared memory: whole panels."""
    return -(-columns // panel_columns(columns)) * panel_columns(columns)


@dataclass(frozen=True)
class SmemTile:
    """A (rows, columns) tile of 16-bit elements; columns is a multiple of 32, rows of 8."""

    rows: int
    columns: int
    by_groups: bool = False

    def __post_init__(self) -> None:
        if self.columns % self.panel or self.columns < 1:
            raise ValueError(f"columns is {self.columns}; it takes multiples of {self.panel}")
        if self.rows % SWIZZLE_ROWS or self.rows < 1:
            raise ValueError(f"rows is {self.rows}; it takes multiples of {SWIZZLE_ROWS}")

    @property
    def panel(self) -> int:
        """Columns of a panel."""
        return panel_columns(self.columns)

    @property
    def bytes(self) -> int:
        return self.rows * self.columns * ELEMENT_BYTES

    @property
    def panel_bytes(self) -> int:
        """Distance between panels: the leading byte offset of an MN-major wgmma operand."""
        return (SWIZZLE_ROWS if self.by_groups else self.rows) * self.panel * ELEMENT_BYTES

    @property
    def group_bytes(self) -> int:
        """Distance between groups of eight rows: the stride byte offset of a wgmma operand."""
        columns = self.columns if self.by_groups else self.panel
        return SWIZZLE_ROWS * columns * ELEMENT_BYTES

    def offset(self, row: int, column: int) -> int:
        """Element offset of (row, column)."""
        panel, inner = divmod(column, self.panel)
        piece, element = divmod(inner, PIECE_ELEMENTS)
        group, row = divmod(row, SWIZZLE_ROWS)
        unit = panel * self.panel_bytes + group * self.group_bytes
        pieces = self.panel // PIECE_ELEMENTS  # of a row
        place = row * pieces + (piece ^ row * pieces // SWIZZLE_ROWS)
        return unit // ELEMENT_BYTES + place * PIECE_ELEMENTS + element

    def wgmma_k_step(self, step: int, *, k_major: bool) -> int:
        """Element offset of the descriptor start for k-step `step` of 16.

        K-major operands (Q, K) step along the columns, MN-major ones (V) along the rows.
        """
        if not k_major:
            return step * 16 // SWIZZLE_ROWS * self.group_bytes // ELEMENT_BYTES
        panel, inner = divmod(step * 16, self.panel)
        return panel * self.panel_bytes // ELEMENT_BYTES + inner
