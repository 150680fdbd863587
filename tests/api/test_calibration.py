"""Sweeps and the fit: constants are found again in what a GPU of known constants would measure."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from cute_attn.api.launches import measured_launch
from cute_attn.api.sweeps import Sweep, sweeps
from cute_attn.cli.plan_facts import GPU_SMS
from cute_attn.scheduler import BUILT_IN, Constants, Gpu, KernelTimes, Measurement, fit_constants
from perf.cases import all_specs

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a")
NOISE = 0.015


def another_gpu(name: str, sms: int) -> Constants:
    """Constants of a made-up GPU, which every case depends on."""

    def changed(times: KernelTimes) -> KernelTimes:
        return replace(
            times,
            start_us=times.start_us * 1.3,
            item_us=times.item_us * 1.4,
            masked_us=times.masked_us * 1.2,
            efficiency=times.efficiency * 0.85,
            paged=times.paged * 0.96,
            merge_us=times.merge_us * 1.5,
        )

    times = {
        schedule: {dim: changed(row) for dim, row in rows.items()}
        for schedule, rows in BUILT_IN.times.items()
    }
    times["ampere_decode"] = {
        dim: replace(row, sm_share=0.4, item_us=6.0, efficiency=0.75, paged=1.0)
        for dim, row in times["ampere_decode"].items()
    }
    gpu = Gpu(
        name, sms, tflops=500.0, read_gbps=2600.0, sm_read_gbps=129.0 * 2600 / 4633 * 132 / sms
    )
    return Constants(gpu, times, "made up")


def measurements(cases: list[Sweep], arch: str, true: Constants, noise: float) -> list[Measurement]:
    """What a GPU of these constants would measure."""
    rng, found = random.Random(0), []
    for case in cases:
        parts = case.parts(arch, true.gpu.sms)
        launches = tuple(measured_launch(part.plan(), part.spec) for part in parts)
        us = Measurement(case.name, 1.0, launches).predicted_us(true)
        found.append(Measurement(case.name, us * math.exp(rng.gauss(0, noise)), launches))
    return found


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("quick", [False, True])
def test_sweeps_are_served_and_cover_what_a_gpu_runs(arch: str, quick: bool) -> None:
    _, sms = GPU_SMS[arch]
    cases = sweeps(arch, sms, quick=quick)
    assert len({case.name for case in cases}) == len(cases) > (8 if quick else 25)
    parts = [case.parts(arch, sms) for case in cases]
    schedules = {part.spec.schedule for own in parts for part in own}
    tile = "hopper_tile" if arch == "sm_90a" else "ampere_tile"
    assert schedules == {tile, "ampere_decode"}
    assert any(len(own) == 2 for own in parts) == (arch == "sm_90a")
    if not quick:
        dims = {
            part.spec.head_dim_qk for own in parts for part in own if part.spec.schedule == tile
        }
        # Every row of the table but that of latent rows, which follows the others.
        assert dims == set(BUILT_IN.times[tile]) - {576}


def test_quick_sweeps_take_kernels_of_the_benchmarks() -> None:
    """They are compiled beforehand where nothing can compile."""
    known = {spec.name for spec in all_specs("sm_90a")}
    for case in sweeps("sm_90a", 132, quick=True):
        assert {part.spec.name for part in case.parts("sm_90a", 132)} <= known


def test_constants_are_found_again() -> None:
    true = another_gpu("GPU of tests", 120)
    cases = measurements(sweeps("sm_90a", 120), "sm_90a", true, NOISE)
    begin = replace(true.gpu, read_gbps=4000.0, sm_read_gbps=100.0)
    found = fit_constants(cases, BUILT_IN, gpu=begin, source="a test")
    assert (found.gpu.name, found.gpu.sms, found.gpu.tflops) == ("GPU of tests", 120, 500.0)
    assert found.source == "a test"
    assert found.gpu.read_gbps == pytest.approx(true.gpu.read_gbps, rel=0.03)
    for dim, times in found.times["hopper_tile"].items():
        own = true.times["hopper_tile"][dim]
        assert times.efficiency == pytest.approx(own.efficiency, rel=0.04), dim
        assert times.item_us == pytest.approx(own.item_us, rel=0.3), dim
    own, times = (x.times["hopper_tile"][128] for x in (true, found))
    assert times.paged == pytest.approx(own.paged, rel=0.03)
    own, times = (x.times["ampere_decode"][256] for x in (true, found))
    assert times.start_us == pytest.approx(own.start_us, rel=0.1)
    assert times.start_us + times.merge_us == pytest.approx(own.start_us + own.merge_us, rel=0.1)
    read = [x.times["ampere_decode"][256].sm_share * x.gpu.sm_read_gbps for x in (true, found)]
    assert read[1] == pytest.approx(read[0], rel=0.06)
    for case in cases:
        assert case.predicted_us(found) == pytest.approx(case.us, rel=4 * NOISE), case.name


def test_what_no_case_depends_on_stays() -> None:
    """Quick sweeps: other head dims follow head_dim 128, other families stay."""
    true = another_gpu("GPU of tests", 132)
    cases = measurements(sweeps("sm_90a", 132, quick=True), "sm_90a", true, NOISE)
    found = fit_constants(cases, BUILT_IN, gpu=true.gpu, source="a test")
    assert found.times["ampere_tile"] == BUILT_IN.times["ampere_tile"]
    ratios = [
        found.times["hopper_tile"][dim].efficiency / times.efficiency
        for dim, times in BUILT_IN.times["hopper_tile"].items()
    ]
    assert ratios == pytest.approx([0.85] * len(ratios), rel=0.04)
    # A fit to what the constants predict moves nothing.
    exact = measurements(sweeps("sm_90a", 132, quick=True), "sm_90a", BUILT_IN, 0.0)
    again = fit_constants(exact, BUILT_IN, gpu=BUILT_IN.gpu, source="a test")
    assert again.gpu == BUILT_IN.gpu and again.times == BUILT_IN.times


@pytest.mark.parametrize("us", [0.0, -1.0, math.nan, math.inf])
def test_times_must_be_positive(us: float) -> None:
    part = sweeps("sm_80", 108, quick=True)[0].parts("sm_80", 108)[0]
    case = Measurement("a case", us, (measured_launch(part.plan(), part.spec),))
    with pytest.raises(ValueError, match=r"a case: us is .*positive"):
        fit_constants([case], BUILT_IN, gpu=BUILT_IN.gpu, source="")
    with pytest.raises(ValueError, match="measurements is empty"):
        fit_constants([], BUILT_IN, gpu=BUILT_IN.gpu, source="")
