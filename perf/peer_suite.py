"""FlashInfer's own attention tests, run against `cute_attn.flashinfer`.

    python -m perf.peer_suite CHECKOUT [--files alibi,page] [--sample 200] [--seconds 500]
    python -m perf.peer_suite CHECKOUT --list-kernels [--compile]

CHECKOUT holds the folder `tests` of the version that `perf.peer_tests.files` names; it is no part
of this repository. Files are run one after the other, in child processes that are begun anew after
a hang or a lost device. Prints how many cases passed, failed, are not supported and were skipped,
by file; a case that is not supported counts as failed. References in those tests are torch code, or
calls of the same API, which then are ours as well.

--on-host takes the reference executor, which is slow: a few cases of each test at a time.
--list-kernels runs the tests without a GPU, on tensors without contents, and names the kernels that
an H200 would need; --compile puts them into the cache (CUTE_ATTN_CACHE_DIR).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from perf import records
from perf.peer_tests.files import COMMIT, FILES, VERSION
from perf.peer_tests.plugin import DEVICE_LOST, FINISHED, RESULTS, SAMPLE, STARTED

_SHIM = Path(__file__).parent / "peer_tests" / "shim"
_MOST_CHILDREN = 40  # of one file
_RAN = ("passed", "failed", "unsupported", "timeout", "crashed", "xpassed")
_NOTHING_LEFT = 5  # exit status of pytest

Row = dict[str, Any]


def environment(checkout: Path, **more: str) -> dict[str, str]:
    """Of a child: `flashinfer` is ours, `tests` is the checkout's."""
    path = [str(_SHIM), str(checkout), str(records.ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in path if p), **more}


def pytest_command(checkout: Path, file: str, timeout: float, plugin: str) -> list[str]:
    """One file in a pytest process, without the checkout's own set-up."""
    return [
        sys.executable, "-m", "pytest", str(checkout / "tests" / file), "-q", "--noconftest",
        "-p", plugin, "-p", "no:cacheprovider", "--rootdir", str(checkout), "-c", os.devnull,
        "--timeout", str(timeout), "-o", "timeout_method=thread", "--tb=no", "-W", "ignore",
    ]  # fmt: skip


def run_file(
    checkout: Path,
    file: str,
    *,
    sample: int,
    timeout: float,
    end: float,
    log: Path,
    on_host: bool = False,
) -> list[Row]:
    """Outcomes of one file.

    Args:
        checkout: of the tests.
        file: below `tests`.
        sample: most cases of a test function; 0: all.
        timeout: seconds of a case.
        end: time (monotonic) at which all is over.
        log: what pytest prints is appended.
        on_host: on CPU tensors, whatever the tests say.
    """
    plugin = "perf.peer_tests.on_host" if on_host else "perf.peer_tests.plugin"
    with tempfile.TemporaryDirectory() as folder:
        results, started = Path(folder, "results"), Path(folder, "started")
        for path in (results, started):
            path.touch()
        names = {RESULTS: str(results), STARTED: str(started), SAMPLE: str(sample)}
        command = pytest_command(checkout, file, timeout, plugin)
        for _ in range(_MOST_CHILDREN):
            before = len(started.read_text().splitlines())
            begun = time.monotonic()
            code = _child(command, environment(checkout, **names), folder, end - begun, log)
            new = started.read_text().splitlines()[before:]
            if not new or time.monotonic() >= end:
                break
            if new[-1] == FINISHED and code != DEVICE_LOST:
                break
            case = next((name for name in reversed(new) if name != FINISHED), None)
            if case is None:
                break
            rows = [json.loads(line) for line in results.read_text().splitlines()]
            if not any(row.get("case") == case for row in rows):
                outcome = "timeout" if code == 1 else "crashed"
                row = {"case": case, "test": case.partition("[")[0].rpartition("::")[2]}
                lost = {"outcome": outcome, "seconds": timeout, "scope": True}
                with results.open("a") as out:
                    reason = {"reason": f"exit status {code}"}
                    out.write(json.dumps({**row, **lost, **reason}) + "\n")
        return [json.loads(line) for line in results.read_text().splitlines()]


def _child(
    command: list[str], environment: dict[str, str], folder: str, seconds: float, log: Path
) -> int:
    """Exit status of one process; killed with its group when the time is over. Its working folder
    must hold no `flashinfer`."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            return child.wait(max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return child.wait()


def counted(rows: list[Row]) -> Row:
    """What became of the cases: all of them, and those in scope."""
    cases = [row for row in rows if "case" in row]
    found: Row = dict(Counter(row["outcome"] for row in cases))
    ran = [row for row in cases if row["outcome"] in _RAN]
    scope = [row for row in ran if row["scope"]]
    collected = next((row for row in rows if "collected" in row), {"collected": 0, "taken": 0})
    return {
        **found,
        "collected": collected["collected"],
        "taken": collected["taken"],
        "ran": len(ran),
        "in_scope": len(scope),
        "in_scope_passed": sum(row["outcome"] == "passed" for row in scope),
        "seconds": sum(row["seconds"] for row in cases),
    }


def added(counts: list[Row]) -> Row:
    """The sum of counts."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def share(count: Row) -> str:
    """Passed of those that ran: in scope, and of all."""
    scope, ran = count["in_scope"], count["ran"]
    own = f"{100 * count['in_scope_passed'] / scope:.2f} %" if scope else "none"
    raw = f"{100 * count.get('passed', 0) / ran:.2f} %" if ran else "none"
    return f"{own} of {scope} in scope, {raw} of {ran} in all"


def reasons(rows: list[Row]) -> list[tuple[Row, int]]:
    """The first of the cases that did not pass for one reason in one test, and how many there are,
    the most frequent first."""
    wrong = [row for row in rows if row.get("outcome") in _RAN and row["outcome"] != "passed"]
    first: dict[tuple[str, str, str], Row] = {}
    times: Counter[tuple[str, str, str]] = Counter()
    for row in wrong:
        key = (row["test"], row["outcome"], row["reason"])
        first.setdefault(key, row)
        times[key] += 1
    return [(first[key], count) for key, count in times.most_common()]


def chosen(names: str) -> list[str]:
    """Files of which a name is a part; all if there are no names."""
    wanted = [name for name in names.split(",") if name]
    unknown = [name for name in wanted if not any(name in file for file in FILES)]
    if unknown:
        raise SystemExit(f"--files has {', '.join(unknown)}; it takes parts of: {' '.join(FILES)}")
    return [file for file in FILES if not wanted or any(name in file for name in wanted)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help=f"of FlashInfer {VERSION} ({COMMIT})")
    parser.add_argument("--files", default="", help="only those with these parts, by commas")
    parser.add_argument("--sample", type=int, default=0, help="most cases of a test function")
    parser.add_argument("--timeout", type=float, default=60, help="seconds of a case")
    parser.add_argument("--seconds", type=float, default=3600, help="for everything")
    parser.add_argument("--record", type=Path, help="file of rows (default: perf/results/...)")
    parser.add_argument("--log", type=Path, help="what pytest prints (default: nowhere)")
    parser.add_argument("--on-host", action="store_true", help="on CPU tensors, without a GPU")
    parser.add_argument("--list-kernels", action="store_true", help="name kernels, run nothing")
    parser.add_argument("--compile", action="store_true", help="with --list-kernels: compile them")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    if not (checkout / "tests" / FILES[0]).exists():
        parser.error(f"{checkout} holds no tests/{FILES[0]}")
    files = chosen(options.files)
    log = (options.log or Path(os.devnull)).resolve()
    end = time.monotonic() + options.seconds
    if options.list_kernels:
        from perf.peer_tests.kernels import list_kernels

        return list_kernels(checkout, files, options.sample, options.compile, end, log)
    path = options.record or records.default_path("peer-suite")
    out = records.Records(
        path, {**records.environment(""), "suite": VERSION, "sample": options.sample}
    )
    counts = []
    for file in files:
        rows = run_file(
            checkout,
            file,
            sample=options.sample,
            timeout=options.timeout,
            end=end,
            log=log,
            on_host=options.on_host,
        )
        count = counted(rows)
        counts.append(count)
        out.add("FT", file, **count)
        print(f"{file}: {share(count)}; {_outcomes(count)}", flush=True)
        for row, times in reasons(rows):
            told = {"outcome": row["outcome"], "reason": row.get("detail") or row["reason"]}
            out.add("FX", row["test"], **told, times=times, case=row["case"])
    total = added(counts)
    out.add("FT", "total", **total)
    print(f"total: {share(total)}; {_outcomes(total)}")
    print(path)
    return 0


def _outcomes(count: Row) -> str:
    names = [*_RAN, "skipped", "xfailed"]
    return ", ".join(f"{count[name]} {name}" for name in names if count.get(name))


if __name__ == "__main__":
    sys.exit(main())
