"""`calibrate` without a GPU: the host's part of a measurement, and what becomes of its times."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cute_attn.api import calibrate as module
from cute_attn.api.launches import measured_launch
from cute_attn.api.sweeps import Sweep
from cute_attn.runtime import DeviceInfo, DriverError
from cute_attn.scheduler import BUILT_IN, Measurement
from cute_attn.variants import full

CPU = torch.device("cpu")
GPU = DeviceInfo(0, "GPU of tests", "sm_90a", 120, 232448, 0, 0, 50 << 20, 1 << 37, "13.0")
TINY = [
    Sweep("ragged", (3, 0, 40), (30, 0, 40), 8, 2, 64, page_size=None, variant=full()),
    Sweep("pages", (1, 1), (100, 1), 8, 2),
    Sweep("beside", (1, 100, 1), (56_000, 160, 56_000), 8, 2),
]


@pytest.fixture
def fake_runs(fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Batches on the fake GPU, called once per run of the graph instead of timed."""

    def batch(*sizes: int, device: torch.device, **options: Any) -> Any:
        return fake_gpu.batch(*sizes, **options)

    def graph_us(run: Callable[[int], object], count: int, runs: int, **budgets: float) -> float:
        assert runs >= 8 and runs % count == 0
        for index in range(runs):
            run(index)
        return 12.5

    monkeypatch.setattr(module, "BatchAttention", batch)
    monkeypatch.setattr(module, "_graph_us", graph_us)
    return fake_gpu


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_a_case_is_run_on_caches_in_turn(case: Sweep, fake_runs: Any) -> None:
    found = module.measure(case, CPU, count=3, warm_us=0, budget_us=0)
    assert (found.name, found.us) == (case.name, 12.5)
    launches = len(found.launches)
    assert launches == (2 if case.name == "beside" else 1)
    assert len(fake_runs.launches) == 9 * launches
    first = fake_runs.launches[::launches]
    maps = [launch.params.get("k_map") or launch.params["k"] for launch in first]
    assert len(set(maps)) == 3 and maps[:3] == maps[3:6] == maps[6:]
    served = [launch.plan.requests.num_requests for launch in found.launches]
    assert sum(served) == len(case.q_lens)
    assert found.predicted_us(BUILT_IN) > 0


def stand_in(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> list[str]:
    """Everything on the GPU gives a time; returns the names of the cases that are measured."""
    names: list[str] = []

    def measure(case: Sweep, device: torch.device, **options: Any) -> Measurement:
        names.append(case.name)
        parts = case.parts(GPU.arch, GPU.num_sms)
        launches = tuple(measured_launch(part.plan(), part.spec) for part in parts)
        us = Measurement(case.name, 1.0, launches).predicted_us(BUILT_IN)
        return Measurement(case.name, 1.1 * us, launches)

    monkeypatch.setattr(module, "_device", lambda index: GPU)
    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(module, "warmup", lambda specs: [SimpleNamespace(toolchain="nvrtc-1")])
    monkeypatch.setattr(module, "_start", lambda info, budget_us: BUILT_IN.gpu)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_bytes, GPU.memory_bytes))
    return names


def test_constants_come_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = stand_in(monkeypatch, 1 << 37)
    told: list[tuple[int, int, str]] = []
    found = module.calibrate(
        quick=True, progress=lambda done, total, name, us: told.append((done, total, name))
    )
    assert [case.name for case in found.measurements] == names and not found.skipped
    assert told == [(i, len(names), name) for i, name in enumerate(names, 1)]
    assert found.constants.gpu.read_gbps == pytest.approx(BUILT_IN.gpu.read_gbps / 1.1, rel=0.03)
    errors = [math.log(m.predicted_us(found.constants) / m.us) for m in found.measurements]
    assert found.made["worst_error"] == pytest.approx(max(map(abs, errors)), abs=1e-4)
    assert found.made["cases"] == len(names) and found.made["toolchain"] == "nvrtc-1"


def test_cases_that_need_too_much_memory_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    names = stand_in(monkeypatch, 600 << 20)
    found = module.calibrate(quick=True)
    assert found.skipped and not set(found.skipped) & set(names)
    assert "decode 16 x 8192" in found.skipped and "decode 1 x 1024" in names


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(DriverError, match="calibrate measures a GPU, and there is none"):
        module.calibrate()
