"""Records of benchmark and test runs: one JSON object per line.

The first row says what was measured and where: gpu, driver, torch, toolchain, tune
database, commit, command and date. Every further row is one case: sec, cfg, and numbers (us,
us_graph, tflops, gbps, err, ...).
Sections and cfg names are those of the peers' records, so that files compare row by row.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cute_attn.tuning import Database, files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "perf" / "results"

Row = dict[str, Any]


def gpu_name() -> str:
    """Short name of the current GPU for file names, e.g. "h200"; "cpu" without one."""
    if not torch.cuda.is_available():
        return "cpu"
    name = torch.cuda.get_device_name().removeprefix("NVIDIA ")
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def driver_version() -> str:
    """Version of the NVIDIA driver, or "" where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return _output(command).split("\n")[0]


def commit() -> str:
    """Commit of the working tree, "-dirty" if files differ; CUTE_ATTN_COMMIT overrides it (where
    the sources are a copy without history)."""
    forced = os.environ.get("CUTE_ATTN_COMMIT")
    if forced:
        return forced
    head = _output(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
    if not head:
        return "unknown"
    changed = _output(["git", "-C", str(ROOT), "status", "--porcelain", "-uno"])
    return head + ("-dirty" if changed else "")


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:  # no such program
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def tuning(database: Path | None = None) -> str:
    """Which tune database plans on this GPU look into, or the given one: steps and digest; "" where
    there is none."""
    if database is not None:
        found: Database | None = files.read(database)
    elif torch.cuda.is_available():
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        found = files.known_of(torch.cuda.get_device_name(), sms)
    else:
        found = None
    return "" if found is None else f"{len(found.entries)} steps, {found.digest}"


def environment(toolchain: str, *, database: Path | None = None) -> Row:
    """The first row of a file.

    Args:
        toolchain: names the compiler that made the kernels.
        database: the tune database in force; default: what plans look into.
    """
    on_gpu = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if on_gpu else "cpu",
        "sms": torch.cuda.get_device_properties(0).multi_processor_count if on_gpu else 0,
        "driver": driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "toolchain": toolchain,
        "tuning": tuning(database),
        "commit": commit(),
        "command": shlex.join(sys.orig_argv),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def default_path(bench: str) -> Path:
    """perf/results/<bench>-<gpu>-<date>.jsonl."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return RESULTS / f"{bench}-{gpu_name()}-{today}.jsonl"


class Records:
    """A file of rows, written as they come: what was measured survives a crash.

    Args:
        path: of the file; begun anew unless `append`.
        first: the first row.
        append: add to a file that exists.
    """

    def __init__(self, path: Path, first: Row, *, append: bool = False) -> None:
        self.path = path
        self.rows: list[Row] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (append and path.exists()):
            path.write_text(line(first))

    def add(self, sec: str, cfg: str, **numbers: Any) -> Row:
        """Adds a row; numbers are rounded to four significant digits or so."""
        row = {"sec": sec, "cfg": cfg, **{key: tidy(value) for key, value in numbers.items()}}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(line(row))
        return row


def tidy(value: Any) -> Any:
    """Floats with five significant digits; what JSON cannot hold (NaN, inf) as text."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else str(value)


def line(row: Row) -> str:
    """One line of a file."""
    return json.dumps(row) + "\n"


def read(path: Path) -> Iterator[Row]:
    """Rows of a file."""
    with path.open() as file:
        for text in file:
            if text.strip():
                yield json.loads(text)
