"""Set-up of the GPU tests: device, time limits, records, and an end when the device is lost.

Rows go to CUTE_ATTN_TEST_RESULTS, else to perf/results/gpu-tests-<gpu>-<date>.jsonl, as they come.
A test that hangs ends the process (a wait for the GPU cannot be interrupted), a CUDA error that
poisons the context too: `python -m tests.gpu.run` goes on with the rest in a new process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from cute_attn import build, choose
from perf import records
from tests.gpu.specs import serving_problem

TIMEOUT = 60
DEVICE_LOST = 86  # exit status
DONE = "CUTE_ATTN_TEST_DONE"
"""Environment variable: file with the node ids that are not to be run again."""

FINISHED = "# finished"

_HERE = Path(__file__).parent
_numbers = pytest.StashKey[list[dict[str, Any]]]()
_file: list[records.Records] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A hang must not eat the run; what an earlier process has done is left out."""
    done_file = os.environ.get(DONE)
    done = set(Path(done_file).read_text().splitlines()) if done_file else set()
    for item in items:
        is_gpu = item.get_closest_marker("gpu") is not None
        if is_gpu and _HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT, method="thread"))
    dropped = [item for item in items if item.nodeid in done]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item.nodeid not in done]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def arch() -> str:
    """Architecture of the device, e.g. "sm_90a"."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`record(sec, cfg, **numbers)`: a row of the results; the outcome is added at the end."""
    rows = request.node.stash.setdefault(_numbers, [])

    def add(sec: str, cfg: str, **numbers: Any) -> None:
        rows.append({"sec": sec, "cfg": cfg, **numbers})

    return add


def pytest_runtest_logstart(nodeid: str) -> None:
    """Names the test that is running, for the runner to find if the process dies."""
    done_file = os.environ.get(DONE)
    if done_file:
        with open(done_file, "a") as file:
            file.write(nodeid + "\n")


def pytest_sessionfinish() -> None:
    """Tells the runner that nothing ended the process early (a time-out exits with status 1)."""
    done_file = os.environ.get(DONE)
    if done_file:
        with open(done_file, "a") as file:
            file.write(FINISHED + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_gpu = item.get_closest_marker("gpu") is not None and _HERE in item.path.parents
    if not is_gpu or (report.when != "call" and report.outcome == "passed"):
        return report
    if report.when == "setup" and report.outcome == "skipped":
        return report
    own = item.stash.get(_numbers, []) or [{"sec": "G", "cfg": item.name}]
    for row in own:
        extra: dict[str, Any] = {"outcome": report.outcome, "seconds": report.duration}
        if report.outcome == "failed":
            extra["reason"] = str(report.longrepr).strip().split("\n")[-1][:300]
        _records().add(**row, test=item.nodeid.partition("[")[0], **extra)
    if report.outcome == "failed" and not _device_answers():
        pytest.exit(f"the device is lost after {item.nodeid}", returncode=DEVICE_LOST)
    return report


def _records() -> records.Records:
    if not _file:
        given = os.environ.get("CUTE_ATTN_TEST_RESULTS")
        path = Path(given) if given else records.default_path("gpu-tests")
        first = records.environment(_toolchain())
        _file.append(records.Records(path, first, append=DONE in os.environ))
    return _file[0]


def _toolchain() -> str:
    major, minor = torch.cuda.get_device_capability()
    own = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    try:
        spec = choose(serving_problem(own, 16), rows=None)
        return str(build(spec).compiled.toolchain)
    except Exception as error:  # the record names it; the tests say more
        return f"unknown ({type(error).__name__})"


def _device_answers() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
