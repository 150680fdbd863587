"""A quick calibration of this GPU: its file is found, plans are made with it, results are right."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from cute_attn.api.calibrate import Calibration, calibrate
from cute_attn.api.launches import cost_of
from cute_attn.api.sweeps import sweeps
from cute_attn.runtime import cost_files, device_info
from cute_attn.scheduler import BUILT_IN, Constants
from cute_attn.scheduler.constants_file import constants_text, read_constants
from tests.gpu.serving import EVERYTHING, assert_right, serving_attention, serving_batch
from tests.gpu.test_device_planner import Tables

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300, method="thread")]

DECODES = [(1, 9000), (1, 300), (1, 4000), (1, 65)]
MIXED = [*[(1, 12_000)] * 9, (700, 900)]


@dataclass(frozen=True)
class Calibrated:
    """A calibration, and the file that holds it."""

    found: Calibration
    path: Path

    @property
    def constants(self) -> Constants:
        """As the file has them."""
        gpu = self.found.constants.gpu
        return read_constants(self.path, name=gpu.name, sms=gpu.sms)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calibrated]:
    """Written where planning looks for it, in a configuration directory of its own."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("config")
        patch.setenv("XDG_CONFIG_HOME", str(directory))
        patch.delenv("CUTE_ATTN_COST_FILE", raising=False)
        found = calibrate(quick=True)
        gpu = found.constants.gpu
        path = cost_files.default_path(gpu.name, gpu.sms)
        assert directory in path.parents
        cost_files.write(path, constants_text(found.constants, found.made))
        yield Calibrated(found, path)


def test_constants_of_this_gpu(calibrated: Calibrated, record: Callable[..., None]) -> None:
    found, info = calibrated.found, device_info(torch.cuda.current_device())
    gpu = found.constants.gpu
    assert (gpu.name, gpu.sms) == (info.name, info.num_sms)
    names = [case.name for case in found.measurements]
    expected = [case.name for case in sweeps(info.arch, info.num_sms, quick=True)]
    assert [*names, *found.skipped] == expected or found.skipped
    errors = [math.log(case.predicted_us(found.constants) / case.us) for case in found.measurements]
    own = found.constants.times
    tile = "hopper_tile" if info.arch == "sm_90a" else "ampere_tile"
    record(
        "G",
        "quick calibration",
        tflops=gpu.tflops,
        read_gbps=gpu.read_gbps,
        worst_error=max(map(abs, errors)),
        efficiency=own[tile][128].efficiency,
        item_us=own[tile][128].item_us,
        start_us=own["ampere_decode"][256].start_us,
    )
    # Every GPU that kernels are built for lies between these.
    assert 50 < gpu.tflops < 5000 and 200 < gpu.read_gbps < 20_000
    assert 0.2 < own[tile][128].efficiency < 1.5
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < 0.15
    assert found.made["cases"] == len(found.measurements) and found.made["toolchain"]


@pytest.mark.parametrize("requests", [DECODES, EVERYTHING, MIXED], ids=["decode", "all", "mixed"])
def test_plans_are_made_with_them(
    requests: list[tuple[int, int]], calibrated: Calibrated, device: torch.device
) -> None:
    batch = serving_batch(requests, device)
    wrapper = serving_attention(device).plan(batch.qo_indptr, batch.kv_format)
    specs = [kernel.spec for kernel in wrapper.kernels if kernel.spec is not None]
    for plan, spec in zip(wrapper.plans, specs, strict=True):
        assert plan.cost == cost_of(spec, calibrated.constants) != cost_of(spec, BUILT_IN)
    out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
    assert_right(batch, out, lse)
    assert wrapper.explain().predicted_us > 0

    given = serving_attention(device, costs=calibrated.path)
    given.plan(batch.qo_indptr, batch.kv_format)
    for plan, other in zip(given.plans, wrapper.plans, strict=True):
        assert np.array_equal(plan.buffer, other.buffer)


def test_the_device_plans_with_them(calibrated: Calibrated, device: torch.device) -> None:
    """To the bits of the host's plan, by the kernel that is there anyway."""
    batch = serving_batch(DECODES, device)
    tables = Tables.new(len(DECODES), len(batch.kv_format.page_table), device)
    tables.fill(batch)
    costs = []
    for given in (None, BUILT_IN):
        wrapper = serving_attention(device, cuda_graph=True, max_requests=8, costs=given)
        wrapper.plan(batch.qo_indptr, batch.kv_format)
        (host,), memory = wrapper.plans, wrapper._backend.launches[0].store._buffer.memory
        wrapper.run(batch.q, *batch.kv)
        torch.cuda.synchronize()
        memory.fill_(-7)
        wrapper.plan_on_device(tables.kv)
        out, lse = wrapper.run(batch.q, *batch.kv, return_lse=True)
        assert_right(batch, out, lse)
        wrapper.check_plan()
        assert np.array_equal(memory[: host.buffer.size].cpu().numpy(), host.buffer)
        costs.append(host.cost)
    assert costs[0] != costs[1]


def test_a_broken_file_is_named(
    calibrated: Calibrated, tmp_path: Path, device: torch.device
) -> None:
    path = tmp_path / "costs.json"
    path.write_text(calibrated.path.read_text().replace('"item_us"', '"item"', 1))
    with pytest.raises(ValueError, match=r"costs\.json: kernels\..*item_us is missing"):
        serving_attention(device, costs=path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTE_ATTN_COST_FILE", os.fspath(path))
        with pytest.raises(ValueError, match=r"costs\.json: "):
            serving_attention(device)
