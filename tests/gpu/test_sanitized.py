"""A small subset of the grid, one batch per kernel family, loader and head_dim: quick enough for
compute-sanitizer (`python -m perf.sanitize`), and a smoke test by itself."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.check import check_case
from tests.gpu.grid import CASES, Case

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300, method="thread")]

LONGEST = 129


def subset() -> list[Case]:
    """The first "mixed" or "few_tokens" case of every (schedule, ragged or paged, head_dim)."""
    found: dict[tuple[object, ...], Case] = {}
    for case in CASES:
        if case.batch in ("mixed", "few_tokens"):
            paging = 0 if not case.page_size else 1 if case.page_size % 16 else 16
            found.setdefault((case.schedule, paging, case.family.head_dim), case)
    return list(found.values())


@pytest.mark.parametrize("case", subset(), ids=str)
def test_small(case: Case, device: torch.device, arch: str) -> None:
    if case.schedule == "hopper_tile" and arch != "sm_90a":
        pytest.skip(f"hopper_tile is for sm_90a; this is {arch}")
    errors, _ = check_case(case, device, arch, LONGEST)
    assert not errors.failures()
