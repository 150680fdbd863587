"""`cute-attn calibrate`: without a GPU, and what it writes and prints of a measured one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cute_attn.api.calibrate import Calibration
from cute_attn.api.launches import measured_launch
from cute_attn.api.sweeps import sweeps
from cute_attn.cli import calibrate
from cute_attn.runtime import cost_files
from cute_attn.scheduler import BUILT_IN, H200, Measurement
from cute_attn.scheduler.constants_file import read_constants

Invoke = Callable[..., Any]
NAME, SMS = "NVIDIA H200", 132


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CUTE_ATTN_COST_FILE", raising=False)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """A calibration as a GPU would have given it."""
    part = sweeps("sm_90a", SMS, quick=True)[0].parts("sm_90a", SMS)[0]
    case = Measurement("decode", 10.0, (measured_launch(part.plan(), part.spec),))
    made: dict[str, str | int | float] = {"date": "2026-11-30", "driver": "580.1", "cases": 1}
    made |= {"mean_error": 0.02, "worst_error": 0.03}
    gpu = replace(H200, name=NAME, read_gbps=4321.0)
    found = Calibration(replace(BUILT_IN, gpu=gpu), (case,), ("too large",), made)

    def stand_in(device: int | None, *, quick: bool, progress: Any) -> Calibration:
        progress(1, 1, "decode", 10.0)
        return found

    monkeypatch.setattr(calibrate, "calibrate", stand_in)
    return found


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_one_line_says_so(invoke: Invoke, tmp_path: Path) -> None:
    for options in ((), ("--dry-run",), ("--device", "0", "--out", str(tmp_path / "a.json"))):
        result = invoke("calibrate", *options)
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: calibrate measures a GPU, and there is none")
    assert not (tmp_path / "a.json").exists()


def test_it_writes_the_file_that_planning_finds(invoke: Invoke, measured: Calibration) -> None:
    result = invoke("calibrate")
    assert result.exit_code == 0, result.output
    path = cost_files.find(NAME, SMS)
    assert path is not None and f"written: {path}" in result.stdout
    assert read_constants(path, name=NAME, sms=SMS).gpu == measured.constants.gpu
    for words in ("4321 GB/s", "too large", "decode", "2.0 %", "3.0 %", "hopper_tile"):
        assert words in result.stdout, words
    assert "1/1  decode: 10.0 us" in result.stderr


def test_out_names_the_file(invoke: Invoke, measured: Calibration, tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.json"
    assert invoke("calibrate", "--out", str(target)).exit_code == 0
    assert read_constants(target, name=NAME, sms=SMS).gpu == measured.constants.gpu
    assert cost_files.find(NAME, SMS) is None
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = invoke("calibrate", "--out", str(blocked / "a.json"))
    assert result.exit_code == 1 and "cannot be written" in result.stderr


def test_a_dry_run_writes_nothing(invoke: Invoke, measured: Calibration) -> None:
    result = invoke("calibrate", "--dry-run", "--json")
    facts = json.loads(result.stdout)
    assert facts["file"] is None and facts["gpu"]["read_gbps"] == 4321.0
    (case,) = facts["cases"]
    assert case["us"] == 10.0
    assert case["predicted_us"] == pytest.approx(
        measured.measurements[0].predicted_us(measured.constants), abs=0.01
    )
    assert cost_files.find(NAME, SMS) is None


def info(**environment: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "cute_attn.cli", "info", "--json"]
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(result.stdout)["costs"]
    return found


def test_info_says_whence_constants_are(
    invoke: Invoke, measured: Calibration, tmp_path: Path
) -> None:
    (own,) = info()
    assert own["source"] == "built in, of an H200" and own["problem"] is None
    path = tmp_path / "a.json"
    invoke("calibrate", "--out", str(path))
    (own,) = info(CUTE_ATTN_COST_FILE=str(path))
    assert own["source"] == str(path) and own["made"]["driver"] == "580.1"
    path.write_text("{}")
    (own,) = info(CUTE_ATTN_COST_FILE=str(path))
    assert own["problem"] == f"{path}: schema is missing; measure again with `cute-attn calibrate`"


def test_info_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, invoke: Invoke, measured: Calibration
) -> None:
    from cute_attn.cli import info as command
    from cute_attn.runtime import DeviceInfo

    gpu = DeviceInfo(0, NAME, "sm_90a", SMS, 0, 0, 0, 1, 1, "13.0")
    monkeypatch.setattr(command, "device_count", lambda: 1)
    monkeypatch.setattr(command, "device_info", lambda index: gpu)
    assert command.collect()["costs"][0]["source"] == "built in, of an H200"
    invoke("calibrate")
    path = cost_files.default_path(NAME, SMS)
    shown = invoke("info").stdout
    assert "constants for planning" in shown and "2026-11-30, 580.1" in " ".join(shown.split())
    whole = json.loads(path.read_text())
    whole["gpu"]["sms"] = 100
    path.write_text(json.dumps(whole))
    (own,) = command.collect()["costs"]
    assert "but the GPU is 'NVIDIA H200' with 132 SMs" in own["problem"]
    assert "constants:" in invoke("info").stdout
