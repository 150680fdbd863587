"""The planner's benchmark: what it times, and the rows it writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perf import bench_plan, records


def test_cases() -> None:
    found = {step.cfg: step for step in bench_plan.cases()}
    assert len(found) == len(bench_plan.BATCHES) + 1 + 16
    assert set(bench_plan.QUICK) < set(found)
    assert found["decode b256"] == {step.cfg: step for step in bench_plan.cases()}["decode b256"]
    for step in found.values():
        assert len(step.q_lens) == len(step.kv_lens)
        assert (step.geometry.tile_q == 8) == (max(step.q_lens) == 1)
    blocks = [found[f"decode b{batch}"].num_blocks for batch in bench_plan.BATCHES]
    assert blocks == [132, 132, 264, 396, 396, 396]


def test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.jsonl"
    monkeypatch.setattr(sys, "argv", ["bench_plan", "--match", "b16", "--out", str(path)])
    monkeypatch.setattr(bench_plan, "REPEATS", 2)
    assert bench_plan.main() == 0
    first, row = records.read(path)
    assert {"cpu", "numpy", "commit", "command"} <= set(first)
    assert (row["sec"], row["cfg"]) == ("N", "decode b16")
    assert row["us"] == pytest.approx(row["batch_us"] + row["plan_us"], rel=1e-3)
