"""The prefill benchmark up to the GPU: selection, peers of the same run, and the rows it writes."""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cute_attn import BatchAttention
from perf import bench_prefill, clocks, harness, joining, live_peers, records
from perf.cases import Case, prefill

CPU = torch.device("cpu")


def small_case(window: int | None = None) -> Case:
    lens = (24, 24)
    return Case("M", "small", lens, lens, 4, 4, 16, None, True, window=window, value_dim=8)


def right(prepared: harness.Prepared) -> live_peers.Call:
    """torch's own, any back end."""
    q, k, v = (x.transpose(1, 2) for x in live_peers.dense(prepared))
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda index=0: attend(q, k, v, is_causal=True).transpose(1, 2)


def wrong(prepared: harness.Prepared) -> live_peers.Call:
    _, _, v = live_peers.dense(prepared)
    return lambda index=0: v


def copied(prepared: harness.Prepared) -> live_peers.Call:
    """torch's own over one request's keys; its rows are flat, as those of FlashAttention-3."""
    q, (k, v) = (
        prepared.q.transpose(0, 1),
        (x.transpose(0, 1) for x in harness.keys_of(prepared, 0)),
    )
    mask = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool()
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda index=0: attend(q, k, v, attn_mask=mask, enable_gqa=True).transpose(0, 1)


def parse(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["bench_prefill", *arguments])
    return bench_prefill.options()


def test_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = parse(monkeypatch, "--section", "W,M", "--match", "s8192")
    assert [case.sec for case in found.cases] == ["M", "M"]
    quick = {(case.sec, case.cfg) for case in parse(monkeypatch, "--quick").cases}
    assert quick == bench_prefill.QUICK
    for arguments in (["--section", "A,Z"], ["--match", "nothing"], ["--fa3", "/nowhere.so"]):
        with pytest.raises(SystemExit):
            parse(monkeypatch, *arguments)
    errors = capsys.readouterr().err
    assert "'Z'" in errors and "no case" in errors and "/nowhere.so" in errors


def test_cases_without_a_kernel_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    odd = Case("H", "d24 full", (64,), (64,), 1, 1, 24, None, False)
    usual = Case("A", "d64 full", (64,), (64,), 1, 1, 64, None, False)
    found = bench_prefill.runnable([odd, usual], "sm_90a", None)
    assert [case for case, _ in found] == [usual]
    assert "skipped H d24 full: hopper_tile" in capsys.readouterr().out


def test_peers_are_checked_and_refusals_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    makers: dict[str, Callable[[harness.Prepared], live_peers.Call]] = {
        "right": right,
        "wrong": wrong,
        "cudnn": live_peers.cudnn,
    }
    prepared = harness.prepare(small_case(), device=CPU)
    found = bench_prefill.peers_of(prepared, {"right": right, "wrong": wrong})
    assert found["right"][1] < 4e-3 and found["wrong"][1] > 0.1
    windowed = harness.prepare(small_case(window=5), device=CPU)
    assert harness.check(windowed) < 4e-3
    found = bench_prefill.peers_of(windowed, makers)
    assert "cudnn" not in found and found["right"][1] > 0.01  # it has no window
    assert "skipped cudnn at M small: a window" in capsys.readouterr().out
    paged = harness.prepare(Case("B", "", (24,), (24,), 4, 4, 16, 16, True), device=CPU)
    with pytest.raises(live_peers.Unsupported):
        live_peers.dense(paged)


def test_rows_of_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the times: ours at 10 us, the peers after us at 20 and 30."""

    def times(
        calls: Mapping[str, Callable[[], object]], *, rounds: int, rep_ms: int
    ) -> dict[str, float]:
        for call in calls.values():
            call()
        return {name: 10.0 * (i + 1) for i, name in enumerate(calls)}

    prepare = harness.prepare
    spec = SimpleNamespace(tile=SimpleNamespace(q=128, kv=112))
    kernel = SimpleNamespace(name="a_kernel", spec=spec)
    monkeypatch.setattr(harness, "interleaved_us", times)
    monkeypatch.setattr(
        harness, "graphs_us", lambda calls, count: {x: 5.0 * (i + 1) for i, x in enumerate(calls)}
    )
    monkeypatch.setattr(harness, "prepare", lambda case, **_: prepare(case, device=CPU))
    monkeypatch.setattr(BatchAttention, "kernels", (kernel,))
    file = records.Records(tmp_path / "x.jsonl", {})
    bench_prefill.measure([small_case()], None, {"right": right, "wrong": wrong}, file)
    ours, *peers = file.rows
    assert ours["peer"] == "cute_attn" and ours["us"] == 10 and ours["tile"] == [128, 112]
    # Half of the square: 2 (16 + 8) FLOPs, 4 heads, 2 sequences of 24 x 24.
    assert ours["tflops"] == pytest.approx(2 * 24 * 4 * 2 * 24 * 24 / 2 / 10e6, rel=1e-4)
    assert ours["err"] < 4e-3
    assert [(row["peer"], row["us"]) for row in peers] == [("right", 20), ("wrong", 30)]
    (cell,) = joining.join(file.rows, [])
    assert cell.live == (20, "right")

    chunk = Case("K", "8/1 q8 kv48", (8,), (48,), 8, 1, 16, 16, True)
    bench_prefill.measure([chunk], None, {"right": right}, file)
    row = file.rows[-1]  # the peer wants equal lengths
    assert row["peer"] == "cute_attn" and row["us_graph"] == 5 and row["us"] == 10
    bench_prefill.measure([replace(chunk, cfg="copied")], None, {"copied": copied}, file)
    (cell,) = joining.join(file.rows[-2:], [])
    assert cell.live == (10, "copied") and file.rows[-1]["us"] == 20
    assert row["tflops_graph"] == pytest.approx(chunk.flops / 5e6, rel=1e-4)


def test_cases_held_against_each_other_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        Case("P", f"b2 c24 {layout}", (24, 24), (24, 24), 4, 2, 16, page_size, True)
        for layout, page_size in (("ragged", None), ("p16", 16), ("p1", 1))
    ]
    assert len({bench_prefill.held_against(case) for case in cases}) == 1
    turns: list[tuple[list[str], int]] = []

    def times(
        calls: Mapping[str, Callable[[], object]], *, rounds: int, rep_ms: int
    ) -> dict[str, float]:
        turns.append((list(calls), rounds))
        return {name: 10.0 * (i + 1) for i, name in enumerate(calls)}

    prepare = harness.prepare
    monkeypatch.setattr(harness, "interleaved_us", times)
    monkeypatch.setattr(harness, "prepare", lambda case, **_: prepare(case, device=CPU))
    kernel = SimpleNamespace(name="a_kernel", spec=None)
    monkeypatch.setattr(BatchAttention, "kernels", (kernel,))
    file = records.Records(tmp_path / "x.jsonl", {})
    bench_prefill.measure(cases, None, {"right": right}, file)
    assert turns == [([case.cfg for case in cases], bench_prefill.ROUNDS)]
    assert [(row["cfg"], row["us"]) for row in file.rows] == [
        ("b2 c24 ragged", 10), ("b2 c24 p16", 20), ("b2 c24 p1", 30)
    ]  # fmt: skip
    assert all(row["err"] < 4e-3 for row in file.rows)


def test_which_cases_are_held_against_each_other() -> None:
    together: dict[str, list[str]] = {}
    for case in prefill():
        together.setdefault(bench_prefill.held_against(case), []).append(case.cfg)
    several = {key: names for key, names in together.items() if len(names) > 1}
    assert several.pop("H full   s4096") == [
        f"d{dim} full   s4096" for dim in (80, 96, 112, 192, 128, 256)
    ]
    assert several.pop("P b4 c4096") == [f"b4 c4096 {x}" for x in ("ragged", "p64", "p16", "p1")]
    assert len(several) == 3 + 1 and all(key[0] in "HP" for key in several)


def test_clock_is_sampled_while_the_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    readings, done = iter([1000, 1500, 1980]), threading.Event()

    def read(device: object, kind: int, value: object) -> int:
        assert kind == 1  # NVML_CLOCK_SM
        reading = next(readings, None)
        if reading is None:
            done.set()
            return 15  # an error: not counted
        ctypes.cast(value, ctypes.POINTER(ctypes.c_uint))[0] = reading  # type: ignore[arg-type]  # byref's type is private
        return 0

    monkeypatch.setattr(clocks, "_library", lambda: SimpleNamespace(nvmlDeviceGetClockInfo=read))
    monkeypatch.setattr(clocks, "_device", lambda nvml: ctypes.c_void_p(1))
    with clocks.SmClock() as clock:
        limit = time.monotonic() + 10
        while not done.is_set() and time.monotonic() < limit:
            time.sleep(0.005)
    assert clock.mhz == 1500
    monkeypatch.setattr(clocks, "_library", lambda: None)
    with clocks.SmClock() as clock:
        pass
    assert clock.mhz is None


def test_a_wrong_row_is_no_result() -> None:
    peers = [{"sec": "A", "cfg": "a", "peer": "p", "us": 20.0}]
    for err in (math.nan, "nan", 0.2):
        ours = [{"sec": "A", "cfg": "a", "peer": "cute_attn", "us": 1.0, "err": err}]
        (cell,) = joining.join(ours, peers)
        assert cell.ratio is None and "WRONG" in cell.note
        assert joining.best_peers([peers[0] | {"err": err}]) == {}
