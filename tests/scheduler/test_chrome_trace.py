"""Timelines as trace files: what viewers ask of them, and a predicted step."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cute_attn.scheduler import (
    BUILT_IN,
    Geometry,
    Launch,
    RequestBatch,
    Timing,
    explain,
    plan_batch,
)
from cute_attn.scheduler.chrome_trace import Process, Slice, Track, events, lanes, write


def slices_of(found: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """(begin, end) of each thread's slices, in the order of the file."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in found:
        if event["ph"] == "X":
            spans = threads.setdefault((event["pid"], event["tid"]), [])
            spans.append((event["ts"], event["ts"] + event["dur"]))
    return threads


def check_nesting(spans: list[tuple[float, float]]) -> None:
    """Slices of a thread hold one another or do not touch."""
    for (begin, end), (next_begin, next_end) in pairwise(
        sorted(spans, key=lambda s: (s[0], -s[1]))
    ):
        assert next_begin >= end - 1e-3 or next_end <= end + 1e-3, (begin, end)


def test_overlapping_slices_have_lanes_of_their_own() -> None:
    slices = [Slice("c", 5, 9), Slice("a", 0, 4), Slice("b", 3, 6), Slice("d", 6, 7)]
    assert [[s.name for s in lane] for lane in lanes(slices)] == [["a", "c"], ["b", "d"]]


def test_events_name_processes_and_threads() -> None:
    inner = (Slice("wait", 1, 2), Slice("work", 2, 3))
    tracks = [Track("x", [Slice("a", 1, 3, {"n": 1}, inner), Slice("b", 2, 4)]), Track("y", [])]
    found = list(events([Process("first", tracks), Process("second", [Track("z", [])])]))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"].endswith("_name")}
    assert names == {(1, 1): "first", (1, 3): "x", (1, 4): "x +", (1, 5): "y", (2, 2): "second",
                     (2, 6): "z"}  # fmt: skip
    complete = [e for e in found if e["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in complete] == [
        ("a", 3, 1, 2), ("wait", 3, 1, 1), ("work", 3, 2, 1), ("b", 4, 2, 2)
    ]  # fmt: skip
    assert complete[0]["args"] == {"n": 1}
    assert {e["ph"] for e in found} == {"M", "X"}


def test_viewers_keep_the_order() -> None:
    """Without sort indices they order processes and threads by name."""
    tracks = [Track(name, [Slice("a", 0, 1)]) for name in ("b", "a")]
    found = list(events([Process(name, tracks) for name in ("second", "first")]))
    for what, names in (("process", ["second", "first"]), ("thread", ["b", "a", "b", "a"])):
        places = {(e["pid"], e["tid"]): e["args"]["name"] for e in found
                  if e["name"] == f"{what}_name"}  # fmt: skip
        index = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in found
                 if e["name"] == f"{what}_sort_index"}  # fmt: skip
        assert places.keys() == index.keys() and len(set(index.values())) == len(index)
        assert [places[key] for key in sorted(index, key=index.__getitem__)] == names


def test_the_documented_format() -> None:
    """Fields and types of the Trace Event Format; slices of a thread nest."""
    inner = (Slice("wait", 1.00004, 2), Slice("work", 2, 3.00009))
    tracks = [Track("x", [Slice("a", 1.00004, 3.00009, {"n": 1}, inner)]), Track("y", [])]
    found = json.loads(json.dumps(list(events([Process("first", tracks)]))))
    for event in found:
        assert event["ph"] in ("M", "X") and isinstance(event["name"], str)
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "M":
            kind = str if event["name"].endswith("_name") else int
            assert [type(value) for value in event["args"].values()] == [kind]
        else:
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["args"], dict)
    for spans in slices_of(found).values():
        check_nesting(spans)


def test_a_predicted_step(tmp_path: Path) -> None:
    requests = RequestBatch.from_lengths(np.array([1, 2]), np.array([9000, 7000]))
    plan = plan_batch(requests, Geometry(16, 64, 4, 1, window_right=0), 12)
    timing = Timing.for_kernel(
        128, 128, schedule="ampere_tile", loader="paged", blocks_per_sm=2, constants=BUILT_IN
    )
    explanation = explain(Launch(plan, "ampere_tile", timing))
    path = explanation.trace(tmp_path / "step.json")
    file = json.loads(path.read_text())
    found = file["traceEvents"]
    (launch,) = explanation.launches
    items = [e for e in found if e["ph"] == "X" and e["name"].startswith("request ")]
    assert len(items) == explanation.num_items
    keys = sum(e["args"]["key_end"] - e["args"]["key_begin"] for e in items)
    assert keys == sum(row["key_end"] - row["key_begin"] for row in explanation.rows())
    assert launch.merge_us > 0 and sum(e["name"] == "merge" for e in found) == 1
    assert max(e["ts"] + e["dur"] for e in found if e["ph"] == "X") == pytest.approx(
        explanation.predicted_us, abs=1e-3
    )
    threads = slices_of(found)
    assert len(threads) == 13, "a thread a block, and the merge"
    for spans in threads.values():
        check_nesting(spans)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no/such"):
        write(tmp_path / "no/such/step.json", [])
