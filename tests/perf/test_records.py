"""Records: files of rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from cute_attn.tuning import DatabaseError, store
from perf import records


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
    assert first["tuning"] == ""
    json.dumps(first)


def test_first_row_names_the_tune_database(tmp_path: Path) -> None:
    path = tmp_path / "db.json"
    known = store(path, [], name="NVIDIA H200", sms=132, arch="sm_90a")
    assert records.environment("", database=path)["tuning"] == f"0 steps, {known.digest}"
    path.write_text("{}")
    with pytest.raises(DatabaseError, match=r"db\.json"):
        records.environment("", database=path)
