"""Merge, merge_states and append: structure of the text, clean compiles, exact RoPE steps."""

from __future__ import annotations

import decimal
import itertools
import re

import numpy as np
import pytest

from cute_attn.codegen.kernels import (
    emit_append,
    emit_copy_rows,
    emit_merge,
    emit_merge_rows,
    emit_merge_states,
    merge_grid,
    merge_states_grid,
    rope_steps,
)
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import UnsupportedSpecError
from cute_attn.runtime import CompileRequest, compile_source

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")
DIMS = (64, 128, 256)


def kernels() -> list[GeneratedKernel]:
    made = [
        emit_merge(arch, dtype, dim, tile_q, group)
        for arch, dtype, dim, (tile_q, group) in itertools.product(
            ARCHS, ("bf16", "fp16"), DIMS, ((16, 4), (64, 7), (128, 1))
        )
    ]
    made += [
        emit_merge_states(arch, dtype, dim)
        for arch, dtype, dim in itertools.product(ARCHS, ("bf16", "fp16", "fp32"), DIMS)
    ]
    made += [
        emit_merge_rows(arch, dtype, dim)
        for arch, dtype, dim in itertools.product(ARCHS, ("bf16", "fp16"), DIMS)
    ]
    made += [emit_copy_rows(arch, dim) for arch, dim in itertools.product(ARCHS, DIMS)]
    made += [
        emit_append(arch, dtype, dim, dim, rope)
        for arch, dtype, dim, rope in itertools.product(
            ARCHS, ("bf16", "fp16"), DIMS, (None, "half_split", "interleaved")
        )
    ]
    return made


def everyday() -> list[GeneratedKernel]:
    """Every kind and dtype, on one architecture of each family."""
    return [
        emit_merge("sm_90a", "bf16", 128, 128, 4),
        emit_merge("sm_80", "fp16", 64, 16, 7),
        emit_merge("sm_90", "bf16", 256, 16, 1),
        emit_merge_states("sm_86", "fp32", 128),
        emit_merge_states("sm_90a", "fp16", 192),
        emit_merge_states("sm_90", "bf16", 112),
        emit_merge_rows("sm_90", "bf16", 128),
        emit_merge_rows("sm_80", "fp16", 80),
        emit_copy_rows("sm_90", 192),
        emit_copy_rows("sm_86", 64),
        emit_append("sm_90a", "bf16", 128, 128),
        emit_append("sm_80", "fp16", 192, 128, "half_split"),
        emit_append("sm_90", "bf16", 80, 80, "half_split"),
        emit_append("sm_89", "bf16", 64, 64, "interleaved"),
    ]


def compile_clean(kernel: GeneratedKernel) -> None:
    compiled = compile_source(
        CompileRequest(kernel.text, kernel.name, kernel.arch, kernel.include_dirs)
    )
    assert compiled.lint() == []
    assert compiled.resources.warnings == ()
    # Latency-bound kernels: many blocks must fit on an SM.
    assert compiled.resources.registers <= 64


@pytest.mark.parametrize("kernel", everyday(), ids=lambda k: k.name)
def test_compiles_without_spills_or_warnings(kernel: GeneratedKernel) -> None:
    compile_clean(kernel)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: k.name)
def test_the_whole_matrix_compiles(kernel: GeneratedKernel) -> None:
    compile_clean(kernel)


def test_names_tell_kernels_apart_and_text_is_deterministic() -> None:
    first, second = kernels(), kernels()
    assert first == second
    assert len({k.name for k in first}) == len(first)
    assert all(f"{k.name}(const __grid_constant__ Params params)" in k.text for k in first)
    assert all(k.threads <= 256 and k.threads % 8 == 0 for k in first)


def test_only_the_code_that_is_used() -> None:
    plain = emit_append("sm_90", "bf16", 128, 128)
    assert "rope" not in plain.text and "rotate" not in plain.text
    assert not any(f.name == "rope_steps" for f in plain.params.fields)
    for style in ("half_split", "interleaved"):
        assert (
            emit_append("sm_90", "bf16", 128, 128, style).text.count("CUTE_DEVICE void rotate") == 1
        )


@pytest.mark.parametrize("dim", [8, 64, 72, 80, 96, 112, 128, 192, 256, 512])
@pytest.mark.parametrize("tile_q", [16, 64, 128, 192])
def test_merge_threads_cover_every_row_once(dim: int, tile_q: int) -> None:
    kernel = emit_merge("sm_90", "bf16", dim, tile_q, 4)
    constant = {n: int(v) for n, v in re.findall(r"constexpr int k(\w+) = (\d+);", kernel.text)}
    assert constant["Lanes"] * constant["Vectors"] * 4 == dim
    rows = constant.get("Rows", 1)
    assert kernel.threads == constant["Lanes"] * rows
    grid = merge_grid(dim, tile_q, 264)
    assert grid[0] == 264 and (grid[1] - 1) * rows < tile_q
    # What one pass of the grid does not cover, the loop does.
    assert "first += gridDim.y * kRows" in kernel.text


def test_only_hopper_merges_are_dependent_launches() -> None:
    for arch, expected in (("sm_80", False), ("sm_89", False), ("sm_90", True), ("sm_90a", True)):
        kernel = emit_merge(arch, "bf16", 128, 16, 4)
        assert kernel.dependent_launch is expected
        assert ("wait_for_predecessor" in kernel.text) is expected


def test_merge_states_grid_covers_every_row() -> None:
    rows = int(re.findall(r"kRows = (\d+)", emit_merge_states("sm_90", "bf16", 128).text)[0])
    for count in (1, rows, rows + 1, 10_000):
        assert (merge_states_grid(128, count)[0] - 1) * rows < count
        assert merge_states_grid(128, count)[0] * rows >= count


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: emit_merge("sm_75", "bf16", 128, 16, 4), "arch is 'sm_75'; known: sm_80"),
        (lambda: emit_merge("sm_80", "fp32", 128, 16, 4), "dtype is 'fp32'; known: bf16, fp16"),
        (lambda: emit_merge("sm_80", "bf16", 100, 16, 4), "head_dim_vo is 100.*multiple of 8"),
        (lambda: emit_merge_states("sm_80", "fp8", 128), "dtype is 'fp8'"),
        (lambda: emit_append("sm_80", "bf16", 1024, 128), "head_dim_qk is 1024"),
    ],
)
def test_refuses_with_reasons(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(UnsupportedSpecError, match=message):
        call()


def test_rope_style_is_checked() -> None:
    with pytest.raises(ValueError, match="rope is 'neox'; it takes None"):
        emit_append("sm_80", "bf16", 128, 128, "neox")
    with pytest.raises(ValueError, match="head_dim_qk % 16"):
        emit_append("sm_80", "bf16", 72, 72, "half_split")


@pytest.mark.parametrize(("theta", "scale"), [(10000.0, 1.0), (500000.0, 1.0), (1e6, 8.0)])
def test_rope_angles_are_exact_at_a_million_positions(theta: float, scale: float) -> None:
    """The integer phase against 40 decimal digits; a float32 product would be off by 0.06 rad."""
    head_dim = 128
    steps = rope_steps(head_dim, rope_theta=theta, rope_scale=scale)
    with decimal.localcontext() as context:
        context.prec = 40
        two_pi = 2 * decimal.Decimal("3.141592653589793238462643383279502884197")
        for pair in (0, 1, 17, 63):
            exponent = decimal.Decimal(-2 * pair) / head_dim
            frequency = decimal.Decimal(theta) ** exponent / decimal.Decimal(scale)
            for position in (0, 1, 4095, 131_071, 1_000_000):
                turns = position * frequency / two_pi
                phase = (int(steps[pair]) * position) % (1 << 64)  # as the kernel computes it
                error = (decimal.Decimal(phase) / (1 << 64) - turns % 1) % 1
                error = min(error, 1 - error)
                assert float(error * two_pi) < 2e-9


def test_rope_steps_are_one_turn_fractions() -> None:
    steps = rope_steps(64)
    assert steps.shape == (32,) and steps.dtype == np.uint64
    assert (np.diff(steps.astype(np.float64)) < 0).all()  # frequencies fall
    np.testing.assert_allclose(steps[0] / 2**64 * 2 * np.pi, 1.0, rtol=1e-12)
