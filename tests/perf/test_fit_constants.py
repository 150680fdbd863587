"""The fit to the committed records of an H200 lands near the built-in constants."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import replace

import pytest

from cute_attn.scheduler import BUILT_IN, H200, Constants, KernelTimes, Measurement, fit_constants
from perf import fit_constants as script
from perf.fit_constants import default_records, measured

SECTIONS = ("A", "A16", "B", "C", "H", "K", "M", "P", "Q", "W", "X")


@functools.cache
def cases() -> list[Measurement]:
    """Of section C the cases of one page size, which is what they hardly depend on."""
    return [
        case
        for case in measured(default_records(), SECTIONS)
        if "C" not in case.name.split() or ("32/8 p16" in case.name and case.us < 600)
    ]


def far_off(times: KernelTimes) -> KernelTimes:
    return replace(
        times,
        start_us=times.start_us * 1.5,
        item_us=times.item_us * 1.5,
        efficiency=times.efficiency * 0.7,
        paged=min(times.paged * 1.05, 1.0),
        merge_us=times.merge_us * 1.5,
        sm_share=times.sm_share * 0.7,
    )


@functools.cache
def fitted() -> Constants:
    """From a begin that is far off but for what no case tells: gaps of decode, starts of tiles."""
    times = {name: dict(rows) for name, rows in BUILT_IN.times.items()}
    for schedule, rows in times.items():
        for dim, own in rows.items():
            kept = {"item_us": own.item_us} if schedule == "ampere_decode" else {
                "start_us": own.start_us, "merge_us": own.merge_us, "sm_share": own.sm_share
            }  # fmt: skip
            rows[dim] = replace(far_off(own), **kept)
    begin = replace(H200, read_gbps=3000.0, sm_read_gbps=129.0 * 3000 / 4633)
    return fit_constants(cases(), replace(BUILT_IN, times=times), gpu=begin, source="records")


def test_held_out_steps_are_no_part_of_it() -> None:
    assert {case.name.split()[0] for case in cases()} == set(SECTIONS)


def test_read_rate() -> None:
    found = fitted()
    assert found.gpu.read_gbps == pytest.approx(H200.read_gbps, rel=0.02)
    share = found.times["hopper_tile"][128].read_share
    assert share == pytest.approx(BUILT_IN.times["hopper_tile"][128].read_share, rel=0.03)


def test_decode() -> None:
    found, known = (x.times["ampere_decode"][256] for x in (fitted(), BUILT_IN))
    assert found.start_us == pytest.approx(known.start_us, rel=0.15)
    assert found.merge_us == pytest.approx(known.merge_us, rel=0.3)
    rate = found.sm_share * fitted().gpu.sm_read_gbps
    assert rate == pytest.approx(known.sm_share * H200.sm_read_gbps, rel=0.05)


@pytest.mark.parametrize(
    ("schedule", "dim"),
    [("hopper_tile", 64), ("hopper_tile", 128), ("hopper_tile", 256), ("ampere_tile", 128)],
)
def test_tiles(schedule: str, dim: int) -> None:
    found, known = (x.times[schedule][dim] for x in (fitted(), BUILT_IN))
    assert found.efficiency == pytest.approx(known.efficiency, rel=0.03)
    assert found.item_us == pytest.approx(known.item_us, rel=0.2)
    if (schedule, dim) == ("hopper_tile", 128):
        assert found.paged == pytest.approx(known.paged, rel=0.03)
        assert found.gather == pytest.approx(known.gather, rel=0.03)


def test_it_explains_the_cases() -> None:
    errors = [math.log(case.predicted_us(fitted()) / (case.us)) for case in cases()]
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < 0.05


def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (steps,) = (path for path in default_records() if path.name.startswith("steps"))
    monkeypatch.setattr(sys, "argv", ["fit_constants", str(steps)])
    assert script.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Gpu(")
    assert any(line.startswith("hopper_tile") and "efficiency=" in line for line in lines)
    assert [line.split()[0] for line in lines if " us " in line] == ["X"] * 3, "T is held out"
