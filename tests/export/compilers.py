"""The host's compilers, for the headers and the example of bundles."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CXX = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
CC = next((path for name in ("gcc", "clang", "cc") if (path := shutil.which(name))), None)
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")

needs_cxx = pytest.mark.skipif(CXX is None, reason="no C++ compiler (g++, clang++ or c++)")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler (gcc, clang or cc)")


def compile_text(compiler: str | None, *arguments: str | Path) -> None:
    """Runs a compiler; a message of it fails the test."""
    assert compiler is not None
    command = [compiler, *STRICT, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
