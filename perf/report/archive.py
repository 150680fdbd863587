"""Records as the report needs them: read, checked line by line, ordered by age."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf.joining import is_ours
from perf.records import ROOT, Row

HEAD_FIELDS = ("gpu", "commit", "command", "date")
NUMBERS: tuple[str, ...] = (
    "us",
    "us_graph",
    "tflops",
    "tflops_graph",
    "gbps",
    "gbps_graph",
    "err",
    "floor_us",
)
NUMBERS += ("plan_us", "imbalance", "device_us", "next_us", "emit_us", "of_plain", "seconds")
NUMBERS += ("speedup", "spread", "cpu_us", "dense_us", "density")
NEEDED: dict[str, tuple[str, ...]] = {
    sec: ("us",) for sec in ("A", "A16", "B", "F", "L", "M", "N", "P", "R", "W")
}
NEEDED |= {sec: ("us_graph",) for sec in ("C", "K", "Q", "T", "X")}
NEEDED |= {
    "J": ("us", "cpu_us"),
    "H": ("us", "tflops"),
    "G": ("outcome",),
    "S": ("outcome",),
    "V": ("of_plain",),
    "SB": ("us", "dense_us", "density", "row_block"),
    "SL": ("us_graph", "kv_bytes"),
}
"""What a row of ours has at least."""
STANDARD = ("prefill", "decode", "steps", "variants")
"""Benchmarks as users would run the kernels: what goals are for."""


class RecordError(ValueError):
    """A file that is no record; the message names file and line."""


@dataclass(frozen=True)
class Record:
    """One file.

    Attributes:
        name: of the file, as it is shown.
        head: its first row.
        rows: the others.
    """

    name: str
    head: Row
    rows: list[Row] = field(repr=False)

    @property
    def bench(self) -> str:
        """The benchmark by the file's name, e.g. "steps-batch-invariant"."""
        stem = re.sub(r"-\d{4}-\d{2}-\d{2}$", "", Path(self.name).stem)
        gpu = str(self.head["gpu"]).removeprefix("NVIDIA ").lower()
        return stem.removesuffix("-" + re.sub(r"[^a-z0-9]+", "-", gpu).strip("-"))

    @property
    def short_name(self) -> str:
        """Its name within the folder of records."""
        return self.name.removeprefix("perf/results/")

    @property
    def command(self) -> str:
        """As typed in the root of the repository: without the places of a machine."""
        places = r"(?<!\S)/\S*/(?=python[\d.]*(\s|$)|tests(/|\s|$)|perf(/|\s|$))"
        return re.sub(places, "", str(self.head["command"]))

    @property
    def date(self) -> str:
        return str(self.head["date"])[:16].replace("T", " ")

    def of(self, *sections: str) -> list[Row]:
        """Its rows of some sections."""
        return [row for row in self.rows if row.get("sec") in sections]


@dataclass(frozen=True)
class Archive:
    """All records of a folder, newest first, and the peers' rows."""

    records: Sequence[Record]
    peers: Sequence[Row]

    def with_section(self, sec: str, benches: Iterable[str] = ()) -> list[Record]:
        """Records that hold a section, newest first; `benches`: only of these."""
        wanted = tuple(benches)
        return [r for r in self.records if r.of(sec) and (not wanted or r.bench in wanted)]

    def newest(self, sec: str, benches: Iterable[str] = STANDARD) -> Record | None:
        """The newest record that holds a section."""
        return next(iter(self.with_section(sec, benches)), None)


def read_archive(results: Path, peers: Path) -> Archive:
    """Every *.jsonl below a folder.

    Raises:
        RecordError: there is no such folder or file, there are no records in it, or one is garbled.
    """
    if not results.is_dir():
        raise RecordError(f"--results is {str(results)!r}: no such folder")
    if not peers.is_file():
        raise RecordError(f"--peers is {str(peers)!r}: no such file")
    paths = sorted(results.rglob("*.jsonl"))
    if not paths:
        raise RecordError(f"--results is {str(results)!r}: it holds no records (*.jsonl)")
    found = [read_record(path, _shown(path, results)) for path in paths]
    found.sort(key=lambda record: (str(record.head["date"]), record.name), reverse=True)
    return Archive(found, read_rows(peers, _shown(peers, peers.parent)))


def _shown(path: Path, folder: Path) -> str:
    resolved = path.resolve()
    base = ROOT if resolved.is_relative_to(ROOT) else folder.resolve()
    return resolved.relative_to(base).as_posix()


def read_record(path: Path, name: str) -> Record:
    """A file that begins with the row that says where it was measured.

    Raises:
        RecordError: it does not, or a row is garbled.
    """
    rows = read_rows(path, name)
    if not rows:
        raise RecordError(f"{name}: empty")
    head, *others = rows
    if missing := [key for key in HEAD_FIELDS if not isinstance(head.get(key), str)]:
        raise RecordError(f"{name}:1: the first row lacks {', '.join(missing)}")
    return Record(name, head, others)


def read_rows(path: Path, name: str) -> list[Row]:
    """Rows of a file; all but the first must have sec and cfg, and numbers where numbers belong
    (NaN and infinity are text in a record).

    Raises:
        RecordError: it cannot be read, or a row is garbled.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{name}: {error}") from error
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{name}:{number}: not JSON: {error}") from error
        if problem := _problem(row, is_first=not rows):
            raise RecordError(f"{name}:{number}: {problem}")
        rows.append(row)
    return rows


def _problem(row: Any, *, is_first: bool) -> str:
    if not isinstance(row, dict):
        return f"{type(row).__name__}, where an object belongs"
    for key in ("sec", "cfg"):
        if not (is_first and "sec" not in row) and not isinstance(row.get(key), str):
            return f"{key} is {row.get(key)!r}; it takes text"
    for key in NUMBERS:
        value = row.get(key, 0.0)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number and value not in ("nan", "inf", "-inf"):
            return f"{key} is {value!r}; it takes a number"
    if is_ours(row):
        missing = [key for key in NEEDED.get(row["sec"], ()) if key not in row]
        return f"it lacks {', '.join(missing)}" if missing else ""
    return ""
