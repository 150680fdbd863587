"""Many kernels at once: compile processes, since NVRTC serialises the threads of one process.

Workers are plain child processes talking over pipes: nothing is forked, the caller's ``__main__``
is not imported again, and a notebook works as well as a script. They share the disk cache, so that
an interrupted run keeps what it finished.

Precompiled headers: most of a CuTe kernel's compile time is parsing headers. If a source has
``#pragma nv_hdrstop`` after its includes of wheel headers, a worker parses those once (an attention
kernel for Hopper, NVRTC 13.5, one slow core: 3.3 s alone; with it 5.2 s for the first kernel and
1.7 s for each further one). NVRTC does not notice when a header in that part changes, so it is used
only if the part includes nothing from the request's own ``include_dirs``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from cute_attn.runtime import env, headers
from cute_attn.runtime.build import build_kernel, find_kernel, remember
from cute_attn.runtime.compiler import CompileRequest
from cute_attn.runtime.errors import CompileError
from cute_attn.runtime.kernel import CompiledKernel
from cute_attn.runtime.worker import receive, send

logger = logging.getLogger("cute_attn")

Result = CompiledKernel | Exception
Progress = Callable[[int, int, Result], None]

HEADER_STOP = "#pragma nv_hdrstop"
_WORKER = "from cute_attn.runtime.worker import main; main()"
_WORKER_BYTES = 1_500_000_000
_PCH_PAYS_FROM = 3  # kernels per worker


def job_count() -> int:
    """``CUTE_ATTN_COMPILE_JOBS``, else one process per CPU and per 1.5 GB of free memory."""
    forced = env.COMPILE_JOBS.get()
    if forced is not None:
        return forced
    cpus = len(os.sched_getaffinity(0))
    return max(1, min(cpus, _free_bytes() // _WORKER_BYTES))


def _free_bytes() -> int:
    """Memory this process may still take: the machine's, or its control group's if that is less."""
    free = [_WORKER_BYTES]  # where nothing is known: one process
    try:
        meminfo = Path("/proc/meminfo").read_text()
        free = [int(re.findall(r"MemAvailable:\s+(\d+)", meminfo)[0]) * 1024]
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free.append(limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError, IndexError):  # "max" means no limit
        pass
    return min(free)


def compile_many(
    requests: Sequence[CompileRequest],
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Build all ``requests``; each result is its kernel, or the exception that building it raised.

    Args:
        requests: what to compile; equal ones are compiled once.
        jobs: processes; None takes `job_count`.
        progress: called as ``progress(done, total, result)`` after each, one call at a time.
    """
    with CompilePool(jobs) as pool:
        return pool.build(requests, progress)


class CompilePool:
    """Compile processes that stay warm between calls of `build`; a context manager, started on
    first need.
    """

    def __init__(self, jobs: int | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs={jobs}: takes a whole number >= 1")
        self.jobs = jobs or job_count()
        self._folder = tempfile.TemporaryDirectory(prefix="cute_attn-pch-")
        self._workers: list[_Worker] = []

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; what they were compiling is lost."""
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        self._folder.cleanup()

    def build(
        self, requests: Sequence[CompileRequest], progress: Progress | None = None
    ) -> list[Result]:
        """As `compile_many`, in this pool's processes."""
        results: dict[CompileRequest, Result] = {}
        lock = threading.Lock()
        unique = list(dict.fromkeys(requests))

        def finish(request: CompileRequest, result: Result) -> None:
            with lock:
                results[request] = result
                if progress is not None:
                    progress(len(results), len(unique), result)

        missing = []
        for request in unique:
            kernel = find_kernel(request)
            if kernel is not None:
                finish(request, kernel)
            else:
                missing.append(request)
        if (len(missing) == 1 and not self._workers) or env.NO_COMPILE.get():
            for request in missing:
                finish(request, _attempt(request))
        elif missing:
            self._run(missing, finish)
        return [results[request] for request in requests]

    def _run(
        self, requests: list[CompileRequest], finish: Callable[[CompileRequest, Result], None]
    ) -> None:
        jobs = min(self.jobs, len(requests))
        logger.info("compiling %d kernels in %d processes", len(requests), jobs)
        while len(self._workers) < jobs:
            self._workers.append(_Worker(Path(self._folder.name) / str(len(self._workers))))
        queue = _Queue(requests, jobs)
        failures: list[
            BaseException
        ] = []  # of this code or the caller's progress, not of a compile

        def serve(worker: _Worker) -> None:
            try:
                while (item := queue.take(worker.group)) is not None:
                    request, worker.group, use_pch = item
                    finish(request, _report(worker.build(request, use_pch)))
            except BaseException as error:
                failures.append(error)
                queue.clear()

        threads = [
            threading.Thread(target=serve, args=(worker,), daemon=True)
            for worker in self._workers[:jobs]
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C: what is finished is in the cache
            queue.clear()
            self.close()
            raise
        if failures:
            raise failures[0]


def _report(result: Result) -> Result:
    if isinstance(result, CompiledKernel):
        result = remember(result)
        logger.info("compiled %s in %.2f s", result.name, result.compile_seconds)
        for reason in result.lint():
            logger.warning("kernel %s for %s: %s", result.name, result.arch, reason)
    return result


def _attempt(request: CompileRequest) -> Result:
    try:
        return build_kernel(request)
    except Exception as error:
        return error


def header_prefix(request: CompileRequest) -> str | None:
    """The directives of the source that a precompiled header may hold; None if that is not safe.

    Sources with equal directives share one, whatever their comments say.
    """
    prefix, stop, _ = request.source.partition(HEADER_STOP)
    if not stop or headers.own_headers(prefix, request.include_dirs):
        return None
    lines = (line.partition("//")[0].strip() for line in prefix.splitlines())
    return "\n".join(line for line in lines if line.startswith("#"))


class _Queue:
    """Hands out requests so that a worker stays with one group (architecture, options, header
    prefix).
    """

    def __init__(self, requests: Sequence[CompileRequest], jobs: int) -> None:
        self._lock = threading.Lock()
        self._pending: dict[object, list[tuple[CompileRequest, bool]]] = {}
        self._active: Counter[object] = Counter()
        groups: dict[object, list[tuple[CompileRequest, bool]]] = {}
        for request in requests:
            prefix = header_prefix(request)
            group: object = (request.arch, request.options, request.toolchain, prefix)
            groups.setdefault(group, []).append((request, prefix is not None))
        for group, items in groups.items():
            pays = len(items) >= _PCH_PAYS_FROM * max(1, jobs // len(groups))
            self._pending[group] = [(request, safe and pays) for request, safe in items]

    def clear(self) -> None:
        """Hand out nothing more."""
        with self._lock:
            self._pending.clear()

    def take(self, last: object) -> tuple[CompileRequest, object, bool] | None:
        """(request, its group, whether to use a precompiled header), or None when all are handed
        out.
        """
        with self._lock:
            if last not in self._pending:
                if not self._pending:
                    return None
                self._active[last] -= 1
                # The group with the most left per worker that is on it.
                last = max(
                    self._pending, key=lambda g: len(self._pending[g]) / (1 + self._active[g])
                )
                self._active[last] += 1
            items = self._pending[last]
            request, use_pch = items.pop(0)
            if not items:
                del self._pending[last]
            return request, last, use_pch


class _Worker:
    """One child process; started when first used, and again if it died. `stop` is for good, and may
    come from another thread than `build`.
    """

    def __init__(self, pch_dir: Path) -> None:
        self.group: object = None
        self._pch_dir = pch_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # of the process's start and end
        self._stopped = False

    def build(self, request: CompileRequest, use_pch: bool) -> Result:
        process = self._start()
        if process is None:
            return CompileError(f"{request.name} was not compiled: its pool is closed")
        assert process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, (request, use_pch))
            result = receive(process.stdout)
        except (OSError, EOFError):
            status = process.wait()
            with self._lock:
                self._process = None
            return CompileError(
                f"the process compiling {request.name} ended with status {status}; if memory ran "
                "out, set CUTE_ATTN_COMPILE_JOBS to a smaller number"
            )
        if not isinstance(result, CompiledKernel | Exception):
            raise TypeError(f"a compile process sent {result!r}")
        return result

    def _start(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._process is None and not self._stopped:
                self._pch_dir.mkdir(parents=True, exist_ok=True)
                command = [sys.executable, "-c", _WORKER, str(self._pch_dir)]
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                    start_new_session=True,  # Ctrl-C goes to the parent, which ends the workers
                )
            return self._process

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:  # else its number may be another's by now
                with contextlib.suppress(ProcessLookupError):  # ended since
                    os.killpg(process.pid, signal.SIGKILL)  # with its assembler
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # a request that nobody reads any more
                        pipe.close()
