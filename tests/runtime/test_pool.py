"""Compile processes: results in order, shared work, precompiled headers that cannot be stale."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cute_attn.runtime import (
    CacheMissError,
    CompiledKernel,
    CompileError,
    CompilePool,
    CompileRequest,
    build_kernel,
    compile_many,
    compile_source,
    count_opcodes,
    forget_kernels,
)
from cute_attn.runtime.build import find_kernel
from cute_attn.runtime.disassemble import find_nvdisasm
from cute_attn.runtime.pool import header_prefix, job_count

pytestmark = pytest.mark.usefixtures("compiler")


def kernel(value: int, arch: str = "sm_80") -> CompileRequest:
    source = f'extern "C" __global__ void k(int* p) {{ p[0] = {value}; }}\n'
    return CompileRequest(source, "k", arch)


def test_results_come_in_order_with_errors_in_their_places(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = CompileRequest('extern "C" __global__ void k() { nonsense }', "k", "sm_80")
    known = build_kernel(kernel(0))
    requests = [kernel(1), broken, kernel(2), kernel(1), kernel(0)]
    seen: list[tuple[int, int]] = []
    with caplog.at_level(logging.INFO, "cute_attn"):
        results = compile_many(
            requests, jobs=2, progress=lambda done, total, _: seen.append((done, total))
        )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    error = results[1]
    assert isinstance(error, CompileError) and "nonsense" in str(error) and error.log
    for request, result in zip(requests, results, strict=True):
        if request is not broken:
            assert isinstance(result, CompiledKernel)
            assert result.request.source == request.source
            assert result.cubin == compile_source(request).cubin
    assert results[3] is results[0] and results[4] is known
    assert "compiling 3 kernels in 2 processes" in caplog.text


def test_finished_kernels_are_in_memory_and_on_disk() -> None:
    (first, second) = compile_many([kernel(1), kernel(2)], jobs=2)
    assert build_kernel(kernel(1)) is first
    forget_kernels()
    assert build_kernel(kernel(2)).from_cache
    assert isinstance(second, CompiledKernel) and not second.from_cache


def test_one_missing_kernel_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cute_attn.runtime.pool._Worker", None)
    (result,) = compile_many([kernel(3)])
    assert isinstance(result, CompiledKernel)


def test_no_compile_reaches_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    results = compile_many([kernel(1), kernel(2)])
    assert all(isinstance(result, CacheMissError) for result in results)


def test_a_killed_worker_is_an_error_and_the_pool_goes_on() -> None:
    with CompilePool(jobs=1) as pool:
        pool.build([kernel(1), kernel(2)])
        (worker,) = pool._workers
        assert worker._process is not None
        slow = CompileRequest(
            '#include <cute/tensor.hpp>\nextern "C" __global__ void k() {}\n', "k", "sm_80"
        )
        killer = threading.Timer(0.3, os.kill, (worker._process.pid, signal.SIGKILL))
        killer.start()
        (killed,) = pool.build([slow])
        assert isinstance(killed, CompileError) and "CUTE_ATTN_COMPILE_JOBS" in str(killed)
        (after,) = pool.build([kernel(4)])
        assert isinstance(after, CompiledKernel)


def test_what_progress_raises_reaches_the_caller() -> None:
    def stop(done: int, total: int, result: object) -> None:
        raise ZeroDivisionError("enough")

    with pytest.raises(ZeroDivisionError, match="enough"):
        compile_many([kernel(index) for index in range(8)], jobs=2, progress=stop)


def test_a_closed_pool_starts_no_process_for_a_thread_that_is_behind() -> None:
    pool = CompilePool(jobs=1)
    pool.build([kernel(1), kernel(2)])
    (worker,) = pool._workers
    pool.close()
    late = worker.build(kernel(3), use_pch=False)
    assert isinstance(late, CompileError) and "closed" in str(late)
    assert worker._process is None


def test_interrupt_while_threads_start_ends_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def interrupted(thread: threading.Thread) -> None:
        if started:
            raise KeyboardInterrupt
        started.append(thread)
        start(thread)

    with CompilePool(jobs=2) as pool:
        pool.build([kernel(1), kernel(2)])
        pids = [worker._process.pid for worker in pool._workers if worker._process is not None]
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.build([kernel(index, "sm_90") for index in range(40)])
    (thread,) = started
    thread.join(timeout=10)
    assert not thread.is_alive() and find_kernel(kernel(39, "sm_90")) is None
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


SCRIPT = """
import sys
from cute_attn.runtime import CompilePool, CompileRequest
source = '#include <cute/tensor.hpp>\\n extern "C" __global__ void k(int* p) { p[0] = %d; }'
with CompilePool(jobs=2) as pool:
    pool.build([CompileRequest("extern \\"C\\" __global__ void k() {}// %d" % i, "k", "sm_80")
                for i in range(2)])
    print(*[worker._process.pid for worker in pool._workers], flush=True)
    pool.build([CompileRequest(source % i, "k", "sm_80") for i in range(50)])
"""


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.1, 0.3])
def test_ctrl_c_ends_the_workers(delay: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = [int(text) for text in process.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


PREFIX = "#include <cuda_fp16.h>\n#pragma nv_hdrstop\n"


def halves(value: int) -> CompileRequest:
    body = f"p[0] = __hadd(p[{value}], p[1]);"
    source = f'// {value}\n{PREFIX}extern "C" __global__ void k(__half* p) {{ {body} }}\n'
    return CompileRequest(source, "k", "sm_90a")


def test_precompiled_headers_change_no_instruction() -> None:
    requests = [halves(value) for value in (2, 3, 4)]
    with CompilePool(jobs=1) as pool:
        results = pool.build(requests)
        assert len(list(Path(pool._folder.name).rglob("*.pch"))) == 1  # made once, and used
    if find_nvdisasm() is None:
        pytest.skip("no nvdisasm")
    for request, result in list(zip(requests, results, strict=True))[1:]:
        assert isinstance(result, CompiledKernel)
        plain = CompiledKernel.of(compile_source(request))
        assert plain.resources == result.resources and plain.sass == result.sass
        assert count_opcodes(result.sass)["HADD2"] == 1


def test_only_wheel_headers_may_be_precompiled(tmp_path: Path) -> None:
    (tmp_path / "own.hpp").write_text("#define OWN 1\n")
    commented = f"// kernel 7\n//   of many\n\n{PREFIX}"
    for source, expected in [
        (f'{PREFIX}#include "own.hpp"\n', "#include <cuda_fp16.h>"),
        (commented, "#include <cuda_fp16.h>"),
        (f"#define WIDE  // for this\n{PREFIX}", "#define WIDE\n#include <cuda_fp16.h>"),
        (f'#include "own.hpp"\n{PREFIX}', None),
        ("#include <cuda_fp16.h>\n", None),
    ]:
        request = CompileRequest(source, "k", "sm_80", include_dirs=(tmp_path,))
        assert header_prefix(request) == expected


def test_an_edited_own_header_is_seen_by_a_warm_worker(tmp_path: Path) -> None:
    header = tmp_path / "own.hpp"
    body = 'extern "C" __global__ void k(int* p) { p[blockIdx.x] = VALUE; }\n'
    source = f'{PREFIX}#include "own.hpp"\n{body}'
    requests = [
        CompileRequest(f"{source}// {index}\n", "k", "sm_80", (tmp_path,)) for index in range(3)
    ]
    with CompilePool(jobs=1) as pool:
        header.write_text("#define VALUE 1111\n")
        first = pool.build(requests)
        header.write_text("#define VALUE 2222\n")
        second = pool.build(requests)
        assert list(Path(pool._folder.name).rglob("*.pch"))
    for request, before, after in zip(requests, first, second, strict=True):
        assert isinstance(before, CompiledKernel) and isinstance(after, CompiledKernel)
        assert (1111).to_bytes(4, "little") in before.cubin
        assert (2222).to_bytes(4, "little") in after.cubin
        assert after.resources == compile_source(request).resources


def test_job_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= job_count() <= len(os.sched_getaffinity(0))
    monkeypatch.setattr("cute_attn.runtime.pool._free_bytes", lambda: 10**8)
    assert job_count() == 1
    monkeypatch.setenv("CUTE_ATTN_COMPILE_JOBS", "7")
    assert job_count() == 7
    monkeypatch.setenv("CUTE_ATTN_COMPILE_JOBS", "0")
    with pytest.raises(ValueError, match="CUTE_ATTN_COMPILE_JOBS='0'"):
        job_count()
    with pytest.raises(ValueError, match="jobs=0"):
        CompilePool(jobs=0)
