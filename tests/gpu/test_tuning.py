"""The tuner on the GPU: what it measures is right, is taken by plans, and beats a bad default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cute_attn import BatchAttention, TuneStep
from cute_attn.api.tune_bench import MOST_ERROR, CudaBench
from cute_attn.api.tune_kernels import compile_contests
from cute_attn.api.tune_tensors import step_tensors
from cute_attn.api.tuner import Tuning, measure_contests
from cute_attn.runtime.device import DeviceInfo, device_info
from cute_attn.tuning import Entry, search_step, store
from cute_attn.tuning.files import read
from tests.gpu import tuning_cases

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def info(device: torch.device) -> DeviceInfo:
    return device_info(device.index)


@pytest.fixture(scope="module")
def tuned(info: DeviceInfo, tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    path = tmp_path_factory.mktemp("tuning") / "db.json"
    made = compile_contests(tuning_cases.small_contests(info.arch, info.num_sms))
    return measure_contests(made, CudaBench(info), info, path)


def test_every_candidate_is_measured_and_right(
    tuned: Tuning, info: DeviceInfo, record: Callable[..., None]
) -> None:
    assert {e.step for e in tuned.entries} == {step.name for step in tuning_cases.STEPS}
    known = read(tuned.path)
    assert {e.step for e in known.entries.values()} == {e.step for e in tuned.entries}
    for contest in tuned.compiled.contests:
        entry = entry_of(tuned, contest.step.name)
        assert {m.candidate for m in entry.measured} == set(contest.candidates)
        assert len(entry.measured) > 1
        assert all(m.error <= MOST_ERROR["bf16"] and m.us > 1 for m in entry.measured)
        record("G", f"tune {entry.step}", us=entry.measured[0].us, gain=entry.gain)
    again = measure_contests(tuned.compiled, CudaBench(info), info, tuned.path)
    assert again.known == len(tuning_cases.STEPS) and not again.entries


@pytest.mark.parametrize("step", tuning_cases.STEPS, ids=lambda step: step.name)
def test_plans_take_the_winner(
    tuned: Tuning, info: DeviceInfo, device: torch.device, tmp_path: Path, step: TuneStep
) -> None:
    """Whichever was faster: here another one than the table's is said to be."""
    entry = entry_of(tuned, step.name)
    default, other = entry.measured[:2]
    other = replace(other, us=default.us / 2)
    path = tmp_path / "db.json"
    won = replace(entry, measured=(default, other), winner=1)
    store(path, [won], name=info.name, sms=info.num_sms, arch=info.arch)
    tensors = step_tensors(step, device)
    outs = []
    for tuning, measured in ((path, other), (False, default)):
        batch = BatchAttention(
            step.num_qo_heads,
            step.num_kv_heads,
            step.head_dim,
            dtype=tensors.q.dtype,
            variant=step.variant,
            device=device,
            tuning=tuning,
        )
        batch.plan(tensors.qo_indptr, tensors.kv_format)
        spec = batch.kernels[0].spec
        assert spec is not None
        assert (spec.schedule, spec.tile) == (measured.candidate.schedule, measured.candidate.tile)
        outs.append(batch.run(tensors.q, *tensors.caches[0]).float())
    assert float((outs[0] - outs[1]).norm() / outs[1].norm()) <= MOST_ERROR["bf16"]


def test_a_bad_default_is_recovered(info: DeviceInfo, record: Callable[..., None]) -> None:
    if info.arch != "sm_90a":
        pytest.skip("the bad kernel is of sm_90a")
    (contest,) = compile_contests([tuning_cases.bad_contest(info.arch, info.num_sms)]).contests
    session = CudaBench(info).open(contest.step, contest.specs)
    result = search_step(session, contest.predicted_us, most_error=MOST_ERROR["bf16"])
    session.close()
    assert result is not None
    measured, winner = result
    assert measured[0].candidate == tuning_cases.BAD
    assert winner is not None and measured[winner].us < measured[0].us
    record("G", "tune bad default", us=measured[0].us, us_after=measured[winner].us)


def entry_of(tuned: Tuning, name: str) -> Entry:
    (entry,) = [entry for entry in tuned.entries if entry.step == name]
    return entry
