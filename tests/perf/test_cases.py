"""Benchmark cases: lengths, work, kernels, and that they join with the peers' rows."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest

from cute_attn import UnsupportedSpecError
from perf import cases, records
from perf.cases import Case
from perf.joining import PEERS


def test_lengths() -> None:
    assert cases.lengths("c1024", 3) == [1024] * 3
    uniform = cases.lengths("u512-1024", 1000)
    assert 512 <= min(uniform) < 530 and 1010 < max(uniform) <= 1024
    zipf = cases.lengths("z2048", 16)
    assert sum(zipf) == 16 * 2048
    assert zipf == sorted(zipf, reverse=True)
    assert zipf[0] == pytest.approx(4 * zipf[3], rel=0.01)
    with pytest.raises(ValueError, match="kind"):
        cases.lengths("n5", 2)


def test_lengths_are_those_of_the_recorded_peers() -> None:
    """Totals that follow from the peers' GB/s and TFLOP/s."""
    assert sum(cases.lengths("u1-8192", 16)) == 72189
    assert sum(cases.lengths("u1-8192", 256)) == pytest.approx(996033, abs=20)
    squares = sum(n * (n + 1) for n in cases.lengths("z1024", 16))
    assert squares == pytest.approx(37.22e6, rel=1e-3)
    squares = sum(n * (n + 1) for n in cases.lengths("u512-1024", 16))
    assert squares == pytest.approx(10.389e6, rel=1e-3)


@pytest.mark.parametrize(
    ("is_causal", "window"), [(False, None), (True, None), (True, 1), (True, 3), (True, 100)]
)
def test_flops_count_visible_pairs(is_causal: bool, window: int | None) -> None:
    shapes = [(1, 1), (5, 9), (9, 5), (3, 0), (0, 4), (7, 7)]
    q_lens, kv_lens = zip(*shapes, strict=True)
    case = Case("B", "", q_lens, kv_lens, 4, 2, 8, 16, is_causal, window=window, value_dim=6)
    pairs = sum(
        not is_causal or 0 <= i + kv - q - j < (window or 100)
        for q, kv in shapes
        for i, j in itertools.product(range(q), range(kv))
    )
    assert case.flops == case.counted_flops == 2 * (8 + 6) * 4 * pairs


def test_names() -> None:
    every = cases.all_cases()
    names = {(case.sec, case.cfg) for case in every}
    assert len(names) == len(every)
    counts = {sec: sum(case.sec == sec for case in every) for sec in {case.sec for case in every}}
    assert counts == {
        "A": 36, "A16": 8, "F": 24, "B": 9, "W": 6, "M": 4, "K": 8, "H": 24, "P": 8, "C": 102,
        "D": 16, "DH": 72, "T": 16, "Q": 5, "X": 3,
    }  # fmt: skip


def peers_rows() -> list[dict[str, Any]]:
    return list(records.read(PEERS))


def test_every_row_of_the_peers_has_a_case_and_every_case_of_theirs_a_row() -> None:
    """Both ways, so that no section is half measured."""
    ours, theirs = defaultdict(set), defaultdict(set)
    for case in cases.all_cases():
        ours[case.sec].add(case.cfg)
    for row in peers_rows():
        theirs[row["sec"]].add(row["cfg"])
    for sec in ("A", "B", "W", "M", "K", "C", "D", "Q", "T", "X"):
        assert ours[sec] == theirs[sec], sec


def test_work_is_what_the_peers_counted() -> None:
    """TFLOP/s times time, from rows rounded to 0.1 TFLOP/s; few of section C give any."""
    counted = {(case.sec, case.cfg): case.counted_flops for case in cases.all_cases()}
    checked = defaultdict(set)
    for row in peers_rows():
        key = (row["sec"], row["cfg"])
        for us, rate in (("us", "tflops"), ("us_graph", "tflops_graph")):
            if key not in counted or row.get(rate) is None or row.get(us) is None:
                continue
            rounding = 0.06 * row[us] * 1e6
            work = row[rate] * row[us] * 1e6
            assert counted[key] == pytest.approx(work, rel=0.01, abs=rounding), (key, row["peer"])
            if rounding < 0.01 * work:
                checked[row["sec"]].add(row["cfg"])
    assert {sec: len(names) for sec, names in checked.items()} == {
        "A": 36, "B": 9, "W": 6, "M": 4, "K": 8, "C": 2, "D": 16, "Q": 5, "X": 3
    }  # fmt: skip


def test_bytes_of_decode_are_what_the_peers_counted() -> None:
    sizes = {case.cfg: case.kv_bytes for case in cases.decode()}
    rows = [row for row in peers_rows() if row["sec"] == "C" and row.get("gbps_graph")]
    assert len(rows) > 800
    for row in rows:
        moved = row["gbps_graph"] * row["us_graph"] * 1e3
        rounding = 0.06 * row["us_graph"] * 1e3
        assert sizes[row["cfg"]] == pytest.approx(moved, rel=0.01, abs=rounding), row


def test_dense_prefill_has_the_same_tokens_everywhere() -> None:
    for case in cases.prefill_dense():
        assert sum(case.q_lens) == cases.PREFILL_TOKENS
        assert case.num_qo_heads * case.head_dim == 2048


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_every_case_with_a_kernel_is_compiled_beforehand(arch: str) -> None:
    names, without = set(), set()
    for case in cases.all_cases():
        try:
            names.add(case.spec(arch).name)
        except UnsupportedSpecError:
            without.add(case.sec)
    assert names <= {spec.name for spec in cases.all_specs(arch)}
    assert len(names) < 70
    assert without <= ({"D", "DH", "F", "H", "M"} if arch == "sm_80" else {"H", "M"})


def test_specs_of_a_section() -> None:
    paged = cases.all_specs("sm_90a", ["B"])
    assert {spec.name for spec in paged} == {
        case.spec("sm_90a").name for case in cases.prefill_paged()
    }
    fp16 = cases.all_specs("sm_90a", ["A16"])
    assert len(fp16) == 6 and {spec.dtype for spec in fp16} == {"fp16"}
    windows = cases.all_specs("sm_90a", ["W"])
    assert len(windows) == 1 and windows[0].variant.name == "causal_window"
