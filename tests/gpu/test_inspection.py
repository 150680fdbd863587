"""What is said of kernels without a GPU, held against the driver; and the doctor's self-test."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from cute_attn import build
from cute_attn.api.dispatch import all_specs
from cute_attn.api.kernel import build_generated, merge_of
from cute_attn.cli import app
from tests.gpu.specs import serving_problem

pytestmark = pytest.mark.gpu


def test_occupancy_is_what_the_driver_says(arch: str, device: torch.device) -> None:
    index = device.index or 0
    specs = [*all_specs(serving_problem(arch, 16)), *all_specs(serving_problem(arch, None))]
    kernels = [build(spec) for spec in specs]
    kernels += [build_generated(merge_of(spec)) for spec in specs if not spec.fuses_merge]
    for kernel in kernels:
        threads, smem = kernel.generated.threads, kernel.generated.smem_bytes
        blocks = kernel.compiled.module.max_blocks_per_sm(threads, smem, index)
        assert kernel.occupancy.blocks == blocks, kernel.name


def test_the_doctor_finds_a_healthy_gpu() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"], catch_exceptions=False)
    found = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert found["GPU"]["status"] == found["driver"]["status"] == "ok"
    assert found["torch on CUDA"]["status"] == "ok"
    assert found["self-test"]["status"] == "ok", found["self-test"]
    assert "a batch on the GPU: error" in found["self-test"]["found"]
    assert result.exit_code == 0, result.output
