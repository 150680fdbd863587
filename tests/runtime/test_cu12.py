"""The CUDA 12 wheels compile CuTe kernels too: NVRTC 12.9, beside another NVRTC in one process.

The wheels are installed once into pytest's cache directory. ``cu12_wheels.py`` says how to run any
other test with them.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from cute_attn.runtime import (
    CompileRequest,
    available_toolchains,
    build_kernel,
    compile_source,
    default_toolchain,
)
from cute_attn.runtime.nvrtc import load_nvrtc

# What Hopper and Ampere kernels are made of: TMA, mbarriers, wgmma, setmaxnreg; cp.async, ldmatrix.
HOPPER = """#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cuda_bf16.h>
using namespace cute::SM90::GMMA;
struct Params {
  cute::TmaDescriptor map;
  float* out;
};
extern "C" __global__ void __launch_bounds__(256, 1) k(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) unsigned char smem[];
  auto& full = *reinterpret_cast<cutlass::arch::ClusterTransactionBarrier*>(smem + 16384);
  if (threadIdx.x == 0) {
    full.init(1);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    cutlass::arch::warpgroup_reg_dealloc<24>();
    if (threadIdx.x == 128) {
      full.arrive_and_expect_tx(16384);
      cute::SM90_TMA_LOAD_2D::copy(&params.map, reinterpret_cast<uint64_t*>(&full),
                                   uint64_t(cute::TMA::CacheHintSm90::EVICT_FIRST), smem, 0, 0);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<240>();
    full.wait(0);
    uint64_t desc = (cute::cast_smem_ptr_to_uint(smem) >> 4) | (64ull << 32) | (1ull << 62);
    float d[4] = {};
    cute::warpgroup_arrive();
    cute::SM90::GMMA::MMA_64x8x16_F32BF16BF16_SS<Major::K, Major::K>::fma(
        desc, desc + 512, d[0], d[1], d[2], d[3], ScaleOut::Zero);
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<0>();
    for (int i = 0; i < 4; ++i) params.out[4 * threadIdx.x + i] = d[i];
  }
}
"""
AMPERE = """#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>
#include <cuda_fp16.h>
extern "C" __global__ void k(cute::uint128_t const* x, float* y) {
  __shared__ cute::uint128_t tile[64];
  cute::SM80_CP_ASYNC_CACHEGLOBAL<cute::uint128_t>::copy(x[threadIdx.x], tile[threadIdx.x]);
  cute::cp_async_fence();
  cute::cp_async_wait<0>();
  __syncthreads();
  uint32_t a[4];
  cute::SM75_U32x4_LDSM_N::copy(tile[threadIdx.x], a[0], a[1], a[2], a[3]);
  float d[4] = {};
  cute::SM80_16x8x16_F32F16F16F32_TN::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], a[0],
                                          a[1], d[0], d[1], d[2], d[3]);
  for (int i = 0; i < 4; ++i) y[4 * threadIdx.x + i] = d[i];
}
"""


@pytest.fixture(scope="session")
def cu12_wheels(pytestconfig: pytest.Config) -> Path:
    path = Path(__file__).with_name("cu12_wheels.py")
    spec = importlib.util.spec_from_file_location("cu12_wheels", path)
    assert spec is not None and spec.loader is not None
    installer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(installer)
    cache = pytestconfig.cache
    assert cache is not None
    try:
        directory: Path = installer.install(cache.mkdir("cu12-wheels"))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the CUDA 12 wheels cannot be installed here: {error.stderr[-300:]}")
    return directory


@pytest.fixture
def cu12(cu12_wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the CUDA 12 wheels are to be seen."""
    monkeypatch.setenv("CUTE_ATTN_WHEELS", str(cu12_wheels))


@pytest.mark.usefixtures("cu12")
@pytest.mark.parametrize(("source", "arch"), [(HOPPER, "sm_90a"), (AMPERE, "sm_80")])
def test_kernels_compile_with_nvrtc_12(source: str, arch: str) -> None:
    toolchain = default_toolchain()
    assert toolchain.tools is not None and toolchain.nvrtc.startswith("12.9.")
    assert load_nvrtc(toolchain.tools.nvrtc).version() == (12, 9)
    compiled = compile_source(CompileRequest(source, "k", arch))
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.lint() == []


@pytest.mark.usefixtures("cu12")
def test_both_assemblers_of_cuda_12(scale_source: str) -> None:
    own, with_ptxas = available_toolchains()
    assert (own.assembler, with_ptxas.assembler) == ("nvrtc", "ptxas")
    for toolchain in (own, with_ptxas):
        compiled = compile_source(
            CompileRequest(scale_source, "scale", "sm_80", toolchain=toolchain)
        )
        assert compiled.lint() == []


def test_two_nvrtcs_in_one_process_keep_their_cache_entries_apart(
    compiler: None, scale_source: str, cu12_wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CompileRequest(scale_source, "scale", "sm_80")
    first = build_kernel(request)
    monkeypatch.setenv("CUTE_ATTN_WHEELS", str(cu12_wheels))
    second = build_kernel(request)
    assert second.toolchain.nvrtc.startswith("12.9.")
    if first.toolchain != second.toolchain:
        assert not second.from_cache and second.cubin != first.cubin
