"""The figure of a record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from perf import rates, records

pytest.importorskip("matplotlib", reason="extra `dev`")

from perf import plot


def test_plot_writes_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = tmp_path / "prefill.jsonl", tmp_path / "prefill.svg"
    file = records.Records(path, {"gpu": "a GPU", "date": "2026-11-29T00:00:00"})
    file.add("E", "matmul 8192^3 bf16", peer="torch", tflops=790.0)
    for length, rate in ((512, 400.0), (4096, 600.0)):
        file.add("A", f"d128 full   s{length}", peer="cute_attn", tflops=rate)
        file.add("A", f"d128 full   s{length}", peer="fa3", tflops=rate + 50)
    file.add("B", "b16 c1024 p16", peer="cute_attn", tflops=1.0)
    monkeypatch.setattr(sys, "argv", ["plot", str(path), "--out", str(out)])
    assert plot.main() == 0
    first = out.read_text()
    assert first.count("<svg") == 1 and len(first) > 10_000
    assert plot.main() == 0 and out.read_text() == first


def test_lines() -> None:
    rows: list[dict[str, Any]] = [
        {"sec": "A", "cfg": "d64 causal s512", "peer": "a", "tflops": 3.0},
        {"sec": "A", "cfg": "d64 causal s512", "peer": "b", "tflops": 5.0},
        {"sec": "A", "cfg": "d64 full   s1024", "peer": "b", "tflops": 7.0},
        {"sec": "H", "cfg": "d64 full   s2048", "peer": "b", "tflops": 9.0},
        {"gpu": "x"},
    ]
    lines = rates.lines_of(rows)
    assert lines == {
        (64, "causal"): {"a": {512: 3.0}, "b": {512: 5.0}},
        (64, "full"): {"b": {1024: 7.0}},
    }
    assert rates.best(lines[64, "causal"]) == {512: 5.0}
