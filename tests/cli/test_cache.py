"""`cute-attn cache`: what its commands print, remove and refuse."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cute_attn.runtime import CompileRequest, build_kernel, forget_kernels
from cute_attn.runtime.cache_upkeep import entries

Invoke = Callable[..., Any]
SOURCE = 'extern "C" __global__ void {name}() {{}}'
DAY = 86400.0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> Path:
    """Three kernels, last used 1, 2 and 3 days ago. The path is longer than any terminal's line."""
    directory = tmp_path / ("long" * 30) / "kernels"
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(directory))
    forget_kernels()
    for name, arch in (("first", "sm_80"), ("second", "sm_80"), ("third", "sm_90a")):
        build_kernel(CompileRequest(SOURCE.format(name=name), name, arch))
    forget_kernels()
    for entry in entries(directory):
        days = 1 + ["first", "second", "third"].index(entry.name)
        os.utime(entry.path / "meta.json", (time.time() - days * DAY,) * 2)
    return directory


def names(result: Any) -> list[str]:
    assert result.exit_code == 0, result.output
    return [kernel["name"] for kernel in json.loads(result.stdout)["kernels"]]


def test_list(cache: Path, invoke: Invoke) -> None:
    assert names(invoke("cache", "list", "--json")) == ["first", "second", "third"]
    assert names(invoke("cache", "list", "--json", "--order", "name", "--limit", "2")) == [
        "first",
        "second",
    ]
    assert names(invoke("cache", "list", "--json", "--name", "*ir*")) == ["first", "third"]
    assert names(invoke("cache", "list", "--json", "--arch", "sm_90a")) == ["third"]
    text = invoke("cache", "list", "--limit", "1").output
    assert "first" in text and "nvrtc-" in text and "24 h ago" in text
    assert "1 of 3 kernels, " in text and str(cache) in text


def test_size(cache: Path, invoke: Invoke) -> None:
    facts = json.loads(invoke("cache", "size", "--json").stdout)
    assert facts["kernels"] == 3 and facts["bytes"] == sum(e.num_bytes for e in entries(cache))
    assert {g["arch"]: g["kernels"] for g in facts["groups"]} == {"sm_80": 2, "sm_90a": 1}
    assert str(cache) in invoke("cache", "size").output


def test_prune_by_age(cache: Path, invoke: Invoke) -> None:
    dry = invoke("cache", "prune", "--older-than", "36h", "--dry-run")
    assert "2 kernels" in dry.output and "would go" in dry.output
    assert len(entries(cache)) == 3
    result = invoke("cache", "prune", "--older-than", "1.5d", "--json")
    facts = json.loads(result.stdout)
    assert sorted(kernel["name"] for kernel in facts["removed"]) == ["second", "third"]
    assert [entry.name for entry in entries(cache)] == ["first"]


def test_prune_by_size(cache: Path, invoke: Invoke) -> None:
    sizes = {entry.name: entry.num_bytes for entry in entries(cache)}
    limit = sizes["first"] + sizes["second"]
    assert invoke("cache", "prune", "--max-size", str(limit)).exit_code == 0
    assert {entry.name for entry in entries(cache)} == {"first", "second"}


def test_prune_other_versions(cache: Path, invoke: Invoke) -> None:
    assert "0 kernels" in invoke("cache", "prune", "--other-versions").output
    (entry,) = (entry for entry in entries(cache) if entry.name == "second")
    meta = json.loads((entry.path / "meta.json").read_text())
    meta["toolchain"]["nvrtc"] = "1.2.3"
    (entry.path / "meta.json").write_text(json.dumps(meta))
    result = invoke("cache", "prune", "--other-versions")
    assert "second: compiler nvrtc-1.2.3 is not installed" in result.output
    assert {entry.name for entry in entries(cache)} == {"first", "third"}


def test_prune_alone_removes_leftovers(cache: Path, invoke: Invoke) -> None:
    (cache / "v1/quarantine/bad").mkdir(parents=True)
    assert invoke("cache", "prune").exit_code == 0
    assert not (cache / "v1/quarantine/bad").exists() and len(entries(cache)) == 3


def test_verify(cache: Path, invoke: Invoke) -> None:
    result = invoke("cache", "verify")
    assert result.exit_code == 0 and "3 kernels, 0 damaged" in result.output
    (entry,) = (entry for entry in entries(cache) if entry.name == "first")
    (entry.path / "kernel.cubin").write_bytes(b"")
    result = invoke("cache", "verify")
    assert result.exit_code == 1
    assert f"{entry.path}: kernel.cubin has 0 bytes" in result.output
    assert entry.path.is_dir(), "removed only on request"
    result = invoke("cache", "verify", "--remove", "--json")
    assert result.exit_code == 0
    (found,) = json.loads(result.stdout)["damaged"]
    assert found["name"] == "first" and found["removed"]
    assert {entry.name for entry in entries(cache)} == {"second", "third"}


def test_a_directory_that_cannot_be_written_is_one_line(
    cache: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("cute_attn.runtime.cache.FileLock.acquire", refuse)
    result = invoke("cache", "prune", "--max-size", "0")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {cache}: cannot be written")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prune", "--max-size", "much"), ["--max-size", "'much' is no size", "2GiB"]),
        (("prune", "--older-than", "3y"), ["--older-than", "'3y' is no time", "30d"]),
        (("size", "--directory", "/no/such"), ["--directory", "/no/such is no directory"]),
        (("list", "--order", "colour"), ["--order", "colour", "size"]),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: tuple[str, ...], words: list[str], invoke: Invoke
) -> None:
    result = invoke("cache", *arguments)
    assert result.exit_code == 2
    (error,) = [x for x in result.output.splitlines() if x.startswith("Error: ")]
    for word in words:
        assert word in error
