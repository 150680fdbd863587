"""The log linter, on logs of real compiles of kernels with one known fault each."""

from __future__ import annotations

import json

import pytest

from cute_attn.runtime import CompileRequest, Resources, Toolchain, compile_source
from cute_attn.runtime.log import first_errors, parse_log
from cute_attn.runtime.toolchain import available_toolchains

SPILLS = """extern "C" __global__ void k(float* p, int n) {
  float a[64];
  for (int i = 0; i < 64; ++i) a[i] = p[i * n + threadIdx.x];
  for (int r = 0; r < n; ++r)
    for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i + 7) % 64] + p[r];
  for (int i = 0; i < 64; ++i) p[i * n + threadIdx.x] = a[i];
}"""

STACK_FRAME = """extern "C" __global__ void k(float* p, int n) {
  float a[64];
  for (int i = 0; i < 64; ++i) a[i] = p[i];
  for (int i = 0; i < n; ++i) a[(i * n) & 63] += a[(i * 7 + n) & 63];
  p[threadIdx.x] = a[n & 63];
}"""

# No __launch_bounds__: the assembler cannot know the register count at entry.
SETMAXNREG_IGNORED = """extern "C" __global__ void k(float* p) {
  if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  p[threadIdx.x] = 1.0f;
}"""

# The accumulator is touched between the commit and the wait.
WGMMA_SERIALIZED = """extern "C" __global__ void __launch_bounds__(128, 1)
k(float* p, unsigned long long a, unsigned long long b, int n) {
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  for (int i = 0; i < n; ++i) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "l"(a + i), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    d0 *= 2.0f;
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  p[threadIdx.x] = d0 + d1 + d2 + d3;
}"""

each_toolchain = pytest.mark.parametrize("toolchain", available_toolchains(), ids=str)


def resources(source: str, toolchain: Toolchain, *options: str) -> Resources:
    request = CompileRequest(source, "k", "sm_90a", options=options, toolchain=toolchain)
    return compile_source(request).resources


@each_toolchain
def test_spills_are_found(toolchain: Toolchain) -> None:
    found = resources(SPILLS, toolchain, "--maxrregcount=32")
    assert found.registers <= 32
    assert found.spill_store_bytes > 0 and found.spill_load_bytes > 0
    assert any("spills" in reason for reason in found.lint())


@each_toolchain
def test_a_stack_frame_is_found(toolchain: Toolchain) -> None:
    found = resources(STACK_FRAME, toolchain)
    assert found.stack_bytes >= 256 and found.spill_store_bytes == 0
    assert [reason for reason in found.lint() if "stack frame of" in reason]


@each_toolchain
def test_an_ignored_setmaxnreg_is_found(toolchain: Toolchain) -> None:
    (reason,) = resources(SETMAXNREG_IGNORED, toolchain).lint()
    assert "setmaxnreg" in reason and "ignored" in reason


@each_toolchain
def test_serialized_wgmma_is_found(toolchain: Toolchain) -> None:
    reasons = resources(WGMMA_SERIALIZED, toolchain).lint()
    assert any("wgmma" in reason and "serialized" in reason for reason in reasons)


@each_toolchain
def test_a_clean_kernel_is_clean(toolchain: Toolchain, scale_source: str) -> None:
    compiled = compile_source(CompileRequest(scale_source, "scale", "sm_90a", toolchain=toolchain))
    assert compiled.lint() == []
    assert 4 <= compiled.resources.registers <= 32


@each_toolchain
def test_static_shared_memory_and_front_end_warnings(toolchain: Toolchain) -> None:
    source = """extern "C" __global__ void k(float* p) {
  __shared__ float tile[300];
  int unused = 3;
  tile[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = tile[299 - threadIdx.x];
}"""
    found = resources(source, toolchain)
    assert found.static_smem_bytes == 1200 and found.barriers == 1
    assert any("unused" in warning and "(3)" in warning for warning in found.warnings)
    assert found.lint() == []


def test_only_the_named_entry_is_reported() -> None:
    log = """ptxas info    : Compiling entry function 'other' for 'sm_80'
ptxas info    : Function properties for other
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 64 bytes smem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for _Z6helperPf
    24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 21 registers, used 2 barriers, 8 bytes smem, 360 bytes cmem[0], 8 bytes cmem[2]
"""
    found = parse_log(log, "k")
    assert found == Resources(
        registers=21, static_smem_bytes=8, stack_bytes=24, barriers=2, const_bytes=368
    )
    assert parse_log(log, "absent") is None


def test_resources_survive_json() -> None:
    before = Resources(168, 16, performance_warnings=("(C7510) x",), warnings=("k.cu(1): warning",))
    assert Resources.from_json(json.loads(json.dumps(before.to_json()))) == before
    with pytest.raises(TypeError):
        Resources.from_json({"registers": 1, "unknown": 2})


def test_first_errors_keep_their_source_lines_and_leave_the_rest() -> None:
    log = """kernel.cu(3): warning #177-D: variable "x" was declared but never referenced
  int x;
      ^

kernel.cu(5): error: identifier "y" is undefined
   y = 3;
   ^
mine.py(7): error: no instance of overloaded function "f"
   f(1);
   ^

2 errors detected in the compilation of "kernel.cu".
"""
    first, second = first_errors(log)
    assert first.splitlines() == [
        'kernel.cu(5): error: identifier "y" is undefined',
        "   y = 3;",
        "   ^",
    ]
    assert second.startswith("mine.py(7): error")
    assert first_errors(log, limit=1) == (first,)
