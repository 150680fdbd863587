"""The kernels compile without spills on every architecture, to the instructions that were meant."""

from __future__ import annotations

import itertools

import pytest

from cute_attn import ampere
from cute_attn.ampere.tiles import register_limit
from cute_attn.codegen.spec import KernelSpec
from cute_attn.codegen.vector_hooks import is_heavy, turns_bytes
from cute_attn.runtime import CompiledKernel, CompileRequest, build_kernel, count_opcodes
from cute_attn.variants import (
    Variant,
    attention_sinks,
    causal,
    full,
    qk_norm,
    rope,
    sigmoid_attention,
    sliding_window,
    soft_cap,
    streaming_llm,
)
from tests.ampere.specs import ARCHS, HEAD_DIMS, SCHEDULES, even_keys, make_spec, sinks


def build(spec: KernelSpec) -> CompiledKernel:
    kernel = ampere.emit(spec)
    return build_kernel(CompileRequest(kernel.text, kernel.name, kernel.arch, kernel.include_dirs))


def assert_clean(spec: KernelSpec) -> CompiledKernel:
    """No spills, no stack frame, and few enough registers for the blocks per SM of the table."""
    kernel = build(spec)
    assert kernel.resources.lint() == []
    assert kernel.resources.stack_bytes == 0
    assert kernel.resources.registers <= register_limit(spec.tile)
    return kernel


DOUBLED = Variant("doubled", output=lambda out, b, h, q_idx, d: 2 * out)
ON_ROWS = causal() & attention_sinks() & DOUBLED
WEIGHTS = causal() & sigmoid_attention(4096)

REPRESENTATIVE = [
    make_spec("ampere_tile", arch="sm_80", loader="paged", group=4),
    make_spec("ampere_tile", arch="sm_89", dtype="fp16", head_dim=64, variant=full()),
    make_spec("ampere_tile", arch="sm_90", head_dim=256, variant=causal() & sliding_window()),
    make_spec("ampere_decode", arch="sm_86", loader="paged", group=5),
    make_spec("ampere_decode", arch="sm_90", dtype="fp16", head_dim=256, variant=full()),
    make_spec("ampere_decode", arch="sm_80", loader="paged", group=4, fixed_pieces=True),
    make_spec("ampere_tile", arch="sm_80", loader="paged", group=4, variant=WEIGHTS),
    make_spec("ampere_tile", arch="sm_80", head_dim=64, group=4, variant=ON_ROWS),
    make_spec("ampere_decode", arch="sm_90", loader="paged", group=4, variant=ON_ROWS),
    make_spec("ampere_decode", arch="sm_80", group=4, variant=WEIGHTS & DOUBLED, fixed_pieces=True),
    make_spec("ampere_tile", arch="sm_80", loader="paged", group=4, variant=sinks()),
    make_spec("ampere_decode", arch="sm_90", loader="paged", group=4, variant=sinks()),
]
MATRIX = [
    make_spec(
        schedule, arch=arch, dtype=dtype, head_dim=head_dim, loader=loader, variant=variant, group=4
    )
    for schedule, arch, dtype, head_dim, loader, variant in itertools.product(
        SCHEDULES, ARCHS, ("bf16", "fp16"), HEAD_DIMS, ("ragged", "paged"), (full(), causal())
    )
]
FIXED_PIECES = [
    make_spec(
        "ampere_decode",
        arch=arch,
        head_dim=head_dim,
        loader=loader,
        group=4,
        tile=ampere.tiles(arch, "ampere_decode", head_dim, rows),
        fixed_pieces=True,
    )
    for arch, head_dim, loader, rows in itertools.product(
        ("sm_86", "sm_90"), HEAD_DIMS, ("ragged", "paged"), (8, 16)
    )
]
DECODE_TILES = [
    make_spec(
        "ampere_decode",
        arch=arch,
        head_dim=head_dim,
        loader=loader,
        group=4,
        tile=ampere.tiles(arch, "ampere_decode", head_dim, rows, tiles_per_sm=tiles),
    )
    for arch, head_dim, loader, (rows, tiles) in itertools.product(
        ("sm_86", "sm_90"),
        HEAD_DIMS,
        ("ragged", "paged"),
        ((8, None), (8, 1), (8, 4), (16, 1), (16, 4)),
    )
]
FURTHER_VARIANTS = [
    make_spec(schedule, arch=arch, head_dim=head_dim, loader="paged", variant=variant)
    for schedule, arch, head_dim, variant in itertools.product(
        SCHEDULES,
        ("sm_80", "sm_86", "sm_90"),
        HEAD_DIMS,
        (causal() & sliding_window(), causal() & soft_cap(), even_keys(), ON_ROWS, WEIGHTS),
    )
]
SKIPPING = [
    make_spec(schedule, arch=arch, head_dim=head_dim, loader=loader, group=4, variant=sinks())
    for schedule, arch, head_dim, loader in itertools.product(
        SCHEDULES, ("sm_80", "sm_86", "sm_90"), HEAD_DIMS, ("ragged", "paged")
    )
    # With launches that overlap it spills up to 100 bytes.
    if (schedule, arch, head_dim) != ("ampere_tile", "sm_90", 128)
]


WITH_VECTORS = [
    make_spec(
        schedule,
        arch=arch,
        head_dim=head_dim,
        loader=loader,
        group=4,
        variant=variant,
        tile=ampere.tiles(
            arch,
            schedule,
            head_dim,
            8,
            turns=turns_bytes(variant, head_dim, head_dim),
            heavy=is_heavy(variant, head_dim, head_dim),
        ),
    )
    for schedule, arch, head_dim, (loader, variant) in itertools.product(
        SCHEDULES,
        ("sm_80", "sm_86", "sm_90"),
        HEAD_DIMS,
        (
            ("paged", causal() & rope()),
            ("ragged", streaming_llm()),
            ("paged", causal() & qk_norm() & rope(layout="interleaved", rotary_dim=32)),
        ),
    )
]


@pytest.mark.parametrize("spec", REPRESENTATIVE, ids=lambda s: s.name)
def test_compiles_clean(spec: KernelSpec) -> None:
    assert_clean(spec)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    list(dict.fromkeys(MATRIX + DECODE_TILES + FIXED_PIECES + SKIPPING)),
    ids=lambda s: s.name,
)
def test_matrix_compiles_clean(spec: KernelSpec) -> None:
    assert_clean(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", FURTHER_VARIANTS, ids=lambda s: s.name)
def test_further_variants_hardly_spill(spec: KernelSpec) -> None:
    hardly_spills(spec)


def hardly_spills(spec: KernelSpec) -> None:
    # Tiles of head_dim 128 use every register (128 output, 64 scores). Masks with more arguments
    # than causal's may push a few addresses out of them.
    resources = build(spec).resources
    allowed = {("ampere_tile", 128): 16}
    assert resources.spill_store_bytes <= allowed.get((spec.schedule, spec.head_dim_qk), 0)
    assert resources.registers <= register_limit(spec.tile)


def test_vector_hooks_compile_clean() -> None:
    for spec in (s for s in WITH_VECTORS if s.arch == "sm_80" and s.head_dim_qk == 128):
        hardly_spills(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", WITH_VECTORS, ids=lambda s: s.name)
def test_vector_hooks_hardly_spill(spec: KernelSpec) -> None:
    hardly_spills(spec)


@pytest.mark.parametrize("spec", REPRESENTATIVE[:6:3], ids=lambda s: s.name)
def test_sass_is_what_was_meant(spec: KernelSpec) -> None:
    opcodes = count_opcodes(build(spec).sass)
    assert opcodes["LDGSTS"] > 0  # cp.async
    assert opcodes["LDSM"] > 0  # ldmatrix
    assert opcodes["HMMA"] > 0  # mma.sync
    assert "LDL" not in opcodes and "STL" not in opcodes
    # In the masked and the unmasked copy of the loop body: for each eight query rows and sixteen
    # keys, 8 k steps of K Q^T and 8 column tiles of V^T P^T. The tile schedule: 8 k steps of Q K^T,
    # of which 4 are in the text (it rolls the panels), and tile_kv / 16 of P V.
    if spec.schedule == "ampere_decode":
        assert opcodes["HMMA"] == 2 * (spec.tile.q // 8) * (8 + 8)
    else:
        assert opcodes["HMMA"] == 2 * 2 * (4 * 8 + 4 * 16)
