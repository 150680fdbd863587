"""Databases that come with the package: who finds them, and what happens without their kernels."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cute_attn.api import kernel
from cute_attn.api.kernel_choice import KernelChoice
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import make_step
from cute_attn.api.tune_plan import problem_of
from cute_attn.api.tuned import Tuned, _say_that_some_are_missing, class_of, tuned_of
from cute_attn.api.tuned_kernels import tuned_kernels, warmup_tuned
from cute_attn.cli.presets import Axes, attention_specs
from cute_attn.codegen.spec import KernelSpec, Tile
from cute_attn.formats import RaggedKV
from cute_attn.runtime import forget_kernels
from cute_attn.runtime.device import DeviceInfo
from cute_attn.scheduler import BUILT_IN
from cute_attn.tuning import Candidate, Entry, Measured, TuneStep, files, store
from cute_attn.variants import causal
from perf import precompile

STEP = TuneStep("prompts", (512,) * 16, (512,) * 16, 16, 16, 64)
NAME = "nvidia-h200-132-sms.json"
# Small kernels: they are compiled here.
TABLE, FASTER = (
    Candidate("ampere_tile", Tile(q=64, kv=keys, stages=2, threads=128)) for keys in (64, 32)
)


def entry(winner: int | None = 1, step: TuneStep = STEP) -> Entry:
    measured = tuple(Measured(c, us, 0.1, us) for c, us in ((TABLE, 60.0), (FASTER, 50.0)))
    kernels = class_of(problem_of(step, "sm_90a"))
    return Entry(step.name, kernels, step.key(132), step.packed_rows, measured, winner, {})


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the package's place; the user has none yet."""
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setenv("CUTE_ATTN_TUNE_DB", str(tmp_path / "user"))
    path = tmp_path / "shipped" / NAME
    store(path, [entry()], name="NVIDIA H200", sms=132, arch="sm_90a")
    return path


def spec_of(info: DeviceInfo, tuned: Tuned | None) -> KernelSpec:
    shape = BatchShape(16, 16, 64, 64, torch.bfloat16, causal(), 0.1, "NHD", torch.device("cpu"))
    choice = KernelChoice(shape, info, BUILT_IN, schedule=None, batch_invariant=False, tuned=tuned)
    rows = [512 * i for i in range(17)]
    step = make_step(rows, RaggedKV(rows), causal(), None, torch.device("cpu"))
    return choice.spec_of(step, info.num_sms)


def test_plans_take_what_is_shipped(shipped: Path, h200: DeviceInfo) -> None:
    assert spec_of(h200, tuned_of(h200)).tile == FASTER.tile
    assert spec_of(h200, tuned_of(h200, False)).schedule == "hopper_tile"
    assert tuned_of(replace(h200, name="NVIDIA H100")) is None
    assert tuned_of(replace(h200, num_sms=114)) is None


def test_the_users_entries_lie_over_it(shipped: Path, h200: DeviceInfo) -> None:
    other = replace(STEP, name="other", head_dim=128)
    store(shipped, [entry(step=other)], name=h200.name, sms=132, arch=h200.arch)
    user = files.default_path(h200.name, h200.num_sms)
    assert user != shipped
    store(user, [entry(winner=None)], name=h200.name, sms=132, arch=h200.arch)
    known = files.known_of(h200.name, h200.num_sms)
    assert known is not None
    assert sorted((e.step, e.winner) for e in known.entries.values()) == [
        ("other", 1),
        ("prompts", None),
    ]
    assert spec_of(h200, tuned_of(h200)).schedule == "hopper_tile"
    assert len(files.read(shipped).entries) == 2  # and is as it was


def test_one_of_another_version_is_ignored(
    shipped: Path, h200: DeviceInfo, caplog: pytest.LogCaptureFixture
) -> None:
    shipped.write_text(shipped.read_text().replace('"version": 1', '"version": 0'))
    assert tuned_of(h200) is None and tuned_of(h200) is None
    assert caplog.text.count("version is 0") == 1
    assert files.known_of_arch("sm_90a") == []


def test_what_is_compiled_ahead_knows_them(shipped: Path) -> None:
    problem = problem_of(STEP, "sm_90a")
    ((spec, toolchain),) = tuned_kernels(problem)
    assert (spec.tile, toolchain) == (FASTER.tile, None)
    assert spec.arch == "sm_90"  # what the Ampere kernels are built for on an H200
    assert tuned_kernels(replace(problem, group=4)) == []
    assert tuned_kernels(replace(problem, arch="sm_80")) == []
    axes = Axes(arch=("sm_90a",), head_dim=(64,), group=(1,))
    assert spec in attention_specs(axes)
    assert spec not in attention_specs(replace(axes, schedule=("ampere_tile",)))
    assert precompile.tuned("sm_90a", ["A"]) == [(spec, None)]
    assert precompile.tuned("sm_90a", ["C"]) == []


def test_without_its_kernels_the_tables_are_taken(
    shipped: Path,
    h200: DeviceInfo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _say_that_some_are_missing.cache_clear()
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(tmp_path / "cache"))
    (missing,) = tuned_kernels(problem_of(STEP, "sm_90a"))
    table = spec_of(h200, None)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "cute_attn"):
        patch.setenv("CUTE_ATTN_NO_COMPILE", "1")
        for _ in range(3):
            forget()
            assert spec_of(h200, tuned_of(h200)) == table
    assert caplog.text.count("names kernels that are in no cache") == 1
    compiled = warmup_tuned([missing])
    assert len(compiled) == 2  # with its merge
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    forget()
    assert spec_of(h200, tuned_of(h200)) == missing[0]


def forget() -> None:
    """As in another process."""
    forget_kernels()
    kernel._build.cache_clear()
    kernel.build_generated.cache_clear()
