"""`cute-attn doctor`: a healthy installation, and each thing that can be wrong with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from cute_attn.cli import doctor, self_test
from cute_attn.cli.demo_check import Errors
from cute_attn.runtime import DriverError, ToolchainError, default_toolchain
from cute_attn.runtime.device import DeviceInfo

Invoke = Callable[..., Any]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")


def findings(result: Any) -> dict[str, dict[str, str]]:
    facts = json.loads(result.stdout)
    found = {finding["name"]: finding for finding in facts["findings"]}
    assert facts["healthy"] == (result.exit_code == 0)
    assert facts["healthy"] == all(finding["status"] != "bad" for finding in found.values())
    return found


@NO_GPU
def test_a_healthy_machine_without_a_gpu(invoke: Invoke, kernel_cache: Path) -> None:
    result = invoke("doctor", "--json")
    found = findings(result)
    assert result.exit_code == 0, result.output
    assert found["compiler"]["found"].startswith(default_toolchain().name)
    assert found["torch"]["found"] == metadata.version("torch")
    assert found["GPU"]["status"] == "note"
    assert str(kernel_cache) in found["kernel cache"]["found"]
    assert "ampere_decode (sm_80)" in found["kernels"]["found"]
    test = found["self-test"]["found"]
    assert "on the CPU executor: error " in test and "sm_80" in test and "compiled in" in test


def test_text_has_a_line_a_check(invoke: Invoke) -> None:
    result = invoke("doctor", "--no-test")
    assert result.exit_code == 0
    assert "compiler" in result.output and "everything fits" in result.output
    assert "self-test" not in result.output


def test_no_compiler(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTE_ATTN_WHEELS", str(tmp_path))
    found = findings(invoke("doctor", "--json"))
    assert found["compiler"]["status"] == "bad"
    assert found["compiler"]["hint"].startswith("pip install ")
    assert '"nvidia-cuda-nvrtc' in found["compiler"]["hint"]
    assert found["self-test"]["status"] == "note", "left out"
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    assert findings(invoke("doctor", "--no-test", "--json"))["compiler"]["status"] == "note"


def test_a_slow_assembler_is_noted(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    old = replace(default_toolchain(), nvrtc="13.0.88", ptxas=None)
    monkeypatch.setattr(doctor, "default_toolchain", lambda: old)
    found = findings(invoke("doctor", "--no-test", "--json"))
    assert found["assembler"]["status"] == "note"
    assert "nvidia-cuda-nvcc" in found["assembler"]["hint"]


def test_no_disassembler(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_nvdisasm", lambda: None)
    found = findings(invoke("doctor", "--no-test", "--json"))
    assert found["nvdisasm"]["status"] == "note"
    assert "nvidia-cuda-nvdisasm" in found["nvdisasm"]["hint"]


def test_an_old_package(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "numpy":
            raise metadata.PackageNotFoundError(name)
        return "3.8.0.0" if name == "nvidia-cutlass" else "99.1"

    monkeypatch.setattr(doctor.metadata, "version", version)
    found = findings(invoke("doctor", "--no-test", "--json"))
    assert found["nvidia-cutlass"]["hint"] == 'pip install "nvidia-cutlass>=4.2"'
    assert found["numpy"]["found"] == "not installed" and found["torch"]["status"] == "ok"


def test_a_cache_that_cannot_be_written(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    found = findings(invoke("doctor", "--no-test", "--json"))
    assert found["kernel cache"]["status"] == "bad"
    assert "CUTE_ATTN_CACHE_DIR" in found["kernel cache"]["hint"]
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(tmp_path / "not" / "yet"))
    assert findings(invoke("doctor", "--no-test", "--json"))["kernel cache"]["status"] == "ok"
    assert not (tmp_path / "not").exists(), "a check makes no directories"


def test_a_bad_variable_and_an_unknown_gpu(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_ATTN_COMPILE_JOBS", "none")
    monkeypatch.setenv("CUTE_ATTN_ARCH", "sm_75")
    found = findings(invoke("doctor", "--json"))
    assert "CUTE_ATTN_COMPILE_JOBS='none'" in found["environment"]["found"]
    assert "none for sm_75" in found["kernels"]["found"] and "sm_90a" in found["kernels"]["found"]


def gpu(driver: str) -> DeviceInfo:
    return DeviceInfo(
        0, "NVIDIA A10", "sm_86", 72, 101376, 102400, 65536, 6 << 20, 23 << 30, driver
    )


@NO_GPU
def test_a_gpu_whose_driver_is_too_old(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "device_count", lambda: 1)
    monkeypatch.setattr(doctor, "device_info", lambda index: gpu("12.4"))
    found = findings(invoke("doctor", "--json"))
    assert found["GPU"]["found"] == "0: NVIDIA A10, compile for sm_86"
    assert found["driver"]["status"] == "bad" and "CUDA 12.4" in found["driver"]["found"]
    assert "cu12" in found["driver"]["hint"]
    assert found["torch on CUDA"]["status"] == "bad"
    assert found["constants for planning"]["hint"] == "cute-attn calibrate"
    monkeypatch.setattr(doctor, "device_info", lambda index: gpu("13.1"))
    assert findings(invoke("doctor", "--json"))["driver"]["status"] == "ok"


def test_a_driver_that_fails(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise DriverError("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")

    monkeypatch.setattr(doctor, "device_count", fail)
    found = findings(invoke("doctor", "--no-test", "--json"))
    assert "MISMATCH" in found["GPU"]["found"] and found["GPU"]["status"] == "bad"


def test_wrong_results_and_failures_are_bad(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "compare", lambda *_: Errors(1.0, 2.0, 3.0))
    found = findings(invoke("doctor", "--json"))["self-test"]
    assert found["status"] == "bad" and "wrong results" in found["hint"]

    def fail(*_: Any) -> Any:
        raise ToolchainError("it broke\nlong story")

    monkeypatch.setattr(self_test, "compare", fail)
    found = findings(invoke("doctor", "--json"))["self-test"]
    assert found["status"] == "bad" and found["hint"] == "ToolchainError: it broke"


def test_without_torch_it_says_so() -> None:
    code = 'import sys; sys.modules["torch"] = None\nfrom cute_attn.cli import app\n'
    code += 'app(["doctor", "--json"])'
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ.copy(), capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    facts = json.loads(done.stdout)
    bad = [finding for finding in facts["findings"] if finding["status"] == "bad"]
    assert [finding["name"] for finding in bad] == ["torch"]
    assert "pip install" in bad[0]["hint"]
