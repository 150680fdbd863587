"""Loading and launching against a fake driver that has the real one's prototypes."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cute_attn.runtime import DriverError, Launcher, Module, ParamsBlock, current_device
from cute_attn.runtime.driver import Driver

CUBIN = b"\x7fELF and so on"


@pytest.fixture
def module() -> Module:
    return Module(CUBIN, "k", "sm_90a")


def test_a_module_loads_once_whoever_asks(fake_cuda: Any, module: Module) -> None:
    before = module.loaded
    barrier = threading.Barrier(4)

    def load() -> int:
        barrier.wait()
        return module.load()

    with ThreadPoolExecutor(4) as threads:
        handles = {future.result() for future in [threads.submit(load) for _ in range(4)]}
    assert len(handles) == 1 and handles != {0}
    assert (before, module.loaded) == (False, True)
    assert fake_cuda.log() == ["load 0 0"]


@pytest.mark.usefixtures("fake_cuda")
def test_what_the_driver_refuses_is_an_error_with_its_words() -> None:
    with pytest.raises(DriverError, match=r"words of the driver.*speaks CUDA 13\.2") as caught:
        Module(b"no cubin", "k", "sm_90a").load()
    assert caught.value.code == 200
    with pytest.raises(DriverError, match="cuLibraryGetKernel"):
        Module(CUBIN, "other", "sm_90a").load()


def test_an_unloaded_module_loads_anew(fake_cuda: Any, module: Module) -> None:
    fake_cuda.set_current(0)
    module.unload()
    module.prepare(60_000)
    module.unload()
    module.unload()
    assert not module.loaded
    module.prepare(60_000)
    load = ["load 0 0", "onto 0", "smem 60000 on 0"]
    assert fake_cuda.log() == [*load, "unload", *load]


@pytest.mark.usefixtures("fake_cuda")
def test_attributes(module: Module) -> None:
    module.prepare(100_000)
    attributes = module.attributes()
    assert attributes.num_regs == 168
    assert attributes.max_dynamic_shared_size_bytes == 100_000
    assert (attributes.shared_size_bytes, attributes.local_size_bytes) == (1001, 1003)


def test_shared_memory_is_allowed_once_per_size_and_device(fake_cuda: Any, module: Module) -> None:
    ampere = Module(CUBIN, "k", "sm_80")
    for smem in (200_000, 150_000, 200_000):
        module.prepare(smem, device=0)
    ampere.prepare(100_000, device=1)
    assert [line for line in fake_cuda.log() if line.startswith(("onto", "smem"))] == [
        "onto 0",
        "smem 200000 on 0",
        "onto 1",
        "smem 100000 on 1",
    ]
    with pytest.raises(DriverError, match="smem_bytes=232449 per block; FAKE H200 has 232448"):
        module.prepare(232_449)
    with pytest.raises(DriverError, match="cannot run on FAKE A100: a cubin for sm_90a"):
        module.prepare(0, device=1)


def test_occupancy_is_asked_on_the_right_device(fake_cuda: Any, module: Module) -> None:
    fake_cuda.set_current(1)
    assert module.max_blocks_per_sm(384, 100_000, device=0) == 5
    assert fake_cuda.log()[-3:] == ["push 0", "occupancy 384 100000", "pop"]
    fake_cuda.set_current(1)
    module.max_blocks_per_sm(128, 100_000, device=0)
    assert current_device() == 1


def test_a_launch_passes_grid_block_stream_and_the_whole_struct(
    fake_cuda: Any, module: Module
) -> None:
    size = 1000
    params = ParamsBlock(size)
    assert params.address % 128 == 0 and len(params.view) == size
    content = random.Random(1).randbytes(size)
    params.view[:] = content
    fake_cuda.expect_params(size)
    launcher = Launcher(module, 384, 230_000)
    fake_cuda.log()
    launcher.launch(132, 0x7F00_1234_5678, params.address)
    assert fake_cuda.launched_params(size) == content
    assert fake_cuda.log() == [
        "launch grid 132 1 1 block 384 1 1 smem 230000 stream 0x7f0012345678"
    ]
    params.view[500] ^= 0xFF
    launcher.launch(132, 0x7F00_1234_5678, params.address)
    assert fake_cuda.launched_params(size) == bytes(params.view)


def test_options_become_attributes(fake_cuda: Any, module: Module) -> None:
    params = ParamsBlock(16)
    fake_cuda.expect_params(16)
    launcher = Launcher(module, (32, 4, 1), cluster=(2, 1, 1), pdl=True)
    fake_cuda.log()
    launcher.launch((8, 3, 2), 0x10, params.address)
    assert fake_cuda.log() == [
        "launch grid 8 3 2 block 32 4 1 smem 0 stream 0x10 cluster 2 1 1 pdl 1"
    ]


@pytest.mark.parametrize(("version", "overlaps"), [("12.2", False), ("12.3", True), ("13.0", True)])
def test_launches_overlap_only_where_a_graph_can_hold_them(
    fake_cuda: Any,
    module: Module,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    overlaps: bool,
) -> None:
    monkeypatch.setattr(Driver, "version", lambda self: version)
    params = ParamsBlock(16)
    fake_cuda.expect_params(16)
    launcher = Launcher(module, 128, pdl=True)
    fake_cuda.log()
    launcher.launch(1, 0, params.address)
    (launch,) = (line for line in fake_cuda.log() if line.startswith("launch"))
    assert launch.endswith(" pdl 1") is overlaps


def test_a_thread_without_a_context_gets_the_devices_primary_one(
    fake_cuda: Any, module: Module
) -> None:
    params = ParamsBlock(16)
    launcher = Launcher(module, 128)
    fake_cuda.log()
    fake_cuda.set_current(None)
    launcher.launch(1, 0, params.address)
    push, launch, pop = fake_cuda.log()
    assert (push, pop) == ("push 0", "pop") and launch.startswith("launch grid 1 1 1")


def test_a_refused_launch_names_the_kernel(fake_cuda: Any, module: Module) -> None:
    launcher = Launcher(module, 128, 1024)
    with pytest.raises(DriverError, match=r"launch of k \(block \(128, 1, 1\), 1024 bytes"):
        launcher.launch(0, 0x10, ParamsBlock(16).address)


def test_many_grids_and_streams(fake_cuda: Any, module: Module) -> None:
    params = ParamsBlock(16)
    launcher = Launcher(module, 128)
    fake_cuda.log()
    for grid in range(1, 400):
        launcher.launch(grid, 0x10 + grid % 3, params.address)
    launcher.launch(7, 0x11, params.address)
    lines = fake_cuda.log()
    assert len(lines) == 400 and lines[-1].startswith(
        "launch grid 7 1 1 block 128 1 1 smem 0 stream 0x11"
    )
    assert lines[398].startswith("launch grid 399")


def test_a_params_block_has_a_size() -> None:
    with pytest.raises(ValueError, match="size=0"):
        ParamsBlock(0)
