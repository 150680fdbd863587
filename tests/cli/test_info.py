"""`cute-attn info` in the conditions it exists for: no GPU, no torch, no compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import cute_attn

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # every `import torch` now raises ImportError
from cute_attn.cli import app
app(["info", "--json"])
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def facts(*arguments: str, **environment: str) -> dict[str, Any]:
    result = run(*(arguments or ("-m", "cute_attn.cli", "info", "--json")), **environment)
    assert result.returncode == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_json_names_the_installation() -> None:
    found = facts()
    assert found["cute_attn"]["version"] == cute_attn.__version__
    assert Path(found["cute_attn"]["path"], "py.typed").is_file()
    assert found["packages"]["torch"] == metadata.version("torch")
    assert found["packages"]["nvidia-cutlass"] == metadata.version("nvidia-cutlass")


def test_runs_without_torch_and_never_imports_it() -> None:
    assert facts("-c", WITHOUT_TORCH)["cute_attn"]["version"] == cute_attn.__version__


def test_a_hidden_gpu_is_no_error() -> None:
    driver = facts(CUDA_VISIBLE_DEVICES="")["driver"]
    assert driver["devices"] == []
    assert driver["problem"]


def test_default_toolchain_is_the_best_available() -> None:
    toolchains = facts(CUTE_ATTN_TOOLCHAIN="")["toolchains"]
    assert toolchains["problem"] is None
    assert toolchains["default"] == toolchains["available"][0]["name"]


def test_a_missing_compiler_says_what_to_install(tmp_path: Path) -> None:
    toolchains = facts(CUTE_ATTN_WHEELS=str(tmp_path))["toolchains"]
    assert toolchains["available"] == []
    assert "pip install" in toolchains["problem"]
    text = run("-m", "cute_attn.cli", "info", CUTE_ATTN_WHEELS=str(tmp_path), COLUMNS="200").stdout
    assert "cute-attn[cu13]" in text, "brackets must survive rich's markup"


def test_an_unknown_toolchain_is_named() -> None:
    problem = facts(CUTE_ATTN_TOOLCHAIN="nvrtc-1.2.3")["toolchains"]["problem"]
    assert "nvrtc-1.2.3" in problem


def test_cache_counts_what_was_stored(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void nothing() {}'
    compile_two = f"""
from cute_attn.runtime import CompileRequest, build_kernel
for arch in ("sm_80", "sm_90a"):
    build_kernel(CompileRequest({source!r}, "nothing", arch))
"""
    cache = str(tmp_path / "cache")
    empty = facts(CUTE_ATTN_CACHE_DIR=cache)["cache"]
    assert (empty["directory"], empty["entries"], empty["bytes"]) == (cache, 0, 0)
    result = run("-c", compile_two, CUTE_ATTN_CACHE_DIR=cache)
    assert result.returncode == 0, result.stderr
    filled = facts(CUTE_ATTN_CACHE_DIR=cache)["cache"]
    assert filled["entries"] == 2
    assert filled["bytes"] > 2 * len(source)


@pytest.mark.parametrize("columns", ["60", "200"])
def test_text_shows_every_section(columns: str) -> None:
    result = run("-m", "cute_attn.cli", "info", COLUMNS=columns)
    assert result.returncode == 0, result.stderr
    for expected in (cute_attn.__version__, "nvrtc-", "torch", "CUTE_ATTN_CACHE_DIR"):
        assert expected in result.stdout


def test_a_long_path_is_printed_in_one_piece(tmp_path: Path) -> None:
    cache = tmp_path / ("long" * 40)
    result = run("-m", "cute_attn.cli", "info", CUTE_ATTN_CACHE_DIR=str(cache), COLUMNS="60")
    assert result.returncode == 0, result.stderr
    assert sum(str(cache) in line for line in result.stdout.splitlines()) == 2
