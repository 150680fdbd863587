"""A thread block on the host: generated kernels that use shared memory, named barriers and warp
intrinsics run as threads of the operating system.

`CONFIG` and `NAMED_BARRIER` stand in for headers; `compile_kernel` builds a program from a kernel's
text.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel

COMPILER = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)

CONFIG = """
#pragma once
#include <pthread.h>
#include <algorithm>
#include <cstdint>
#include <cstring>
#define CUTE_DEVICE inline
#define CUTE_HOST_DEVICE inline
#define CUTE_UNROLL
#define CUTE_NO_UNROLL
#define __global__
#define __device__ inline
#define __noinline__
#define __grid_constant__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
using std::max;
using std::min;
struct Index3 { unsigned x = 0; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline thread_local Index3 threadIdx;
inline Index3 gridDim{1}, blockIdx;

constexpr int kHostThreads = THREADS;
struct Barrier {
  pthread_barrier_t barrier;
  explicit Barrier(int count) { pthread_barrier_init(&barrier, nullptr, count); }
  void wait() { pthread_barrier_wait(&barrier); }
};
inline Barrier warp_barriers[kHostThreads / 32] = {WARPS};
inline uint64_t exchanged[kHostThreads];

inline void __syncwarp() { warp_barriers[threadIdx.x / 32].wait(); }

// Every lane gives a value; `read` sees those of the warp's 32 lanes.
template <class T, class Read>
T exchange(T value, Read const& read) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  exchanged[threadIdx.x] = bits;
  __syncwarp();
  auto const lane_value = [](int lane) {
    T other;
    std::memcpy(&other, &exchanged[threadIdx.x / 32 * 32 + lane], sizeof(T));
    return other;
  };
  T const result = read(lane_value);
  __syncwarp();
  return result;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return exchange(value, [&](auto const& of) { return of(lane); });
}
template <class T>
T __shfl_up_sync(unsigned, T value, int step) {
  int const lane = threadIdx.x % 32;
  return exchange(value, [&](auto const& of) { return of(lane >= step ? lane - step : lane); });
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return exchange(value, [&](auto const& of) { return of(threadIdx.x % 32 ^ mask); });
}
inline unsigned __ballot_sync(unsigned, bool value) {
  return exchange(unsigned{value}, [](auto const& of) {
    unsigned bits = 0;
    for (int lane = 0; lane < 32; ++lane) bits |= of(lane) << lane;
    return bits;
  });
}
template <class T>
T __reduce_max_sync(unsigned, T value) {
  return exchange(value, [](auto const& of) {
    T most = of(0);
    for (int lane = 1; lane < 32; ++lane) most = max(most, of(lane));
    return most;
  });
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  return exchange(value, [](auto const& of) {
    unsigned sum = 0;
    for (int lane = 0; lane < 32; ++lane) sum += of(lane);
    return sum;
  });
}
inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t{a} * b >> 32; }
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(bits); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
"""

NAMED_BARRIER = """
#pragma once
#include <condition_variable>
#include <mutex>
#include <cute/config.hpp>
namespace cute_attn {
struct NamedBarrier {
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  unsigned passed = 0;
};
inline NamedBarrier named_barriers[16];
inline void barrier_come(int barrier, int threads, bool wait) {
  NamedBarrier& own = named_barriers[barrier];
  std::unique_lock<std::mutex> lock(own.mutex);
  unsigned const before = own.passed;
  if (++own.arrived == threads) {
    own.arrived = 0;
    ++own.passed;
    own.changed.notify_all();
  } else if (wait) {
    own.changed.wait(lock, [&] { return own.passed != before; });
  }
}
inline void barrier_sync(int barrier, int threads) { barrier_come(barrier, threads, true); }
inline void barrier_arrive(int barrier, int threads) { barrier_come(barrier, threads, false); }
}  // namespace cute_attn
inline void __syncthreads() { cute_attn::barrier_sync(0, kHostThreads); }
"""

RUN = """
#include <thread>
#include <vector>
alignas(128) unsigned char shared_memory[SMEM_BYTES];

inline void run_block(Params const& params) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kHostThreads; ++i) {
    threads.emplace_back([&params, i] {
      threadIdx.x = i;
      KERNEL(params);
    });
  }
  for (auto& thread : threads) thread.join();
}
"""


def compile_kernel(
    kernel: GeneratedKernel, main: str, folder: Path, *, options: tuple[str, ...] = ()
) -> Path:
    """Compiles the kernel's text, `run_block(params)` and `main`; returns the program.

    Args:
        kernel: has an `extern __shared__` array called shared_memory.
        main: C++ behind the two.
        folder: for the files.
        options: of the compiler.
    """
    assert COMPILER is not None
    warps = ", ".join("Barrier(32)" for _ in range(kernel.threads // 32))
    config = CONFIG.replace("= THREADS", f"= {kernel.threads}").replace("WARPS}", warps + "}")
    (folder / "cute").mkdir()
    (folder / "cute" / "config.hpp").write_text(config)
    (folder / "cute_attn").mkdir()
    (folder / "cute_attn" / "named_barrier.hpp").write_text(NAMED_BARRIER)
    # Offsets are asserted with a constant address, which only CUDA's front end knows.
    text = "\n".join(line for line in kernel.text.splitlines() if not line.startswith("#define AT"))
    text = text.replace("AT(", "offsetof(Params, ").replace("#undef AT", "")
    run = RUN.replace("SMEM_BYTES", str(kernel.smem_bytes)).replace("KERNEL", kernel.name)
    source = folder / "kernel.cpp"
    source.write_text("#include <cstddef>\n" + text + run + main)
    command = [COMPILER, "-std=c++17", "-O1", "-pthread", "-fno-strict-aliasing", *options]
    command += [f"-I{folder}", f"-I{INCLUDE_DIR}", str(source), "-o", str(folder / "kernel")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder / "kernel"
