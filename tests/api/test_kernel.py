"""Which kernel is chosen, and `build`, `warmup` and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import (
    BatchAttention,
    KernelSpec,
    Problem,
    RaggedKV,
    UnsupportedSpecError,
    build,
    causal,
    choose,
    full,
    sliding_window,
    supports,
    warmup,
)
from cute_attn.abi import UNBOUNDED
from cute_attn.api import dispatch
from cute_attn.api.kernel import _build, build_generated
from cute_attn.api.kernel_source import COMPILED
from cute_attn.codegen.kernels import emit_append, emit_merge
from cute_attn.runtime import CacheMissError, ToolchainError, forget_kernels


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and nothing in memory."""

    def forget() -> None:
        forget_kernels()
        _build.cache_clear()
        build_generated.cache_clear()

    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def problem(arch: str, page_size: int | None = 16, dim: int = 128, group: int = 4) -> Problem:
    return Problem(arch, "bf16", dim, dim, group, causal(), page_size)


@pytest.mark.parametrize(
    ("arch", "page_size", "rows", "expected"),
    [
        ("sm_90a", 16, None, ("sm_90a", "hopper_tile", "paged")),
        ("sm_90a", 40, None, ("sm_90a", "hopper_tile", "gather")),
        ("sm_90a", 1, None, ("sm_90a", "hopper_tile", "gather")),
        ("sm_90a", None, None, ("sm_90a", "hopper_tile", "ragged")),
        ("sm_90a", 16, 16, ("sm_90", "ampere_decode", "paged")),
        ("sm_90", None, None, ("sm_90", "ampere_tile", "ragged")),
        ("sm_80", 3, None, ("sm_80", "ampere_tile", "paged")),
        ("sm_86", 3, 16, ("sm_86", "ampere_decode", "paged")),
        ("sm_87", None, None, ("sm_86", "ampere_tile", "ragged")),
        ("sm_89", None, 16, ("sm_89", "ampere_decode", "ragged")),
    ],
)
def test_choice(
    arch: str, page_size: int | None, rows: int | None, expected: tuple[str, ...]
) -> None:
    spec = choose(problem(arch, page_size), rows=rows)
    assert (spec.arch, spec.schedule, spec.loader) == expected
    assert supports(spec) == []


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, None])
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"])
def test_every_supported_size_has_a_tile(arch: str, rows: int | None, dim: int) -> None:
    for tiles in (None, 1, 2, 4, 5):
        spec = choose(problem(arch, dim=dim), rows=rows, tiles_per_sm=tiles)
        assert supports(spec) == []
        if rows is not None and rows <= 16:
            assert (spec.schedule, spec.tile.q) == ("ampere_decode", 8 if rows <= 8 else 16)


def test_few_tiles_take_larger_blocks_where_there_are_some() -> None:
    def of(arch: str) -> list[KernelSpec]:
        own = problem(arch)
        return [choose(own, rows=4, tiles_per_sm=tiles) for tiles in (1, 2, 4, 5, None)]

    one, two, four, five, many = of("sm_90a")
    assert [spec.tile.blocks_per_sm for spec in (one, two, four, five)] == [1, 2, 2, 3]
    assert one.tile.threads > two.tile.threads > five.tile.threads
    assert two == four and five == many
    assert replace(one, tile=many.tile) == many
    assert len(set(of("sm_80"))) == 1


@pytest.mark.parametrize(
    ("q_len", "rows", "expected"),
    [
        ([1] * 16, 4, 1),  # 128 tiles on 132 SMs
        ([1] * 17, 4, 2),
        ([1] * 16 + [0] * 40, 8, 1),  # requests without queries have no tiles
        ([2] * 66, 16, 4),
        ([5] * 8, 20, 1),  # two tiles of 16 each
        ([5] * 9, 20, 2),
        ([0], 0, 0),
    ],
)
def test_tiles_per_sm(q_len: list[int], rows: int, expected: int) -> None:
    assert dispatch.tiles_per_sm(np.array(q_len), rows, 8, 132) == expected


def test_long_keys_take_another_tile_where_there_is_one() -> None:
    for variant in (causal(), causal() & sliding_window()):
        own = replace(problem("sm_90a", None, dim=64), variant=variant)
        *decodes, few, short, long = dispatch.all_specs(own)
        assert {spec.schedule for spec in decodes} == {"ampere_decode"}
        assert (few.schedule, few.tile.q) == ("hopper_tile", 64)
        assert (short.tile.q, long.tile.q) == (128, 192)
        assert replace(long, tile=short.tile) == short and supports(long) == []
    for other in (problem("sm_90a"), problem("sm_90a", 16, dim=64), problem("sm_80", None, dim=64)):
        tiles = [s for s in dispatch.all_specs(other) if s.schedule != "ampere_decode"]
        assert [spec.tile.q for spec in tiles] == ([64, 128] if other.arch == "sm_90a" else [128])


def test_few_rows_take_one_consumer() -> None:
    for dim in (64, 128, 256):
        rows = [choose(problem("sm_90a", dim=dim), rows=rows) for rows in (17, 64, 65, None)]
        assert [spec.schedule for spec in rows] == ["hopper_tile"] * 4
        assert [spec.tile.q for spec in rows] == [64, 64, 128, 128]
        assert [spec.tile.threads for spec in rows] == [256, 256, 384, 384]


@pytest.mark.parametrize(
    ("q_len", "kv_len", "band", "expected"),
    [
        ([1024], [2048], (UNBOUNDED, 0), True),
        ([1024], [2048], (UNBOUNDED, UNBOUNDED), True),
        ([1024], [2048], (1000, 0), False),  # a token sees 1,001 keys
        ([100, 1000], [100_000, 100], (UNBOUNDED, 0), True),  # the mean over tokens decides
        ([10, 1000], [100_000, 100], (UNBOUNDED, 0), False),
        ([1536], [1535], (UNBOUNDED, 0), False),
        ([0, 0], [5000, 0], (UNBOUNDED, 0), False),
        ([], [], (UNBOUNDED, 0), False),
    ],
)
def test_what_long_keys_are(
    q_len: list[int], kv_len: list[int], band: tuple[int, int], expected: bool
) -> None:
    lengths = np.array(q_len, np.int64), np.array(kv_len, np.int64)
    assert dispatch.is_long(problem("sm_90a"), *lengths, band) is expected


def test_long_keys_depend_on_the_kernel() -> None:
    lengths = np.array([100], np.int64), np.array([3000], np.int64)
    for dim, expected in ((64, True), (80, False)):
        asked = problem("sm_90a", None, dim=dim)
        assert dispatch.is_long(asked, *lengths, (UNBOUNDED, 0)) is expected


@pytest.mark.parametrize("dims", [(80, 80), (96, 96), (112, 112), (192, 192), (192, 128)])
@pytest.mark.parametrize("page_size", [None, 1, 16])
def test_head_dims_of_the_hopper_kernel_alone(dims: tuple[int, int], page_size: int | None) -> None:
    """It also serves their decodes; other devices say what they have."""
    for rows in (None, 16, 8):
        spec = choose(Problem("sm_90a", "fp16", *dims, 4, causal(), page_size), rows=rows)
        assert spec.schedule == "hopper_tile" and supports(spec) == []
        assert (spec.head_dim_qk, spec.head_dim_vo) == dims
        with pytest.raises(UnsupportedSpecError, match=rf"head_dim is {dims[0]}.*64, 128, 256"):
            choose(Problem("sm_80", "fp16", *dims, 4, causal(), page_size), rows=rows)


def test_refusals_give_all_reasons() -> None:
    with pytest.raises(UnsupportedSpecError) as caught:
        choose(problem("sm_90a", dim=72), rows=4)
    text = str(caught.value)
    assert all(s in text for s in ("ampere_decode: ", "hopper_tile: ", "ampere_tile: ", "72"))
    with pytest.raises(UnsupportedSpecError, match=r"GPU of sm_100a.*\n.*arch is 'sm_100a'"):
        choose(problem("sm_100a"), rows=None)


def test_tile_overrides_are_part_of_the_spec() -> None:
    spec = choose(problem("sm_80"), rows=None)
    other = dispatch.with_tile(spec, stages=spec.tile.stages + 1, blocks_per_sm=1)
    assert other != spec and other.tile.stages == spec.tile.stages + 1
    assert supports(dispatch.with_tile(spec, stages=100)) != []
    with pytest.raises(UnsupportedSpecError, match="shared memory"):
        build(spec, stages=100)


def test_a_built_kernel_shows_what_it_is(empty_cache: Path) -> None:
    kernel = build_generated(emit_merge("sm_90a", "bf16", 128, 16, 4))
    assert kernel.resources.registers > 0 and kernel.lint() == []
    assert kernel.name in kernel.source and kernel.name in repr(kernel)
    assert build_generated(emit_merge("sm_90a", "bf16", 128, 16, 4)) is kernel
    arguments = kernel.arguments()
    arguments.set(num_kv_heads=3)
    assert arguments.address % 128 == 0 and arguments.fields.num_kv_heads == 3
    with pytest.raises(AttributeError, match="num_heads"):
        arguments.set(num_heads=3)


def test_warmup_fills_the_cache(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [emit_append("sm_80", "bf16", 64, 64), emit_append("sm_86", "fp16", 64, 64)]
    seen: list[int] = []
    done = warmup(kernels, jobs=1, progress=lambda count, total, result: seen.append(count))
    assert [kernel.name for kernel in done] == [g.name for g in kernels] and seen == [1, 2]
    forget_kernels()
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    assert all(build_generated(g).compiled.from_cache for g in kernels)
    with pytest.raises(CacheMissError, match="CUTE_ATTN_NO_COMPILE=1"):
        build_generated(emit_append("sm_89", "fp16", 64, 64))


def test_without_a_compiler_plan_says_what_to_install(
    fake_gpu: Any, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUTE_ATTN_WHEELS", str(tmp_path))  # where there are none
    batch = fake_gpu.batch(8, 2, 128, source=COMPILED)
    with pytest.raises(ToolchainError, match="pip install"):
        batch.plan([0, 1], RaggedKV([0, 1]))
    assert batch.last_plan is None and fake_gpu.uploads == 0


def test_a_variant_by_name_is_the_variant() -> None:
    assert dispatch.named_variant("full") == full()
    batch = BatchAttention(2, 2, 64, variant=causal(), device="cpu")
    q = torch.ones(2, 2, 64, dtype=torch.bfloat16)
    assert torch.equal(batch.plan([0, 2], RaggedKV([0, 2])).run(q, q, q), q)
