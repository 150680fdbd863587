"""The benchmark's sparse cases: what they read and which kernels they take."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cute_attn import PerHeadKV
from perf import bench_composable, measure_sparse
from perf.cases import sparse
from perf.cases.sparse import SparsePrefill

CASES = {case.cfg: case for case in sparse.all_sparse()}


def test_names_are_unique() -> None:
    assert len(CASES) == len(sparse.all_sparse()) == 23
    assert {case.sec for case in CASES.values()} == {"SB", "SL"}


@pytest.mark.parametrize("case", sparse.sparse_prefill()[::5], ids=lambda case: case.cfg)
def test_share_of_the_pairs(case: SparsePrefill) -> None:
    assert case.kept == pytest.approx(case.density, rel=0.1)
    assert case.dense.pairs == sparse.LENGTH**2 * case.num_qo_heads
    assert case.flops == pytest.approx(case.kept * case.dense.flops)


def test_lists_hold_pages_of_their_request() -> None:
    case = sparse.page_lists()[0]
    kv = case.kv
    assert isinstance(kv, PerHeadKV) and kv.num_requests == 64 * 8
    tables = kv.page_table.reshape(64, 8, 64)
    assert len(np.unique(tables[0])) > 64  # heads choose others
    owners = [set(np.unique(own)) for own in tables]
    assert sum(len(own) for own in owners) == len(set().union(*owners))
    assert case.kv_bytes == 64 * 8 * 1024 * 512


def test_goals_are_reached_by_prediction() -> None:
    """Those of prefill, with a fifth to spare for 64 rows."""
    for case in sparse.sparse_prefill():
        share = case.kept * case.dense.predicted_us
        factor = 1.5 if case.block == 64 else 1.15
        assert case.predicted_us <= factor * share + 20, case.cfg


def test_few_kernels() -> None:
    names = [spec.name for spec in sparse.sparse_specs("sm_90a")]
    assert len(set(names)) == len(names) <= 10
    assert sum("per_head" in name for name in names) == 5


def test_predicting_needs_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "record.jsonl"
    options = ["--predict", "--section", "SB,SL", "--quick", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["bench_composable", *options])
    assert bench_composable.main() == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [row["sec"] for row in rows] == ["SB", "SB", "SL"]
    assert all(row["predicted_us"] > 0 for row in rows)
    assert "us predicted" in capsys.readouterr().out


def test_errors_are_those_of_the_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a result: exact rows give none, a changed row one."""
    monkeypatch.setattr(sparse, "LENGTH", 256)
    monkeypatch.setattr(sparse, "DIM", 16)
    case = SparsePrefill("SB", "small", 4, 2, block=32, density=0.5, per_head=True)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(256, h, 16, generator=generator) for h in (4, 2, 2))
    out = torch.empty_like(q)
    rows = case.kv.query_rows(None)
    for one in range(case.kv.num_requests):
        at, head = slice(rows.start[one], rows.start[one] + 32), one % 2
        pages = torch.from_numpy(case.kv.pages_of(one))
        keys, values = measure_sparse._rows_of(pages, case, k, v, head)
        for h in (2 * head, 2 * head + 1):
            weights = torch.softmax(q[at, h] @ keys.T / 4, -1)
            out[at, h] = weights @ values

    def error() -> float:
        rows_of = measure_sparse._rows_of
        return measure_sparse._error(case, out, q, lambda p, h: rows_of(p, case, k, v, h))

    assert error() < 1e-5
    out += 0.1
    assert error() > 1e-2
    out[0, 0, 0] = torch.nan
    assert np.isnan(error())
