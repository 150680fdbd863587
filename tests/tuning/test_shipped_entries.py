"""Databases that come with the package: their entries are of this version's steps and kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cute_attn.api.kernel_choice import KernelChoice
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import make_step
from cute_attn.api.tune_plan import candidate_spec, problem_of
from cute_attn.api.tuned import Tuned, tuned_of
from cute_attn.codegen.spec import KernelSpec
from cute_attn.formats import RaggedKV
from cute_attn.runtime.device import DeviceInfo
from cute_attn.scheduler import BUILT_IN
from cute_attn.tuning import TuneStep, default_steps, files
from cute_attn.tuning.search import beats

STEP_OF = {step.name: step for step in default_steps()}
SHIPPED = sorted(files.SHIPPED.glob("*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_it_is_a_database_of_the_steps_that_are_tuned(path: Path) -> None:
    database = files.read(path)
    assert path.name == files.default_path(database.name, database.sms).name
    assert path.read_text() == database.text()  # as the tuner writes it
    for entry in database.entries.values():
        step = STEP_OF[entry.step]
        assert entry.key == step.key(database.sms) and entry.rows == step.packed_rows
        problem = problem_of(step, database.arch)
        for measured in entry.measured:
            candidate_spec(problem, measured.candidate, entry.key.kind or None)
        if entry.taken is not None:
            assert beats(entry.taken, entry.measured[0]) and entry.gain > 1


def kernel_of(step: TuneStep, info: DeviceInfo, tuned: Tuned | None) -> KernelSpec:
    """What a plan of a ragged step takes."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[step.dtype]
    heads, dims = (step.num_qo_heads, step.num_kv_heads), (step.head_dim, step.head_dim_vo)
    on = torch.device("cpu")
    shape = BatchShape(*heads, *dims, dtype, step.variant, 0.1, "NHD", on)
    rows, keys = (np.r_[0, np.cumsum(lens)] for lens in (step.q_lens, step.kv_lens))
    made = make_step(rows, RaggedKV(keys), step.variant, dict(step.scalars), on)
    choice = KernelChoice(shape, info, BUILT_IN, schedule=None, batch_invariant=False, tuned=tuned)
    return choice.spec_of(made, info.num_sms)


def test_one_is_there() -> None:
    assert SHIPPED


def test_plans_take_its_winners(h200: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SHIPPED", SHIPPED[0].parent)
    monkeypatch.setattr(Tuned, "attention", lambda self, spec: None)  # nothing is compiled
    tuned = tuned_of(h200)
    taken = 0
    for entry in files.read(SHIPPED[0]).entries.values():
        step = STEP_OF[entry.step]
        if step.page_size is None:
            want = (entry.taken or entry.measured[0]).candidate.tile
            assert kernel_of(step, h200, tuned).tile == want, entry.step
            taken += entry.taken is not None
    assert taken > 5
