"""The tuner on a GPU that is a formula: what wins, what is stored, what plans then take."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn.api import tune_kernels
from cute_attn.api.batch import BatchAttention
from cute_attn.api.kernel_choice import KernelChoice
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import make_step
from cute_attn.api.tune_kernels import Compiled
from cute_attn.api.tune_space import contests
from cute_attn.api.tuned import Tuned, tuned_of
from cute_attn.api.tuner import measure_contests
from cute_attn.codegen.spec import Tile
from cute_attn.formats import RaggedKV
from cute_attn.runtime.device import DeviceInfo
from cute_attn.scheduler import BUILT_IN
from cute_attn.tuning import (
    Candidate,
    Database,
    DatabaseError,
    Entry,
    Measured,
    TuneStep,
    search_step,
    store,
)
from cute_attn.tuning.files import known_of, read
from cute_attn.tuning.kernel_class import KernelClass
from cute_attn.tuning.step import StepKey
from cute_attn.variants import causal
from tests.tuning.conftest import FormulaBench

STEPS = [
    TuneStep("prompts", (512,) * 16, (512,) * 16, 16, 16, 96),
    TuneStep("long prompts", (4096,) * 2, (4096,) * 2, 16, 16, 96),
    TuneStep("decodes", (1,) * 64, (2048,) * 64, 16, 16, 64),
]


def landscape(candidate: Candidate) -> float:
    """96 keys are best, queries in registers and three stages help."""
    tile = candidate.tile
    us = 100 + abs(tile.kv - 96) / 2 + 5 * abs(tile.stages - 3) - 4 * tile.q_in_registers
    return us + 10 * (tile.blocks_per_sm > 2)


def compiled(steps: list[TuneStep], info: DeviceInfo, **options: object) -> Compiled:
    found = contests(steps, info.arch, info.num_sms, **options)  # type: ignore[arg-type]
    return Compiled(found, 0, sum(len(one.specs) for one in found), 0, 0, ())


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_ATTN_TUNE_DB", str(tmp_path))


def test_the_fastest_is_taken_and_stored(h200: DeviceInfo, tmp_path: Path) -> None:
    bench, path = FormulaBench(landscape), tmp_path / "db.json"
    found = measure_contests(compiled(STEPS, h200), bench, h200, path)
    assert len(found.entries) == len(STEPS) and found.left == 0
    for entry in found.entries:
        best = min(landscape(m.candidate) for m in entry.measured)
        chosen = entry.measured[entry.winner or 0]
        assert landscape(chosen.candidate) <= 1.01 * best
        assert entry.measured[0].error == 0
    assert any(entry.winner is not None for entry in found.entries)
    stored = read(path)
    assert {e.step for e in stored.entries.values()} == {s.name for s in STEPS}
    assert Database.of_text(stored.text()).text() == stored.text()


def test_wrong_kernels_never_win(h200: DeviceInfo, tmp_path: Path) -> None:
    bench, made = FormulaBench(landscape), compiled(STEPS[:1], h200)
    best = min(made.contests[0].candidates[1:], key=landscape)
    bench.wrong.add(best)
    (entry,) = measure_contests(made, bench, h200, tmp_path / "db.json").entries
    assert best not in [m.candidate for m in entry.measured]


def test_noise_does_not_win(h200: DeviceInfo, tmp_path: Path) -> None:
    bench = FormulaBench(lambda candidate: 100.0, noise=0.1)
    found = measure_contests(compiled(STEPS, h200), bench, h200, tmp_path / "db.json")
    assert [entry.winner for entry in found.entries] == [None] * len(STEPS)


def test_a_bad_default_is_recovered(h200: DeviceInfo) -> None:
    bad = Candidate("hopper_tile", Tile(64, 48, 2, 256, 1, 72, 240))
    (contest,) = compiled(STEPS[:1], h200, defaults={"prompts": bad}).contests
    assert contest.candidates[0] == bad
    session = FormulaBench(landscape).open(contest.step, contest.specs)
    result = search_step(session, contest.predicted_us, most_error=1e-3)
    assert result is not None
    measured, winner = result
    assert winner is not None and measured[winner].candidate.tile.kv == 96


def test_it_goes_on_after_an_interrupt(h200: DeviceInfo, tmp_path: Path) -> None:
    bench, path, made = FormulaBench(landscape), tmp_path / "db.json", compiled(STEPS, h200)

    def interrupt() -> None:
        if len(bench.opened) == 2:
            raise KeyboardInterrupt

    bench.on_burst = interrupt
    with pytest.raises(KeyboardInterrupt):
        measure_contests(made, bench, h200, path)
    assert len(read(path).entries) == 1
    again = FormulaBench(landscape)
    found = measure_contests(made, again, h200, path)
    assert found.known == 1 and len(again.opened) == 2
    assert len(read(path).entries) == 3
    assert not FormulaBench(landscape).opened
    last = FormulaBench(landscape)
    assert measure_contests(made, last, h200, path).known == 3 and not last.opened
    measure_contests(made, last, h200, path, again=True)
    assert len(last.opened) == 3


def test_the_budget_ends_it(h200: DeviceInfo, tmp_path: Path) -> None:
    bench, path = FormulaBench(landscape), tmp_path / "db.json"
    bench.on_burst = lambda: time.sleep(0.002)
    made = compiled(STEPS, h200)
    found = measure_contests(made, bench, h200, path, deadline=time.monotonic() + 0.15)
    assert found.left > 0 and found.left + len(found.entries) == len(STEPS)


def test_the_budget_ends_compiling(h200: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is ready by then is measured, steps of other kernels are left."""
    plain = [replace(s, num_qo_heads=s.num_kv_heads * 4) for s in STEPS]
    found = contests(plain[1:], h200.arch, h200.num_sms, most=1)
    monkeypatch.setattr(tune_kernels, "_AT_ONCE", 1)
    told: list[tuple[int, int]] = []
    everything = tune_kernels.compile_contests(found, jobs=1)
    assert everything.left == 0 and len(everything.contests) == 2
    tune_kernels.compile_contests(
        found[:1], jobs=1, progress=lambda done, total, _: told.append((done, total))
    )
    needed = told[-1][1]
    deadline = time.monotonic() + 2  # all of them are in the cache now

    def wait(done: int, total: int, _: object) -> None:
        told.append((done, total))
        if done == needed:
            time.sleep(2)

    made = tune_kernels.compile_contests(found, jobs=1, deadline=deadline, progress=wait)
    assert [c.step.name for c in made.contests] == ["long prompts"]
    assert made.left == 1 and made.configurations == len(made.contests[0].specs)
    assert told[-1][0] == needed < told[-1][1]


def choice(info: DeviceInfo, tuned: Tuned | None) -> KernelChoice:
    shape = BatchShape(16, 16, 96, 96, torch.bfloat16, causal(), 0.1, "NHD", torch.device("cpu"))
    return KernelChoice(shape, info, BUILT_IN, schedule=None, batch_invariant=False, tuned=tuned)


def test_plans_take_what_was_found(h200: DeviceInfo, tmp_path: Path) -> None:
    path = tmp_path / "nvidia-h200-132-sms.json"
    measure_contests(compiled(STEPS[:1], h200), FormulaBench(landscape), h200, path)
    (entry,) = read(path).entries.values()
    assert entry.taken is not None

    def spec(tuned: Tuned | None, count: int, tokens: int, sms: int = 132) -> object:
        rows = [tokens * i for i in range(count + 1)]
        step = make_step(rows, RaggedKV(rows), causal(), None, torch.device("cpu"))
        return choice(h200, tuned).spec_of(step, sms)

    tuned = tuned_of(h200)
    assert tuned is not None
    taken = spec(tuned, 16, 512)
    assert taken.tile == entry.taken.candidate.tile  # type: ignore[attr-defined]
    assert spec(tuned, 20, 560) == taken  # nearby, and in as few tiles
    assert spec(tuned, 2, 8192) == spec(None, 2, 8192)  # far away
    assert spec(tuned, 16, 512, 100) == spec(None, 16, 512, 100)  # beside another launch
    assert tuned_of(h200, False) is None
    assert taken in choice(h200, tuned).all_specs(None)[0]


def test_others_databases_are_ignored_and_said_so_once(
    h200: DeviceInfo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "nvidia-h200-132-sms.json"
    store(path, [], name="NVIDIA A100", sms=108, arch="sm_80")
    for _ in range(3):
        assert tuned_of(h200) is None
    assert caplog.text.count("tune database ignored") == 1
    assert "NVIDIA A100" in caplog.text
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    assert known_of(h200.name, h200.num_sms) is None
    assert "version is 99" in caplog.text
    with pytest.raises(DatabaseError, match="version is 99"):
        tuned_of(h200, path)
    with pytest.raises(DatabaseError, match="version is 99"):
        store(path, [], name=h200.name, sms=h200.num_sms, arch=h200.arch)


def test_two_processes_lose_nothing(h200: DeviceInfo, tmp_path: Path) -> None:
    path = tmp_path / "db.json"
    measure_contests(compiled(STEPS[:1], h200), FormulaBench(landscape), h200, path)
    program = f"""
import sys
from dataclasses import replace
from pathlib import Path
from cute_attn.tuning import store
from cute_attn.tuning.files import read
path = Path({str(path)!r})
(entry,) = read(Path({str(path)!r} + ".one")).entries.values()
for i in range(20):
    own = replace(entry, key=entry.key._replace(rows=int(sys.argv[1]) + i))
    store(path, [own], name="NVIDIA H200", sms=132, arch="sm_90a")
"""
    Path(f"{path}.one").write_text(path.read_text())
    tuners = [subprocess.Popen([sys.executable, "-c", program, n]) for n in ("100", "200")]
    assert [tuner.wait(timeout=240) for tuner in tuners] == [0, 0]
    assert len(read(path).entries) == 41


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"winner": ', '"winner": 99, "x": ', "winner is 99"),
        ('"stages"', '"stagez"', "tile.stagez is not known"),
        ('"us": ', '"us": -', "us is -"),
        ('"dtype"', '"dtypes"', "class is"),
        ("{", "[", "not JSON"),
    ],
)
def test_every_field_is_checked(
    h200: DeviceInfo, tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "db.json"
    measure_contests(compiled(STEPS[:1], h200), FormulaBench(landscape), h200, path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DatabaseError, match=message) as found:
        read(path)
    assert str(path) in str(found.value)


def test_candidates_are_feasible_and_have_json() -> None:
    from cute_attn.api import dispatch
    from cute_attn.tuning import default_steps

    found = contests(default_steps(), "sm_90a", 132)
    kernels = {spec for one in found for spec in one.specs.values()}
    assert len(kernels) >= 200
    # That of latent rows has one tile.
    assert {spec.schedule for spec in kernels} == {*dispatch.BUILT_IN_SCHEDULES} - {"hopper_mla"}
    assert not [spec for spec in kernels if dispatch.supports(spec)]
    for one in found:
        assert all(math.isfinite(us) and us > 0 for us in one.predicted_us.values())
        for candidate in one.candidates:
            assert Candidate.from_json(candidate.to_json()) == candidate
            named = replace(candidate, toolchain="nvrtc-13.5.37")
            assert Candidate.from_json(named.to_json()) == named


@pytest.mark.parametrize(
    "options", [{}, {"schedule": "ampere_tile"}, {"batch_invariant": True}], ids=str
)
def test_a_given_database_is_not_passed_over(tmp_path: Path, options: dict[str, Any]) -> None:
    name = next(iter(options), "device")
    with pytest.raises(ValueError, match=f"tuning is .*db.json.* and .*{name} is"):
        BatchAttention(16, 16, 64, device="cpu", tuning=tmp_path / "db.json", **options)


def test_a_winner_is_not_taken_where_its_tiles_hold_more_padding() -> None:
    """64 x 512 rows: tiles of 192 rows compute 576 for 512, and win by 4 % all the same; of 600
    rows they compute 768 where tiles of 128 compute 640."""
    default, taken = (
        Measured(Candidate("hopper_tile", Tile(q=q, kv=128, stages=2, threads=384)), us, 0.1, us)
        for q, us in ((128, 104.0), (192, 100.0))
    )
    kernels = KernelClass("bf16", 64, 64, 4, "ragged", "causal")
    entry = Entry("step", kernels, StepKey(0, 18, 12, 16), ((64, 512),), (default, taken), 1, {})
    assert entry.gain_at(taken, np.full(7, 512)) == pytest.approx(1.04)
    assert entry.gain_at(taken, np.full(40, 600)) == pytest.approx(1.04 * 640 / 768 * 576 / 512)
    assert entry.gain_at(taken, np.array([576, 0, 1152])) > 1.04  # no padding in tiles of 192
    assert entry.best_at(np.full(7, 512)) is entry.best_at(np.full(7, 576)) is taken
    assert entry.best_at(np.full(40, 600)) is None
    assert Entry.from_json(entry.to_json()) == entry
    for rows in ([], [[1]], [[0, 8]], [[1, 2.0]], "all"):
        with pytest.raises(ValueError, match="rows"):
            Entry.from_json(entry.to_json() | {"rows": rows})


def test_the_fastest_of_each_height_is_offered() -> None:
    """Of 700 rows tiles of 128 and of 192 compute as many, of 640 those of 192 a fifth more."""
    times = ((128, 128, 69.0), (192, 48, 58.0), (192, 96, 60.0), (128, 64, 63.0), (64, 64, 90.0))
    measured = tuple(
        Measured(Candidate("hopper_tile", Tile(q=q, kv=kv, stages=3, threads=384)), us, 0.3, us)
        for q, kv, us in times
    )
    kernels = KernelClass("bf16", 96, 96, 4, "ragged", "causal")
    entry = Entry("step", kernels, StepKey(0, 19, 15, 22), ((48, 700),), measured, 1, {})
    assert [(m.candidate.tile.q, m.us) for m in entry.offers] == [(192, 58), (128, 63), (64, 90)]
    assert entry.best_at(np.full(48, 700)) is measured[1]
    assert entry.best_at(np.full(48, 640)) is measured[3]
    slower = tuple(m for m in measured if m.us >= 69)  # what did not win must promise 2 %
    entry = Entry("step", kernels, StepKey(0, 19, 15, 22), ((48, 700),), slower, None, {})
    assert [m.candidate.tile.q for m in entry.offers] == [64]
    assert entry.best_at(np.full(48, 640)) is None
    assert entry.best_at(np.full(48, 60)) is slower[1]  # half of the padding
