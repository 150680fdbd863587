"""`cute-attn compile`: presets, the cache, what is printed, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cute_attn import supports
from cute_attn.cli.presets import PRESETS, attention_specs, generate
from cute_attn.runtime import forget_kernels

Invoke = Callable[..., Any]


def test_kernels_are_compiled_once_and_then_found(
    demo_kernels: dict[str, Any], kernel_cache: Path, invoke: Invoke
) -> None:
    first = demo_kernels["kernels"]
    names = [kernel["name"].split("_bf16")[0] for kernel in first]
    assert sorted(names) == ["ampere_decode", "ampere_decode", "ampere_tile", "merge"]
    assert {kernel["status"] for kernel in first} == {"compiled"}
    assert len(list(kernel_cache.glob("v1/sm_80/*/kernel.cubin"))) == 4

    forget_kernels()  # as in another process
    again = invoke("compile", "--preset", "demo", "--arch", "sm_80", "--json")
    assert again.exit_code == 0
    second = json.loads(again.stdout)
    assert {kernel["status"] for kernel in second["kernels"]} == {"cached"}
    assert second["seconds"] < 1
    for name in ("name", "registers", "smem_bytes", "spill_bytes", "cubin_bytes"):
        assert [k[name] for k in second["kernels"]] == [k[name] for k in first]


def test_lines_name_what_was_found(demo_kernels: dict[str, Any], invoke: Invoke) -> None:
    options = ("--arch", "sm_80", "--head-dim", "128", "--dtype", "bf16", "--page-size", "16")
    result = invoke("compile", *options, "--variant", "causal", "--group", "4")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "4 kernels for sm_80"
    for kernel, line in zip(demo_kernels["kernels"], lines[1:-1], strict=True):
        assert line.split()[0] == "cached"
        assert f" {kernel['registers']} registers" in line
        assert line.endswith(kernel["name"])
    assert lines[-1].startswith("0 compiled, 4 found in the cache, 0 failed")
    assert "\x1b" not in result.output  # no terminal: no colours, no progress bar


def test_a_kernel_that_may_not_be_compiled_fails(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(tmp_path))
    result = invoke("compile", "--arch", "sm_89", "--head-dim", "64", "--schedule", "ampere_tile")
    assert result.exit_code == 1
    failed = [line for line in result.output.splitlines() if line.startswith("failed")]
    assert len(failed) == 2
    assert "ampere_tile_bf16_d64_ragged_g4_causal_sm_89" in failed[0]
    assert "CUTE_ATTN_NO_COMPILE=1" in failed[0]
    assert "0 compiled, 0 found in the cache, 2 failed" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, ["--preset demo|core|llama"]),
        (("--preset", "nope"), 2, ["'nope'", "demo, core, llama"]),
        (("--head-dim", "128"), 2, ["no GPU", "--arch sm_90a"]),
        (("--arch", "sm_70", "--head-dim", "64"), 2, ["sm_70", "sm_80", "sm_90a"]),
        (("--arch", "sm_80", "--variant", "casual"), 2, ["--variant", "'casual'", "causal"]),
        (("--arch", "sm_80", "--variant", "soft_cap+soft_cap"), 2, ["both transform logits"]),
        (("--arch", "sm_80", "--head-dim", "96"), 1, ["96", "64, 128, 256"]),
        (("--arch", "sm_80", "--schedule", "hopper_tile"), 1, ["hopper_tile", "sm_90a"]),
    ],
)
def test_wrong_input_is_one_line(
    arguments: tuple[str, ...],
    code: int,
    words: list[str],
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cute_attn.cli.compile.default_arch", lambda: None)  # as without a GPU
    result = invoke("compile", *arguments)
    assert result.exit_code == code
    errors = [x for x in result.output.splitlines() if x.lower().startswith("error: ")]
    assert len(errors) == 1
    for word in words:
        assert word in errors[0]


@pytest.mark.parametrize("name", PRESETS)
def test_every_kernel_of_a_preset_can_be_generated(name: str) -> None:
    specs = attention_specs(PRESETS[name])
    assert len(specs) == len(set(specs)) > 0
    assert [spec.name for spec in specs if supports(spec)] == []


def test_core_covers_the_matrix() -> None:
    found = {
        (s.arch, s.dtype, s.head_dim_qk, s.loader == "ragged", s.variant.name)
        for s in attention_specs(PRESETS["core"])
    }
    assert found == set(
        product(
            ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"),
            ("bf16", "fp16"),
            (64, 128, 256),
            (True, False),
            ("full", "causal"),
        )
    )


def test_llama_brings_the_cache_append() -> None:
    kernels = [k.name for k in generate(PRESETS["llama"]) if k.name.startswith("append")]
    assert len(kernels) == 4 * 2 * 2  # architectures, head dims, with and without RoPE
