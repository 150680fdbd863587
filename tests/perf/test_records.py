"""Records and their comparison with peers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from perf import compare, records


def test_rows_are_written_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.jsonl"
    file = records.Records(path, {"gpu": "x"})
    file.add("A", "d128 full   s512", us=1.23456789, err=math.nan, n=3)
    rows = list(records.read(path))
    assert rows[0] == {"gpu": "x"}
    assert rows[1] == {"sec": "A", "cfg": "d128 full   s512", "us": 1.2346, "err": "nan", "n": 3}
    records.Records(path, {"gpu": "y"}, append=True).add("B", "c")
    assert [row.get("gpu") for row in records.read(path)] == ["x", None, None]
    records.Records(path, {"gpu": "z"})
    assert [row["gpu"] for row in records.read(path)] == ["z"]


def test_first_row_says_what_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_ATTN_COMMIT", "abc123")
    first = records.environment("nvrtc-1.2.3")
    assert {"gpu", "driver", "torch", "toolchain", "commit", "command", "date"} <= first.keys()
    assert first["toolchain"] == "nvrtc-1.2.3" and first["commit"] == "abc123"
    json.dumps(first)


def test_best_peer_and_ratio() -> None:
    peers = [
        {"sec": "C", "cfg": "a", "peer": "p", "us": 9.0, "us_graph": 8.0},
        {"sec": "C", "cfg": "a", "peer": "q", "us": 7.0},
        {"sec": "C", "cfg": "a", "peer": "cute_attn", "us": 1.0},
        {"sec": "C", "cfg": "b", "peer": "r", "us": 10.0},
        {"sec": "E", "cfg": "none", "peer": "r"},
    ]
    best = compare.best_peers(peers)
    assert best == {("C", "a"): (7.0, "q"), ("C", "b"): (10.0, "r")}
    ours = [
        {"gpu": "x"},
        {"sec": "C", "cfg": "a", "us": 99.0, "us_graph": 14.0, "gbps_graph": 100.0},
        {"sec": "C", "cfg": "b", "us": 5.0},
        {"sec": "C", "cfg": "unknown", "us": 5.0},
    ]
    lines = compare.table(ours, best)
    assert "0.50 x" in lines[0] and "100 GB/s" in lines[0]
    assert "2.00 x" in lines[1]
    assert " x" not in lines[2]
    assert "section C: 1.000 x" in lines[3]  # sqrt(0.5 * 2)


def test_geometric_mean() -> None:
    assert compare.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(compare.geometric_mean([]))
