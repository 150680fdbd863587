"""Runs the GPU tests in child processes and goes on after hangs and lost devices.

    python -m tests.gpu.run [--results FILE] [pytest arguments]

A CUDA error poisons a process, a kernel that hangs blocks it: both end the child. The test that ran
last is then recorded as "crashed" and a new child takes the rest.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perf import records
from tests.gpu.conftest import DEVICE_LOST, DONE, FINISHED

MAX_CHILDREN = 12
NOTHING_LEFT = 5  # exit status of pytest
_TESTS = Path(__file__).parent


def run_child(arguments: list[str], environment: dict[str, str], seconds: float) -> int:
    """Exit status of one pytest process; killed with its group when the time is over."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", str(_TESTS), *arguments]
    child = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return child.wait()


def summary(path: Path) -> str:
    """Outcomes of a results file, counted, and what went wrong."""
    rows = [row for row in records.read(path) if "outcome" in row] if path.exists() else []
    outcomes = sorted({row["outcome"] for row in rows})
    wrong = [row for row in rows if row["outcome"] not in ("passed", "skipped")]
    lines = [f"{row['outcome']}: {row['cfg']}: {row.get('reason', '')}" for row in wrong]
    counts = (f"{sum(row['outcome'] == name for row in rows)} {name}" for name in outcomes)
    return "\n".join([*lines, f"{path}: {len(rows)} rows, {', '.join(counts)}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=records.default_path("gpu-tests"))
    parser.add_argument("--seconds", type=float, default=400, help="for everything")
    options, arguments = parser.parse_known_args()
    end = time.monotonic() + options.seconds
    options.results.unlink(missing_ok=True)
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder) / "done"
        done.touch()
        environment = {
            **os.environ,
            DONE: str(done),
            "CUTE_ATTN_TEST_RESULTS": str(options.results),
        }
        for _ in range(MAX_CHILDREN):
            left = end - time.monotonic()
            if left <= 0:
                print("time is over", file=sys.stderr)
                status = 1
                break
            before = done.read_text().splitlines()
            code = run_child(arguments, environment, left)
            status = max(status, int(code not in (0, NOTHING_LEFT)))
            started = done.read_text().splitlines()[len(before) :]
            # A lost device may also end the process when pytest has finished: by a signal.
            finished = started and started[-1] == FINISHED and code >= 0
            if not started or (finished and code != DEVICE_LOST):
                break
            tests = [test for test in started if test != FINISHED]
            if not tests:  # it died before the first test
                break
            _note_crash(options.results, tests[-1], code)
    print(summary(options.results))
    return status


def _note_crash(path: Path, test: str, code: int) -> None:
    """Adds a row for a test that took its process with it, unless the child has written one."""
    rows = list(records.read(path)) if path.exists() else []
    name = test.partition("[")[2].rstrip("]") or test
    if rows and rows[-1].get("cfg") == name:
        return
    first = rows[0] if rows else records.environment("unknown")
    notes = records.Records(path, first, append=True)
    notes.add("G", name, outcome="crashed", reason=f"exit status {code}", test=test)


if __name__ == "__main__":
    sys.exit(main())
