"""`cute-attn export`: what it writes and prints, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cute_attn import load_bundle
from cute_attn.export.write import SCHEMA

Invoke = Callable[..., Any]
SMALL = ("--arch", "sm_80", "--page-size", "16")  # kernels of the demo


def test_a_bundle_is_written(demo_kernels: dict[str, Any], invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "small.bundle"
    result = invoke("export", str(path), *SMALL)
    assert result.exit_code == 0, result.output
    assert "drivers from CUDA" in result.stdout
    names = {kernel.name for kernel in load_bundle(path).kernels}
    assert names <= {kernel["name"] for kernel in demo_kernels["kernels"]}
    assert all(name in result.stdout for name in names)

    facts = json.loads(invoke("export", str(path), *SMALL, "--replace", "--json").stdout)
    assert set(facts["kernels"]) == names
    assert facts["archs"] == ["sm_80"]


def test_a_bundle_of_one_family(invoke: Invoke, demo_kernels: object, tmp_path: Path) -> None:
    path = tmp_path / "tile.bundle"
    result = invoke("export", str(path), *SMALL, "--schedule", "ampere_tile", "--json")
    kernels = json.loads(result.stdout)["kernels"]
    assert sorted(name.split("_bf16")[0] for name in kernels) == ["ampere_tile", "merge"]


def test_bad_input_is_one_line_and_fails(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for arguments, code, words in (
        ((), 2, "say where"),
        ((str(tmp_path / "x"),), 2, "say what to compile"),
        ((str(tmp_path / "there"), *SMALL), 1, "is there already"),
        ((str(tmp_path / "there"), *SMALL, "--replace"), 1, "is no bundle"),
        ((str(tmp_path / "no" / "x"), *SMALL), 1, "there is no folder"),
        ((str(tmp_path / "x"), *SMALL, "--head-dim", "72"), 1, "head_dim is 72"),
        ((str(tmp_path / "x"), *SMALL, "--variant", "round"), 2, "'round'"),
    ):
        result = invoke("export", *arguments)
        assert result.exit_code == code, result.output
        assert words in result.stderr
        assert len([line for line in result.stderr.splitlines() if "rror" in line]) == 1


def test_help_has_examples_and_the_schema_is_printed(invoke: Invoke) -> None:
    assert "cute-attn export llama.bundle --preset llama" in invoke("export", "--help").stdout
    assert invoke("export", "--schema").stdout == SCHEMA.read_text()
