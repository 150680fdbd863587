"""Which kernels the tests need on an H200, found without one."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from perf import peer_suite

PLUGIN = "perf.peer_tests.dry"
FOUND, COMPILE = "PEER_KERNELS", "PEER_COMPILE"
"""Environment variables: file of kernels that were found, and whether to compile them."""


def list_kernels(
    checkout: Path, files: list[str], sample: int, compiling: bool, end: float, log: Path
) -> int:
    """Prints the kernels that each file needs, and how many there are in all.

    Args:
        checkout, files, sample, log: as for `peer_suite.run_file`.
        compiling: put them into the cache.
        end: time (monotonic) at which all is over.
    """
    every: set[str] = set()
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            found, started = Path(folder, "kernels"), Path(folder, "started")
            started.touch()
            names = {
                FOUND: str(found),
                COMPILE: "1" if compiling else "",
                peer_suite.STARTED: str(started),
                peer_suite.RESULTS: os.devnull,
                peer_suite.SAMPLE: str(sample),
            }
            command = peer_suite.pytest_command(checkout, file, 600, PLUGIN)
            code = peer_suite._child(
                command, peer_suite.environment(checkout, **names), folder,
                end - time.monotonic(), log,
            )  # fmt: skip
            report = json.loads(found.read_text()) if found.exists() else {}
        kernels = set(report.get("kernels", []))
        new = sorted(kernels - every)
        every |= kernels
        cases = Counter(report.get("cases", {}))
        print(f"{file}: {len(kernels)} kernels, {len(new)} not in files before; {dict(cases)}"
              + (f"; exit status {code}" if code not in (0, 1) else ""), flush=True)  # fmt: skip
        for name in new:
            print(f"  {name}")
        for reason, times in list(report.get("untraced", {}).items())[:8]:
            print(f"  ? {times} cases: {reason}")
    print(f"{len(every)} kernels")
    return 0
