"""compute-sanitizer over a small subset of the GPU tests; what each tool is good for: README.md.

    python -m perf.sanitize [--tool memcheck|racecheck|synccheck|initcheck] [--match EXPRESSION]

Exit status 0: clean. Writes a record with a row per process, perf/results/<tool>-<gpu>-<date>.jsonl
(--out names another file). Options that it does not know go to compute-sanitizer.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from perf import records

ERROR_STATUS = 99
TESTS = "tests/gpu/test_sanitized.py"
# The names of our kernels end with architecture and digest. Races and misused barriers inside of
# torch's kernels are not our subject, and to instrument them takes most of the time.
OWN_KERNELS = ("--kernel-regex", "kns=_sm_")

# What a tool runs, by default: expressions for pytest -k, each a process and a row of the record.
MATCHES = {
    "memcheck": ("test_small",),
    # Whole blocks must be free of hazards; tails may show what README.md explains.
    "racecheck": ("test_races and whole", "test_races and tails"),
    "synccheck": ("test_races",),
    "initcheck": ("test_races or test_small",),
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "memcheck": (),
    "racecheck": (*OWN_KERNELS, "--racecheck-report=analysis"),
    "synccheck": OWN_KERNELS,
    "initcheck": (),  # all kernels: it must see who writes
}
_SUMMARY = re.compile(
    r"(?:ERROR SUMMARY: (?P<errors>\d+) error"
    r"|RACECHECK SUMMARY: \d+ hazards? displayed \((?P<races>\d+) errors?, (?P<warnings>\d+) warn)"
)


def find_sanitizer() -> str | None:
    """Path of compute-sanitizer, or None."""
    usual = "/usr/local/cuda/bin/compute-sanitizer"
    return shutil.which("compute-sanitizer") or (usual if os.access(usual, os.X_OK) else None)


def command(tool: str, match: str, extra: Sequence[str] = ()) -> list[str]:
    """What is run."""
    sanitizer = find_sanitizer()
    if sanitizer is None:
        raise FileNotFoundError("compute-sanitizer is not on PATH (it comes with CUDA toolkits)")
    return [
        sanitizer, f"--tool={tool}", f"--error-exitcode={ERROR_STATUS}",
        "--target-processes=application-only", "--print-limit=20", *OPTIONS[tool], *extra,
        sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider",
        TESTS, "-k", match,
    ]  # fmt: skip


def findings(output: str) -> dict[str, int]:
    """Errors, and for racecheck warnings, by the tool's own summaries; {} if there is none (the
    tool, or the process under it, has died)."""
    found: dict[str, int] = {}
    for summary in _SUMMARY.finditer(output):
        for name, value in summary.groupdict().items():
            if value is not None:
                name = "errors" if name == "races" else name
                found[name] = found.get(name, 0) + int(value)
    return found


def run(line: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and output of a process, which is also shown as it comes."""
    process = subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        print(text, end="", flush=True)
        lines.append(text)
    return process.wait(), "".join(lines)


def row_of(tool: str, match: str, status: int, output: str, tests: Path) -> records.Row:
    """The row of a process; `tests`: the results that the tests have written."""
    rows = list(records.read(tests)) if tests.exists() else []
    outcomes = [row["outcome"] for row in rows if "outcome" in row]
    found = findings(output)
    clean = status == 0 and bool(outcomes) and found and not any(found.values())
    return {
        "sec": "S",
        "cfg": f"compute-sanitizer {tool} over {TESTS} -k '{match}'",
        "tests": len(outcomes),
        **(found or {"errors": None}),
        "outcome": "passed" if clean else "failed" if found else "crashed",
        "exit_status": status,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default="memcheck", choices=MATCHES)
    parser.add_argument("--match", help="pytest -k expression (default: by the tool)")
    parser.add_argument("--out", type=Path, help="record")
    options, extra = parser.parse_known_args()
    matches = (options.match,) if options.match else MATCHES[options.tool]
    with tempfile.TemporaryDirectory() as folder:
        done = []
        for number, match in enumerate(matches):
            results = Path(folder) / f"{number}.jsonl"
            environment = {
                **os.environ,
                # The caching allocator hides reads past the end of a tensor.
                "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
                "CUTE_ATTN_TEST_RESULTS": str(results),
            }
            status, output = run(command(options.tool, match, extra), environment)
            done.append(row_of(options.tool, match, status, output, results))
        written = sorted(Path(folder).glob("*.jsonl"))
        first = next(records.read(written[0])) if written else records.environment("unknown")
    first["command"] = shlex.join(sys.orig_argv)
    path = options.out or records.default_path(options.tool)
    file = records.Records(path, first)
    for row in done:
        file.add(**row)
        print(records.line(row), end="")
    print(path)
    return int(any(row["outcome"] != "passed" for row in done))


if __name__ == "__main__":
    sys.exit(main())
