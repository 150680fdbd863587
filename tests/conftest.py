"""Shared pytest set-up: the `gpu` marker and the hypothesis profiles.

Tests marked `gpu` are deselected by default (see `addopts` in pyproject.toml). Selected with
`-m gpu` on a machine without a CUDA device they are skipped, with the reason.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import hypothesis
import pytest

# On few, busy cores the threads of a BLAS spin against each other: small products take 100 times as
# long. Read when NumPy is loaded, which happens after this.
if (os.cpu_count() or 1) <= 4:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


@functools.cache
def why_no_gpu() -> str | None:
    """Return why `gpu` tests cannot run here, or None if they can."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "no CUDA device"
    return None


@pytest.fixture(scope="session", autouse=True)
def _as_built_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans of tests are made with the built-in constants and the tile tables, whatever GPU was
    calibrated or tuned, here or for the package."""
    from cute_attn.tuning import files

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "SHIPPED", tmp_path_factory.mktemp("shipped"))
        patch.delenv("CUTE_ATTN_TUNE_DB", raising=False)
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("CUTE_ATTN_COST_FILE", raising=False)
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and (reason := why_no_gpu()):
        pytest.skip(f"needs a GPU: {reason}")
