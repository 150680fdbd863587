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
from cute_attn.cli import tune_databases
from cute_attn.tuning import store

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


def test_tune_databases_are_listed(tmp_path: Path) -> None:
    mine = tmp_path / "nvidia-a100-108-sms.json"
    store(mine, [], name="NVIDIA A100", sms=108, arch="sm_80")
    store(tmp_path / "other.json", [], name="NVIDIA A100", sms=108, arch="sm_80")
    (tmp_path / "z.json").write_text("{}")
    found = facts(CUTE_ATTN_TUNE_DB=str(tmp_path))["tuning"]
    own, other, bad = found[-3:]
    assert (own["file"], own["gpu"], own["sms"], own["steps"]) == (str(mine), "NVIDIA A100", 108, 0)
    assert own["problem"] is None and "not named after its GPU" in other["problem"]
    assert "version is None" in bad["problem"] and bad["gpu"] is None
    shipped = [one for one in found if "cute_attn/tuning/data" in one["file"]]
    assert shipped and all(one["winners"] > 0 and one["problem"] is None for one in shipped)
    text = run("-m", "cute_attn.cli", "info", CUTE_ATTN_TUNE_DB=str(tmp_path)).stdout
    assert str(mine) in text and "NVIDIA H200, 132 SMs" in text
    gpus = [(0, "NVIDIA H200", 132), (1, "NVIDIA A100", 108)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTE_ATTN_TUNE_DB", str(tmp_path))
        assert [one["devices"] for one in tune_databases.collect(gpus)[-3:]] == [[1], [], []]


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
