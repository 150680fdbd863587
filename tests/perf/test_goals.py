"""Goals of variants, of sparse KV and of host times on small records."""

from __future__ import annotations

from typing import Any

import pytest

from perf import compare, host_goals, sparse_goals, variant_goals

V = {"sec": "V", "peer": "cute_attn", "err": 0.002}


def peer(sec: str, cfg: str, us: float) -> dict[str, Any]:
    return {"sec": sec, "cfg": cfg, "peer": "flex", "us": us}


def test_variants_against_flex_attention() -> None:
    rows = [
        V | {"cfg": "b4 s4096 full", "us": 10.0},
        V | {"cfg": "b4 s4096 causal", "us": 10.0},
        V | {"cfg": "b4 s4096 softcap30", "us": 10.0},
        V | {"cfg": "b4 s4096 alibi", "us": 1.0, "err": 0.5},
    ]
    peers = [
        peer("V", "b4 s4096 full", 14.5),
        peer("V", "b4 s4096 causal", 14.5),
        peer("V", "b4 s4096 softcap30", 29.0),
        peer("V", "b4 s4096 alibi", 900.0),
    ]
    found = {
        goal.what: (goal.got, goal.got >= goal.least) for goal in variant_goals.check(rows, peers)
    }
    mean = (1.45 * 1.45 * 2.9) ** (1 / 3)
    assert found["V: mean of FlexAttention"] == (pytest.approx(mean), True)
    assert found["V: worst of full"] == (pytest.approx(1.45), True)
    assert found["V: worst of softcap30"] == (pytest.approx(2.9), True)
    assert found["V: worst of the others"] == (pytest.approx(1.45), False)
    assert len(found) == 4, "a wrong result reaches nothing"


def test_variants_against_the_plain_kernel() -> None:
    rows = [
        V | {"cfg": "b2 s8192 rope", "us": 1.0, "of_plain": 0.84},
        V | {"cfg": "decode b64 c8192 rope", "us_graph": 1.0, "of_plain": 0.98},
        V | {"cfg": "decode b64 c8192 alibi", "us_graph": 1.0, "of_plain": 0.99},
        V | {"sec": "R", "cfg": "b1 w1024 40 heads", "us": 1.0, "of_plain": 0.94},
    ]
    found = variant_goals.check(rows, [])
    assert [(goal.got, goal.got >= goal.least) for goal in found] == [
        (0.84, False), (0.98, True), (0.94, False)
    ]  # fmt: skip


def test_sparse_kv() -> None:
    sparse: dict[str, Any] = {"sec": "SB", "dense_us": 4000.0, "density": 0.25, "err": 0.002}
    rows: list[dict[str, Any]] = [
        {"gpu": "of the run"},
        sparse | {"cfg": "a", "row_block": 128, "us": 1170.0},
        sparse | {"cfg": "b", "row_block": 128, "us": 2340.0},
        sparse | {"cfg": "b", "peer": "in order of rows", "us": 9000.0},
        sparse | {"cfg": "c", "row_block": 64, "us": 960.0},
        sparse | {"cfg": "wrong", "row_block": 64, "us": 1e6, "err": 0.5},
        {"sec": "SL", "cfg": "d", "kv_bytes": 44e6, "us_graph": 20.0},
    ]
    found = sparse_goals.check(rows)
    assert [goal.got for goal in found] == pytest.approx([2.0, 0.5, 0.75])
    assert compare.all_goals(rows, []) == found


def test_host_times() -> None:
    rows = [
        {"sec": "L", "cfg": "run, out given: a", "us": 8.0},
        {"sec": "L", "cfg": "run, out given: b", "us": 16.0},
        {"sec": "L", "cfg": "plan: a", "us": 1e9},
        {"sec": "N", "cfg": "decode b256", "us": 100.0, "device_us": 7.5},
        {"sec": "J", "cfg": "some_kernel", "us": 9e6, "cpu_us": 2e6},
    ]
    found = host_goals.check(rows)
    assert [goal.got for goal in found] == pytest.approx([10 / 16, 1.5, 0.8, 3.0])
    assert "(b)" in found[0].what and "6 s" in found[-1].what
    assert compare.all_goals(rows, []) == found
