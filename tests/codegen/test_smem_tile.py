"""The one definition of the shared-memory tiles: against CuTe's layout algebra and the C++ text."""

from __future__ import annotations

import pytest
from pycute.swizzle import Swizzle

from cute_attn import hopper
from cute_attn.codegen.smem_tile import (
    ELEMENT_BYTES,
    SmemTile,
    padded_columns,
    panel_columns,
)
from cute_attn.runtime import CompileRequest, compile_source

SHAPES = [(16, 64), (80, 256), (128, 128), (16, 32), (96, 96), (192, 96)]


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_offsets_are_cutes_swizzle_of_row_major_panels(rows: int, columns: int) -> None:
    tile = SmemTile(rows, columns)
    swizzle = Swizzle(3 if tile.panel == 64 else 2, 4, 3)
    row_bytes, seen = tile.panel * ELEMENT_BYTES, set()
    for row in range(rows):
        for column in range(columns):
            panel, inner = divmod(column, tile.panel)
            linear = (panel * rows + row) * row_bytes + inner * ELEMENT_BYTES
            assert tile.offset(row, column) * ELEMENT_BYTES == swizzle(linear)
            seen.add(tile.offset(row, column))
    assert len(seen) == rows * columns and max(seen) * ELEMENT_BYTES < tile.bytes


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_by_groups_the_units_are_in_the_other_order(rows: int, columns: int) -> None:
    tile, one = SmemTile(rows, columns, by_groups=True), SmemTile(8, columns)
    for row in range(rows):
        for column in range(columns):
            group, inside = divmod(row, 8)
            assert tile.offset(row, column) == group * 8 * columns + one.offset(inside, column)


def test_panels_begin_where_the_pattern_does() -> None:
    for rows, columns in SHAPES:
        for by_groups in (False, True):
            tile = SmemTile(rows, columns, by_groups)
            pattern = 8 * tile.panel * ELEMENT_BYTES
            assert tile.panel_bytes % pattern == tile.group_bytes % pattern == 0
            assert tile.bytes % 1024 == 0  # as kernels align tiles: the next one may follow at once


def test_eight_rows_of_a_column_of_pieces_cover_all_banks() -> None:
    for columns in (64, 96):
        tile = SmemTile(16, columns)
        for column in range(0, columns, 8):
            banks = {tile.offset(row, column) * ELEMENT_BYTES // 4 % 32 // 4 for row in range(8)}
            assert len(banks) == 8


@pytest.mark.parametrize(("rows", "columns"), [(12, 64), (8, 48), (8, 112), (0, 64), (8, 0)])
def test_other_shapes_are_refused(rows: int, columns: int) -> None:
    with pytest.raises(ValueError, match="multiples"):
        SmemTile(rows, columns)


def test_padding_is_to_whole_panels() -> None:
    padded = [padded_columns(n) for n in (1, 64, 80, 96, 112, 128, 192)]
    assert padded == [32, 64, 96, 96, 128, 128, 192]


def row_copy_checks(rows: int = 80, columns: int = 128, threads: int = 64) -> list[str]:
    """RowCopy: every piece of the tile is written once, in place, from its own row."""
    tile, copy = SmemTile(rows, columns), f"RowCopy<{rows}, {columns}, {threads}>"
    checks, seen = [f"{copy}::kPasses == {rows * 8 // threads}"], set()
    lines = -(-columns // 64)  # of 64 columns, the last one perhaps not whole
    for number in range(rows * lines * 8):
        place, thread = divmod(number, threads)
        piece_pass, chunk = divmod(place, lines)
        row = piece_pass * threads // 8 + thread // 8
        column = 64 * chunk + 8 * (thread % 8)
        if column >= columns:
            continue
        seen.add((row, column))
        want = tile.offset(row, column)
        checks.append(f"{copy}::place({piece_pass}, {chunk}, {thread}) == {want}")
        # The address comes by a shuffle among eight lanes.
        owner = thread // 8 * 8 + piece_pass % 8
        checks.append(f"{copy}::own_row({piece_pass // 8}, {owner}) == {row}")
    assert len(seen) == rows * columns // 8
    return checks


def test_hopper_headers_hold_the_same_arithmetic() -> None:
    """Compiled, not run: a wrong number is a failing static_assert."""
    checks = []
    for rows, columns in SHAPES:
        tile = SmemTile(rows, columns)
        for row in (0, 1, 5, 7, rows - 1):
            for piece in range(columns // 8):
                want = tile.offset(row, piece * 8)
                checks.append(f"swizzled_offset<{rows}, {tile.panel}>({row}, {piece}) == {want}")
        for layout in ("ByPanels", "ByGroups"):
            tile = SmemTile(rows, columns, layout == "ByGroups")
            name = f"{layout}<{rows}, {columns}>"
            checks.append(f"{name}::kPanelBytes == {tile.panel_bytes}")
            checks.append(f"{name}::kGroupBytes == {tile.group_bytes}")
            for step in range(columns // 16):
                want = 2 * tile.wgmma_k_step(step, k_major=True)  # bytes
                checks.append(f"k_major_step<{name}>({step}) == {want}")
            for step in range(rows // 16):
                want = 2 * tile.wgmma_k_step(step, k_major=False)
                checks.append(f"mn_major_step<{name}>({step}) == {want}")
    for columns in (8, 64, 80, 96, 112, 128, 192):
        checks.append(f"kPanelColumns<{columns}> == {panel_columns(columns)}")
        checks.append(f"kTileElements<16, {columns}> == {16 * padded_columns(columns)}")
    checks += row_copy_checks() + row_copy_checks(columns=96)
    asserts = "\n".join(f"static_assert({check});" for check in checks)
    source = f"""
#include <cute_attn/hopper/tile_copy.hpp>
#include <cute_attn/hopper/wgmma.hpp>
namespace cute_attn {{
{asserts}
}}
extern "C" __global__ void nothing() {{}}
"""
    include_dirs = hopper.include_dirs()
    compile_source(CompileRequest(source, "nothing", "sm_90a", include_dirs))
    wrong = source.replace(f"== {SmemTile(16, 64).offset(1, 0)});", "== 0);", 1)
    with pytest.raises(Exception, match="static assertion failed"):
        compile_source(CompileRequest(wrong, "nothing", "sm_90a", include_dirs))
