"""What is compiled beforehand, and that pruning keeps exactly that."""

from __future__ import annotations

from pathlib import Path

from cute_attn.runtime import (
    CompiledKernel,
    CompileRequest,
    DiskCache,
    Resources,
    Toolchain,
    cache_key,
)
from perf import precompile


def test_tests_and_benchmarks_share_kernels() -> None:
    names = [kernel.name for kernel in precompile.kernels(None, "sm_90a")]
    tests = {kernel.name for kernel in precompile.kernels("tests", "sm_90a")}
    benches = {kernel.name for kernel in precompile.kernels("benches", "sm_90a")}
    assert len(names) == len(set(names))
    assert set(names) == tests | benches and tests & benches


def test_prune_removes_what_is_not_wanted(tmp_path: Path) -> None:
    toolchain = Toolchain("1.2.3", None, "abc")
    cache = DiskCache(tmp_path)
    kernels = []
    for name in ("kept", "stale"):
        request = CompileRequest(source=f"// {name}", name=name, arch="sm_90", include_dirs=())
        resources = Resources(registers=32)
        kernel = CompiledKernel(request, toolchain, name.encode(), "", resources, 0.0, False)
        cache.store(kernel, cache_key(request, toolchain))
        kernels.append(kernel)
    assert precompile.prune(tmp_path, kernels[:1]) == 1
    found = [
        cache.lookup(kernel.request, toolchain, cache_key(kernel.request, toolchain))
        for kernel in kernels
    ]
    assert found[0] is not None and found[1] is None
