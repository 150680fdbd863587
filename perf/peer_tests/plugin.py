"""A pytest plugin: outcomes of every case, and an end when the device is lost.

    PEER_RESULTS=FILE PEER_STARTED=FILE python -m pytest -p perf.peer_tests.plugin TESTS

A case that raises NotImplementedError (or for which there is no kernel) is "unsupported".
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from cute_attn import UnsupportedSpecError
from perf.peer_tests import names
from perf.peer_tests.files import in_scope

RESULTS, STARTED, SAMPLE = "PEER_RESULTS", "PEER_STARTED", "PEER_SAMPLE"
"""Environment variables: file of outcomes, file of cases that were begun (which are left out), and
most cases of a test function (0: all)."""

DEVICE_LOST = 86
FINISHED = "# finished"


def pytest_configure(config: pytest.Config) -> None:
    """Puts our modules in place, before test files are imported."""
    names.install()
    for name in ("long_running", "solo", "shard_group"):
        config.addinivalue_line("markers", f"{name}: of the suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what an earlier process has begun, and what is not in the sample."""
    begun = set(Path(os.environ[STARTED]).read_text().splitlines())
    most = int(os.environ.get(SAMPLE, "0"))
    kept = sampled(items, most) if most else items
    if not begun:
        _write({"collected": len(items), "taken": len(kept)})
    items[:] = [item for item in kept if item.nodeid not in begun]


def sampled(items: list[pytest.Item], most: int) -> list[pytest.Item]:
    """At most so many cases of each test function, the same every time."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen: set[str] = set()
    for own in by_test.values():
        ranked = sorted(own, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
        chosen |= {item.nodeid for item in ranked[:most]}
    return [item for item in items if item.nodeid in chosen]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Names the case that is running, for the runner to find if the process dies."""
    _line(STARTED, nodeid)


def pytest_sessionfinish() -> None:
    """Tells the runner that nothing ended the process early."""
    _line(STARTED, FINISHED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Writes the outcome."""
    report = yield
    if report.when != "call" and report.outcome == "passed":
        return report
    outcome, reason, detail = str(report.outcome), "", ""
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.outcome == "skipped" else "xpassed"
    elif call.excinfo is not None and report.outcome == "failed":
        error = call.excinfo.value
        if isinstance(error, (NotImplementedError, UnsupportedSpecError)):
            outcome = "unsupported"
        text = f"{type(error).__name__}: {error}".strip()
        reason, detail = text.split("\n")[0][:200], " ".join(text.split())[:500]
    callspec = getattr(item, "callspec", None)
    params: dict[str, Any] = dict(callspec.params) if callspec is not None else {}
    test = item.nodeid.partition("[")[0].rpartition("::")[2]
    _write(
        {
            "case": item.nodeid,
            "test": test,
            "outcome": outcome,
            "seconds": round(report.duration, 4),
            "scope": in_scope(test, params),
            "reason": reason,
            "detail": detail,
        }
    )
    if outcome == "failed" and not _device_answers():
        pytest.exit(f"the device is lost after {item.nodeid}", returncode=DEVICE_LOST)
    return report


def _write(row: dict[str, Any]) -> None:
    _line(RESULTS, json.dumps(row))


def _line(variable: str, text: str) -> None:
    with open(os.environ[variable], "a") as file:
        file.write(text + "\n")


def _device_answers() -> bool:
    if not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
