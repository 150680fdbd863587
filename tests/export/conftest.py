"""One bundle for the tests of this room: the demo's kernels, compiled once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cute_attn import Problem, causal, export_bundle

PROBLEMS = tuple(Problem(arch, "bf16", 128, 128, 4, causal(), 16) for arch in ("sm_80", "sm_90a"))


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle; not to be changed."""
    path = tmp_path_factory.mktemp("bundles") / "demo.bundle"
    export_bundle(path, PROBLEMS)
    return path


@pytest.fixture
def damaged(bundle_path: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return shutil.copytree(bundle_path, tmp_path / "copy.bundle")
