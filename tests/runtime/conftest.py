"""Fixtures of the runtime's tests: a cache of its own for each test, and small kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cute_attn.runtime import env, forget_kernels
from cute_attn.runtime.errors import ToolchainError
from cute_attn.runtime.toolchain import default_toolchain


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache directory, no variable of the caller's environment, and nothing in memory."""
    for variable in env.ALL:
        if variable is not env.WHEELS:
            monkeypatch.delenv(variable.name, raising=False)
    directory = tmp_path / "cache"
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(directory))
    forget_kernels()
    yield directory
    forget_kernels()


@pytest.fixture
def compiler() -> None:
    """Skip where nothing can compile; the project's own test environment always can."""
    try:
        default_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture
def scale_source() -> str:
    """A kernel without includes: doubles a vector."""
    return """extern "C" __global__ void scale(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2.0f;
}
"""
