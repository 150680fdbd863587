"""Device facts, and which cubin runs where."""

from __future__ import annotations

import pytest

from cute_attn.runtime import (
    CompileRequest,
    DriverError,
    Launcher,
    Module,
    build_kernel,
    current_device,
    default_arch,
    device_count,
    device_info,
    supports_arch,
)
from cute_attn.runtime.device import arch_of


@pytest.mark.usefixtures("fake_cuda")
def test_facts_of_each_gpu() -> None:
    assert device_count() == 2
    hopper, ampere = device_info(0), device_info(1)
    assert (hopper.name, hopper.arch, hopper.num_sms) == ("FAKE H200", "sm_90a", 132)
    assert (ampere.name, ampere.arch, ampere.num_sms) == ("FAKE A100", "sm_80", 108)
    assert (hopper.smem_per_block_optin, hopper.smem_per_sm) == (232448, 233472)
    assert (hopper.l2_bytes, hopper.registers_per_sm) == (50 << 20, 65536)
    assert hopper.memory_bytes == 141 << 30
    assert hopper.driver == "13.2"
    with pytest.raises(DriverError, match="index=2: there are 2"):
        device_info(2)


def test_the_architecture_to_compile_for(
    fake_cuda: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_arch() == "sm_90a"
    monkeypatch.setenv("CUTE_ATTN_ARCH", "sm_86")
    assert default_arch() == "sm_86"


@pytest.mark.usefixtures("no_cuda")
def test_without_a_driver_facts_are_absent_and_errors_are_clear(scale_source: str) -> None:
    assert device_count() == 0
    assert default_arch() is None
    for call in (device_info, current_device):
        with pytest.raises(DriverError, match="no CUDA driver") as caught:
            call()
        assert caught.value.code is None


@pytest.mark.usefixtures("no_cuda", "compiler")
def test_a_kernel_compiles_but_does_not_load_without_a_driver(scale_source: str) -> None:
    kernel = build_kernel(CompileRequest(scale_source, "scale", "sm_80"))
    with pytest.raises(DriverError, match="Compiling works without one"):
        kernel.module.load()
    with pytest.raises(DriverError, match="no CUDA driver"):
        Launcher(Module(kernel.cubin, "scale", "sm_80"), block=128)


@pytest.mark.parametrize(
    ("cubin", "gpu", "runs"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_89", True),
        ("sm_80", "sm_90a", False),
        ("sm_90", "sm_90a", True),
        ("sm_90a", "sm_90a", True),
        ("sm_90a", "sm_100a", False),
        ("sm_90a", "sm_80", False),
    ],
)
def test_cubin_compatibility(cubin: str, gpu: str, runs: bool) -> None:
    reasons = supports_arch(cubin, gpu)
    assert (reasons == []) == runs
    assert all(cubin in reason for reason in reasons)


def test_arch_names() -> None:
    assert [arch_of(*cc) for cc in [(8, 0), (8, 9), (9, 0), (10, 0)]] == [
        "sm_80",
        "sm_89",
        "sm_90a",
        "sm_100a",
    ]
    with pytest.raises(ValueError, match="arch='hopper'"):
        supports_arch("hopper", "sm_90a")
