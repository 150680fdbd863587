"""Fixtures of the runtime's tests: a cache for each test, small kernels, and a fake CUDA driver."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cute_attn.runtime import device_info, env, forget_kernels
from cute_attn.runtime import driver as driver_module
from cute_attn.runtime.cache import default_directory
from cute_attn.runtime.errors import ToolchainError
from cute_attn.runtime.toolchain import default_toolchain


@pytest.fixture(autouse=True)
def cache_dir(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """An empty cache directory, no variable of the caller's environment, and nothing in memory.

    Tests on a GPU take the caller's: kernels may have been compiled elsewhere.
    """
    if request.node.get_closest_marker("gpu") is not None:
        yield default_directory()
        return
    for variable in env.ALL:
        if variable is not env.WHEELS:
            monkeypatch.delenv(variable.name, raising=False)
    directory = tmp_path / "cache"
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(directory))
    forget_kernels()
    yield directory
    forget_kernels()


@pytest.fixture
def compiler() -> None:
    """Skip where nothing can compile; the project's own test environment always can."""
    try:
        default_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture
def scale_source() -> str:
    """A kernel without includes: doubles a vector."""
    return """extern "C" __global__ void scale(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2.0f;
}
"""


class FakeCuda:
    """The fake driver of fake_cuda.c, in the place of ``libcuda``."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._lib = lib
        lib.fake_log.restype = ctypes.c_char_p

    def log(self) -> list[str]:
        """Calls since the last look."""
        lines: list[str] = self._lib.fake_log().decode().splitlines()
        self._lib.fake_reset()
        return lines

    def set_current(self, device: int | None) -> None:
        """Make ``device``'s primary context the thread's current one; None: no context."""
        self._lib.fake_set_current(-1 if device is None else device)

    def launched_params(self, size: int) -> bytes:
        """The first ``size`` bytes of the parameter struct of the last launch."""
        return bytes((ctypes.c_ubyte * size).in_dll(self._lib, "fake_params"))

    def expect_params(self, size: int) -> None:
        """Have launches copy ``size`` bytes of parameters."""
        ctypes.c_size_t.in_dll(self._lib, "fake_param_bytes").value = size


@pytest.fixture(scope="session")
def fake_cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("no C compiler to build the fake driver with")
    tools = default_toolchain().tools
    assert tools is not None
    target = tmp_path_factory.mktemp("fake") / "libfakecuda.so"
    source = Path(__file__).with_name("fake_cuda.c")
    includes = [f"-I{folder}" for folder in tools.include_dirs if (folder / "cuda.h").is_file()]
    subprocess.run([gcc, "-shared", "-fPIC", *includes, source, "-o", target], check=True)
    return target


@pytest.fixture
def fake_cuda(fake_cuda_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """A driver with two GPUs, an H200 and an A100, for the host side of loading and launching."""
    monkeypatch.setattr(driver_module, "_LIBRARY", str(fake_cuda_library))
    driver_module.driver.cache_clear()
    device_info.cache_clear()
    fake = FakeCuda(ctypes.CDLL(str(fake_cuda_library)))
    fake.log()
    yield fake
    driver_module.driver.cache_clear()
    device_info.cache_clear()


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without a CUDA driver."""
    monkeypatch.setattr(driver_module, "_LIBRARY", "libcuda-absent.so.1")
    driver_module.driver.cache_clear()
    device_info.cache_clear()
    yield
    driver_module.driver.cache_clear()
    device_info.cache_clear()
