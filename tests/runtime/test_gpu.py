"""Loading and launching on a real GPU: what the fake driver of the other tests cannot vouch for."""

from __future__ import annotations

import struct
import threading
import time
from typing import Any

import pytest

from cute_attn.runtime import (
    CompileRequest,
    DriverError,
    Launcher,
    ParamsBlock,
    TensorMapEncoder,
    TensorMapSpec,
    build_kernel,
    default_arch,
    device_info,
    replace_address,
)

pytestmark = pytest.mark.gpu

SCALE = """struct Params {
  float* x;  // (n)
  int n;
  float factor;
};
extern "C" __global__ void scale(const __grid_constant__ Params params) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < params.n; i += gridDim.x * blockDim.x)
    params.x[i] *= params.factor;
}
"""

TILE = """#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cutlass/arch/barrier.h>
struct Params {
  cute::TmaDescriptor map;
  float* out;  // (16, 32)
  int column, row;
};
extern "C" __global__ void tile(const __grid_constant__ Params params) {
  __shared__ alignas(128) unsigned char smem[2048 + 8];
  float* box = reinterpret_cast<float*>(smem);  // (16, 32)
  auto& full = *reinterpret_cast<cutlass::arch::ClusterTransactionBarrier*>(smem + 2048);
  if (threadIdx.x == 0) {
    full.init(1);
    cutlass::arch::fence_barrier_init();
    full.arrive_and_expect_tx(2048);
    cute::SM90_TMA_LOAD_2D::copy(&params.map, reinterpret_cast<uint64_t*>(&full),
                                 uint64_t(cute::TMA::CacheHintSm90::EVICT_NORMAL), box,
                                 params.column, params.row);
  }
  __syncthreads();
  full.wait(0);
  for (int i = threadIdx.x; i < 16 * 32; i += blockDim.x) params.out[i] = box[i];
}
"""


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def arch() -> str:
    found = default_arch()
    assert found is not None
    return found


def scale_launcher(arch: str, **options: Any) -> Launcher:
    kernel = build_kernel(CompileRequest(SCALE, "scale", arch))
    return Launcher(kernel.module, 128, **options)


def scale_params(x: Any, factor: float) -> ParamsBlock:
    block = ParamsBlock(16)
    block.view[:] = struct.pack("Qif", x.data_ptr(), x.numel(), factor)
    return block


def test_device_facts_agree_with_torch(torch: Any) -> None:
    facts, theirs = device_info(0), torch.cuda.get_device_properties(0)
    assert facts.name == theirs.name
    assert facts.num_sms == theirs.multi_processor_count
    assert facts.l2_bytes == theirs.L2_cache_size
    assert facts.memory_bytes == theirs.total_memory
    assert facts.arch.startswith(f"sm_{theirs.major}{theirs.minor}")


def test_the_driver_agrees_with_the_compilers_log(arch: str) -> None:
    kernel = build_kernel(CompileRequest(SCALE, "scale", arch))
    attributes = kernel.module.attributes()
    assert attributes.num_regs == kernel.resources.registers
    assert attributes.local_size_bytes == 0
    assert kernel.module.max_blocks_per_sm(128, 0) >= 8


@pytest.mark.parametrize("pdl", [False, True])
def test_launches_on_the_given_stream(torch: Any, arch: str, pdl: bool) -> None:
    if pdl and not arch.startswith("sm_9"):
        pytest.skip("programmatic dependent launch needs Hopper")
    launcher = scale_launcher(arch, pdl=pdl)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.randn(10_000, device="cuda")
        expected = x * 3.0 * 3.0
        params = scale_params(x, 3.0)
        for _ in range(2):
            launcher.launch(7, stream.cuda_stream, params.address)
        params.view[:] = bytes(16)  # the driver took a copy
    stream.synchronize()
    assert torch.equal(x, expected)


def test_a_launch_is_recorded_in_a_graph(torch: Any, arch: str) -> None:
    launcher = scale_launcher(arch)  # loads: nothing is loaded during capture
    x = torch.ones(5000, device="cuda")
    params = scale_params(x, 2.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launcher.launch(4, torch.cuda.current_stream().cuda_stream, params.address)
    params.view[:] = bytes(16)
    assert x.eq(1.0).all()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert x.eq(8.0).all()


def test_a_new_thread_may_launch_on_the_default_stream(torch: Any, arch: str) -> None:
    launcher = scale_launcher(arch)
    x = torch.ones(100, device="cuda")
    torch.cuda.synchronize()
    params = scale_params(x, 5.0)
    thread = threading.Thread(target=launcher.launch, args=(1, 0, params.address))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert x.eq(5.0).all()


def test_a_cubin_for_another_architecture_is_refused(arch: str) -> None:
    other = "sm_80" if arch.startswith("sm_9") else "sm_90a"
    with pytest.raises(DriverError, match=f"cannot run on .*{other}"):
        scale_launcher(other)


def test_too_much_shared_memory_is_refused(arch: str) -> None:
    limit = device_info(0).smem_per_block_optin
    scale_launcher(arch, smem_bytes=limit)
    with pytest.raises(DriverError, match=f"smem_bytes={limit + 1}"):
        scale_launcher(arch, smem_bytes=limit + 1)


@pytest.mark.parametrize("row", [-3, 0, 20, 90])
def test_a_tensor_map_reads_its_box_and_zeros_outside(torch: Any, arch: str, row: int) -> None:
    if not arch.startswith("sm_9"):
        pytest.skip("TMA needs Hopper")
    kernel = build_kernel(CompileRequest(TILE, "tile", arch))
    launcher = Launcher(kernel.module, 64)
    first, second = (torch.randn(100, 48, device="cuda") for _ in range(2))
    out = torch.full((16, 32), float("nan"), device="cuda")
    column = 32  # the last 16 columns of the box are outside
    spec = TensorMapSpec("float32", (48, 100), (48 * 4,), (32, 16), swizzle=0)
    block = ParamsBlock(192)
    block.view[128:144] = struct.pack("Qii", out.data_ptr(), column, row)
    stream = torch.cuda.current_stream().cuda_stream
    TensorMapEncoder(spec).write(block.address, first.data_ptr())
    for tensor in (first, second):
        if tensor is second:
            replace_address(block.address, second.data_ptr())
        out.fill_(float("nan"))
        launcher.launch(1, stream, block.address)
        padded = torch.zeros(200, 100, device="cuda")
        padded[50:150, :48] = tensor
        assert torch.equal(out, padded[50 + row : 66 + row, column : column + 32])


def test_the_host_time_of_a_launch(torch: Any, arch: str) -> None:
    launcher = scale_launcher(arch)
    x = torch.ones(128, device="cuda")
    params = scale_params(x, 1.0)
    stream = torch.cuda.current_stream().cuda_stream
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):  # fewer than fill the driver's queue
            launcher.launch(1, stream, params.address)
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 10e-6, f"{best * 1e6:.1f} us"
