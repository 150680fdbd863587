"""Which constants `BatchAttention` plans with; on the fake GPU: 4 SMs, "fake"."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import BatchAttention, DeviceKV, PagedKV
from cute_attn.abi import UNBOUNDED
from cute_attn.api import dispatch
from cute_attn.api.launches import cost_of
from cute_attn.runtime import cost_files
from cute_attn.scheduler import BUILT_IN, H200, Constants, DecodeCosts
from cute_attn.scheduler.constants_file import ConstantsFileError, constants_text
from tests.api.conftest import FakeSource

SLOW = replace(BUILT_IN, gpu=replace(H200, name="fake", sms=4, read_gbps=60.0, sm_read_gbps=90.0))
PAGES = [0, 600, 640, 1000]  # of 16 tokens


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CUTE_ATTN_COST_FILE", raising=False)


def planned(gpu: Any, **options: Any) -> BatchAttention:
    batch = gpu.batch(8, 2, 128, **options)
    return batch.plan([0, 1, 2, 3], PagedKV(PAGES, [0] * PAGES[-1], [16, 3, 7], 16))


def assert_planned_with(batch: BatchAttention, constants: Constants) -> None:
    (plan,), spec = batch.plans, batch.kernels[0].spec
    assert spec is not None and plan.cost == cost_of(spec, constants)


def written(path: Path, constants: Constants = SLOW) -> Path:
    cost_files.write(path, constants_text(constants, {}))
    return path


def test_without_a_file_they_are_built_in(fake_gpu: Any) -> None:
    assert_planned_with(planned(fake_gpu), BUILT_IN)


def test_the_users_file_for_this_gpu(fake_gpu: Any) -> None:
    path = written(cost_files.default_path("fake", 4))
    batch = planned(fake_gpu)
    assert_planned_with(batch, SLOW)
    assert batch._backend.constants.source == str(path)
    assert not np.array_equal(
        batch.plans[0].buffer, planned(fake_gpu, costs=BUILT_IN).plans[0].buffer
    )
    faster = replace(SLOW, gpu=replace(SLOW.gpu, read_gbps=240.0))
    written(path, faster)
    assert_planned_with(planned(fake_gpu), faster)
    assert_planned_with(batch.plan([0, 1], PagedKV([0, 9], [0] * 9, [16], 16)), SLOW)


def test_named_files(fake_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(cost_files.default_path("fake", 4))
    other = replace(SLOW, gpu=replace(SLOW.gpu, read_gbps=30.0))
    monkeypatch.setenv("CUTE_ATTN_COST_FILE", str(written(tmp_path / "a.json", other)))
    assert_planned_with(planned(fake_gpu), other)
    assert_planned_with(planned(fake_gpu, costs=written(tmp_path / "b.json")), SLOW)
    assert_planned_with(planned(fake_gpu, costs=str(tmp_path / "a.json")), other)
    assert_planned_with(planned(fake_gpu, costs=BUILT_IN), BUILT_IN)


def test_files_that_do_not_fit(fake_gpu: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", replace(SLOW, gpu=replace(SLOW.gpu, sms=5)))
    with pytest.raises(
        ConstantsFileError, match=rf"{path}: gpu\.name and gpu\.sms are 'fake' and 5"
    ):
        planned(fake_gpu, costs=path)
    whole = json.loads(path.read_text())
    whole["gpu"] |= {"sms": 4, "tflops": -1}
    path.write_text(json.dumps(whole))
    with pytest.raises(ConstantsFileError, match=rf"{path}: gpu\.tflops is -1"):
        planned(fake_gpu, costs=path)
    with pytest.raises(ConstantsFileError, match=r"none\.json: cannot be read"):
        planned(fake_gpu, costs=tmp_path / "none.json")


def test_the_cpu_has_none() -> None:
    with pytest.raises(ValueError, match=r"costs is 'a\.json' and device is cpu"):
        BatchAttention(8, 2, 128, device="cpu", costs="a.json")


def test_both_launches_side_by_side_have_them(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, costs=SLOW)
    pages = [0, 3500, 3510, 7010]
    batch.plan([0, 1, 101, 102], PagedKV(pages, [0] * pages[-1], [16] * 3, 16))
    assert len(batch.plans) == 2
    for plan, kernel in zip(batch.plans, batch.kernels, strict=True):
        assert kernel.spec is not None and plan.cost == cost_of(kernel.spec, SLOW)


def test_explanations_predict_with_them(fake_gpu: Any) -> None:
    fast = replace(SLOW, gpu=replace(SLOW.gpu, read_gbps=120.0))
    us = [planned(fake_gpu, costs=x).explain().predicted_us for x in (SLOW, fast)]
    kv_bytes = (1000 * 16 - 13 - 9) * 2 * 512
    assert us[0] > kv_bytes / SLOW.gpu.read_gbps / 1000
    assert us[1] < 0.6 * us[0]


def test_the_device_planner_is_told_the_same_integers(fake_gpu: Any) -> None:
    """They are arguments of its launch: other constants compile nothing."""
    sources = []

    class Source(FakeSource):
        def small(self, generated: Any) -> Any:
            sources.append(generated.text)
            return super().small(generated)

    own = Source(fake_gpu)
    tables = [torch.tensor(x, dtype=torch.int32) for x in (PAGES, [0] * PAGES[-1], [16, 3, 7])]
    told = []
    for constants in (BUILT_IN, SLOW):
        batch = planned(fake_gpu, costs=constants, cuda_graph=True, source=own)
        batch.plan_on_device(DeviceKV.from_paged(*tables, 16))
        params, spec = fake_gpu.launches[-1].params, batch.kernels[0].spec
        assert spec is not None
        geometry = dispatch.geometry(spec, 2, (UNBOUNDED, 0))
        costs = vars(DecodeCosts.of(geometry, cost_of(spec, constants), 1))
        assert {name: params[name] for name in costs} == costs
        told.append(costs)
    assert told[0] != told[1]
    assert len(set(sources)) == 1
