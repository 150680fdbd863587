"""One kernel cache for the tests of the command line: kernels are compiled once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cute_attn.cli import app
from cute_attn.runtime import forget_kernels

Invoke = Callable[..., Any]


@pytest.fixture(scope="session")
def kernel_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def use_cache(patch: pytest.MonkeyPatch, directory: Path) -> None:
    patch.setenv("CUTE_ATTN_CACHE_DIR", str(directory))
    for name in ("CUTE_ATTN_CACHE_PATH", "CUTE_ATTN_ARCH", "CUTE_ATTN_NO_COMPILE"):
        patch.delenv(name, raising=False)


@pytest.fixture
def kernel_cache(kernel_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of these tests, in use during one of them."""
    use_cache(monkeypatch, kernel_directory)
    return kernel_directory


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.fixture
def invoke(kernel_cache: Path) -> Invoke:
    """Runs the command in this process; whatever it raises but an exit fails the test."""
    return call


@pytest.fixture(scope="session")
def demo_kernels(kernel_directory: Path) -> dict[str, Any]:
    """What `compile` says of the demo's sm_80 kernels, compiled here for the first time."""
    forget_kernels()
    with pytest.MonkeyPatch.context() as patch:
        use_cache(patch, kernel_directory)
        result = call("compile", "--preset", "demo", "--arch", "sm_80", "--json")
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts
