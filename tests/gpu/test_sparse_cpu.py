"""The cases of test_sparse, on the executor."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import sparse
from tests.gpu.check import BOUNDS, LSE_BOUND, ROW_BOUND


@pytest.mark.parametrize("name", sparse.CASES)
def test_against_a_dense_formula(name: str) -> None:
    err, row, far, exact = sparse.errors(name, torch.device("cpu"))
    assert err <= BOUNDS["bf16"] and row <= ROW_BOUND and far <= LSE_BOUND and exact


def test_every_kernel_has_a_name_of_its_own() -> None:
    names = [kernel.name for kernel in sparse.kernels("sm_90a")]
    assert len(set(names)) == len(names) <= 10
