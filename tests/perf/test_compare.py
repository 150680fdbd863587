"""Joining a record with peers, what is printed of it, and the goals."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from perf import compare, goals, joining, records, serving_goals
from perf.cases.prefill import windows

PEER_ROWS: list[dict[str, Any]] = [
    {"sec": "C", "cfg": "a", "peer": "p", "us": 9.0, "us_graph": 8.0},
    {"sec": "C", "cfg": "a", "peer": "fi_q", "us": 1.0, "us_graph": 10.0},
    {"sec": "C", "cfg": "b", "peer": "r", "us": 10.0},
    {"sec": "A", "cfg": "a", "peer": "p", "us": 20.0, "us_graph": 1.0},
    {"sec": "A", "cfg": "b", "peer": "p", "us": 20.0},
    {"sec": "A", "cfg": "a", "peer": "cute_attn", "us": 0.5},
    {"sec": "E", "cfg": "none", "peer": "r"},
]
OUR_ROWS: list[dict[str, Any]] = [
    {"gpu": "x"},
    {"sec": "E", "cfg": "matmul", "peer": "torch", "us": 1.0, "tflops": 800.0},
    {"sec": "A", "cfg": "a", "peer": "cute_attn", "us": 40.0, "us_graph": 1.0, "tflops": 600.0},
    {"sec": "A", "cfg": "a", "peer": "fa3", "us": 30.0, "tflops": 700.0},
    {"sec": "A", "cfg": "a", "peer": "sdpa_cudnn", "us": 35.0},
    {"sec": "A", "cfg": "b", "peer": "cute_attn", "us": 10.0, "tflops": 200.0},
    {"sec": "A16", "cfg": "a", "peer": "cute_attn", "us": 10.0},
    {"sec": "C", "cfg": "a", "us": 99.0, "us_graph": 16.0, "gbps": 7.0, "gbps_graph": 100.0},
    {"sec": "C", "cfg": "b", "us": 5.0, "us_graph": 5.0},
    {"sec": "C", "cfg": "c", "us": 5.0},
    {"sec": "C", "cfg": "d", "us_graph": 5.0},
]


def test_join_takes_the_field_of_the_section_and_says_what_it_cannot_join() -> None:
    cells = {(cell.row["sec"], cell.name): cell for cell in joining.join(OUR_ROWS, PEER_ROWS)}
    assert len(cells) == 7  # no peers' rows, no E
    assert cells["A", "a"].ratio == pytest.approx(20 / 40)
    assert cells["A", "a"].live == (30.0, "fa3")
    assert cells["A", "a"].live_ratio == pytest.approx(30 / 40)
    assert cells["A16", "a"].ratio == pytest.approx(2.0)  # fp16 is held against bf16
    assert cells["A16", "a"].live is None
    assert cells["C", "a"].recorded == (8.0, "p")
    assert cells["C", "a"].ratio == pytest.approx(0.5)
    for name, note in (
        ("b", "no peer gives us_graph"),
        ("c", "no us_graph here"),
        ("d", "no peer"),
    ):
        assert cells["C", name].ratio is None and note in cells["C", name].note


def test_only_some_peers() -> None:
    best = joining.best_peers(PEER_ROWS, "fi_")
    assert best == {("C", "a"): (10.0, "fi_q")}


def test_table_and_summary() -> None:
    cells = joining.join(OUR_ROWS, PEER_ROWS)
    lines = compare.table(cells)
    assert len(lines) == 7
    assert "0.50 x p (20.0 us)" in lines[0] and "same run 0.75 x fa3" in lines[0]
    assert "600 TFLOP/s" in lines[0] and "100 GB/s" in lines[3]
    assert "cannot be joined: no peer gives us_graph" in lines[4] and " x " not in lines[4]
    by_section = {line.split()[0]: line for line in compare.summary(cells)}
    assert "2/2" in by_section["A"] and "1/4" in by_section["C"]
    assert "1.000   0.50 a" in by_section["A"]  # sqrt(0.5 * 2)
    assert "0.750   0.75 a" in by_section["A"]  # the same run
    assert "75%" in compare.matrix_line(OUR_ROWS)[0]


def test_geometric_mean() -> None:
    assert compare.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(compare.geometric_mean([]))


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shipped peers are the default; a record that beats all of them twice."""
    peers = list(records.read(joining.PEERS))
    best = joining.best_peers(peers)
    path = tmp_path / "mine.jsonl"
    file = records.Records(path, {"gpu": "a GPU", "commit": "abc"})
    for (sec, cfg), (us, _) in best.items():
        if sec in ("A", "B", "K", "T"):
            file.add(sec, cfg, peer="cute_attn", **{joining.time_field(sec): us / 2})
    monkeypatch.setattr(sys, "argv", ["compare", "--summary", str(path)])
    assert compare.main() == 0
    text = capsys.readouterr().out
    assert "a GPU, commit abc" in text
    lines = {line.split()[0]: line for line in text.splitlines() if " 2.000 " in line}
    assert lines.keys() == {"A", "B", "K", "T"}
    assert "MISSED" not in text and text.count("reached") == 8


def test_goals_against_ourselves() -> None:
    rows: list[dict[str, Any]] = [
        {"sec": "P", "cfg": "b16 c1024 ragged", "us": 100.0},
        {"sec": "P", "cfg": "b16 c1024 p16", "us": 102.0},
        {"sec": "P", "cfg": "b16 c1024 p1", "us": 125.0},
        {"sec": "H", "cfg": "d128 full   s4096", "tflops": 700.0},
        {"sec": "H", "cfg": "d96 full   s4096", "tflops": 630.0},
        {"sec": "H", "cfg": "d192 full   s4096", "tflops": 1.0},  # nothing to hold it against
        {"sec": "K", "cfg": "8/1 q256 kv8192", "tflops_graph": 379.0},
    ]
    found = {goal.what: goal for goal in goals.check(rows, [])}
    assert len(found) == 4
    assert found["P: p16, worst of ragged"].got == pytest.approx(100 / 102)
    assert "reached" in str(found["P: p16, worst of ragged"])
    assert "MISSED" in str(found["P: p1, worst of ragged"])
    assert found["H: head_dim 96, worst of head_dim 128's rate"].got == pytest.approx(0.9)
    assert "MISSED" in str(found["K: TFLOP/s of 8/1 q256 kv8192"])


def test_goal_of_windows() -> None:
    """128 x 128 tiles: a window of 128 sees two blocks of a tile, the first tile one."""
    case = windows()[3]
    assert case.cfg == "b1 s16384 d128 window128"
    tiles = 2 * 128 - 1
    assert goals.visited_pairs(case, 128, 128) == tiles * 128 * 128 * 16
    full = {"sec": "A", "cfg": "d128 full   s16384", "us": 128.0 * 128}  # a block of a tile: 1 us
    row = {"sec": "W", "cfg": case.cfg, "us": 1.1 * tiles + 10, "tile": [128, 128]}
    (goal,) = goals.check([full, row], [])
    assert goal.got == pytest.approx(1.0)


def test_goals_of_serving() -> None:
    peers: list[dict[str, Any]] = [
        {"sec": "C", "cfg": cfg, "peer": "p", "us_graph": us}
        for cfg, us in (("32/8 p16 c8192 b256", 2000.0), ("32/32 p16 z2048 b64", 500.0))
    ]
    peers += [{"sec": "T", "cfg": "azure-chat-900", "peer": "p", "us_graph": 180.0}]
    peers += [{"sec": "Q", "cfg": "64/8 q2 b16 c8192", "peer": "p", "us_graph": 134.0}]
    rows: list[dict[str, Any]] = [
        # 8.6 and 2.1 GB of K and V.
        {"sec": "C", "cfg": "32/8 p16 c8192 b256", "us_graph": 1900.0, "gbps_graph": 4521.0},
        {"sec": "C", "cfg": "32/32 p16 z2048 b64", "us_graph": 495.0, "gbps_graph": 4300.0},
        {"sec": "C", "cfg": "32/8 p16 c1024 b1", "us_graph": 6.0, "gbps_graph": 700.0},
        {"sec": "C", "cfg": "32/8 p1 c1024 b1", "us_graph": 7.1, "gbps_graph": 590.0},
        {"sec": "C", "cfg": "32/8 p1 c1024 b16", "us_graph": 19.0, "gbps_graph": 3500.0},
        {"sec": "T", "cfg": "azure-chat-900", "us_graph": 150.0},
        {"sec": "Q", "cfg": "64/8 q2 b16 c8192", "us_graph": 134.0},
        {"sec": "X", "cfg": "2048@8192 + 128x4096", "us_graph": 600.0},
        {"sec": "X", "cfg": "2048@8192", "us_graph": 350.0},
        {"sec": "X", "cfg": "128x4096", "us_graph": 480.0},
    ]
    found = {goal.what: goal for goal in serving_goals.check(rows, peers)}
    reached = {what: "reached" in str(goal) for what, goal in found.items()}
    assert reached == {
        "C: mean of the best peer": False,
        "C: worst cell": True,
        "C: z2048 from batch 16 on, 32/32, worst": False,
        "C: worst share of 4633 GB/s from 4 GB on": True,
        "C: worst share of 4633 GB/s from 2 GB on": False,
        "C: 32/8 c1024 b1, 7 us over the time": False,
        "C: 32/8 c1024 b16, GB/s": True,
        "T: mean of the best peer": True,
        "T: worst cell": True,
        "Q: worst cell": False,
        "X: 700 us over the time": True,
        "X: 0.8 x its parts' time over its own": True,
    }
    rows.append({"sec": "E", "cfg": "read 8 GiB", "peer": "triton", "gbps_graph": 4500.0})
    (share,) = (
        goal
        for goal in serving_goals.check(rows, peers)
        if goal.what == "C: worst share of 4500 GB/s (this card) from 2 GB on"
    )
    assert share.got == pytest.approx(4300 / 4500)
    assert found["X: 0.8 x its parts' time over its own"].got == pytest.approx(0.8 * 830 / 600)
    assert found["C: 32/8 c1024 b1, 7 us over the time"].got == pytest.approx(7 / 7.1)
