"""The benchmarks' own check of results, on CPU tensors."""

from __future__ import annotations

import math

import pytest
import torch

from perf import harness
from perf.cases import Case
from tests import oracle

CPU = torch.device("cpu")


def small_case(page_size: int | None, is_causal: bool) -> Case:
    return Case("B", "small", (1, 40, 17), (50, 40, 90), 4, 2, 16, page_size, is_causal)


@pytest.mark.parametrize("page_size", [None, 16, 3])
@pytest.mark.parametrize("is_causal", [True, False])
def test_check_passes_what_is_right_and_sees_what_is_wrong(
    page_size: int | None, is_causal: bool
) -> None:
    prepared = harness.prepare(small_case(page_size, is_causal), device=CPU)
    assert harness.check(prepared) < 4e-3
    if page_size is not None:  # keys that the reference sees and the run does not
        prepared.pages = [own.flip(0) for own in prepared.pages or []]
        assert not harness.check(prepared) < 4e-3


def test_check_sees_rows_that_were_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = harness.prepare(small_case(16, True), device=CPU)
    monkeypatch.setattr(harness.Prepared, "run", lambda self, index: None)
    assert math.isnan(harness.check(prepared))


def test_reference_is_the_oracle() -> None:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(9, 6, 16, generator=generator)
    k, v = torch.randn(2, 30, 2, 16, generator=generator)
    out = harness.reference(q, k, v, torch.arange(9) + 21, True)
    want, _ = oracle.attend(q, k, v, mask=oracle.mask_of("causal"))
    assert oracle.relative_error(out, want) < 1e-6


def test_rotation_is_larger_than_any_l2() -> None:
    for kv_len in (10, 1000, 100_000):
        case = Case("C", "", (1,), (kv_len,), 8, 8, 128, 16, True)
        caches = harness.cache_count(case)
        assert caches == harness.MAX_CACHES or caches * case.kv_bytes > harness.ROTATION_BYTES


def test_pages_are_shuffled_and_all_used_once() -> None:
    kv_format, pages = harness.page_format((33, 0, 16), 16)
    assert [len(own) for own in pages] == [3, 0, 1]
    assert sorted(torch.cat(pages).tolist()) == [0, 1, 2, 3]
    assert kv_format.kv_len.tolist() == [33, 0, 16]
