"""Timelines as files for Perfetto (https://ui.perfetto.dev) and chrome://tracing.

The format is Chrome's "Trace Event Format", complete events ("X") and names of processes and
threads ("M"). A launch is a process, a thread block a thread; slices of a thread that would overlap
without one holding the other go to further threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_NO_TIME = 1e-6  # us that sums of times may differ by


class Slice(NamedTuple):
    """Something that takes a while; `inner` lie within it and follow one another."""

    name: str
    begin_us: float
    end_us: float
    facts: dict[str, Any] = {}  # noqa: RUF012  (never written to)
    inner: tuple[Slice, ...] = ()


class Track(NamedTuple):
    """A line of the picture: slices in any order."""

    name: str
    slices: Sequence[Slice]


class Process(NamedTuple):
    """Tracks under one name, in this order."""

    name: str
    tracks: Sequence[Track]


def lanes(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Slices spread so that those of a lane follow one another; each goes to the first that is
    free."""
    found: list[list[Slice]] = []
    for one in sorted(slices, key=lambda s: (s.begin_us, -s.end_us)):
        free = next((lane for lane in found if lane[-1].end_us <= one.begin_us + _NO_TIME), None)
        if free is None:
            found.append([one])
        else:
            free.append(one)
    return found


def events(processes: Sequence[Process]) -> Iterator[dict[str, Any]]:
    """The file's events; times in microseconds.

    Numbers of threads differ between processes, and from those of processes: viewers take a thread
    with its process's number for the main one, and some know threads by their numbers alone.
    """
    tid = len(processes)
    for pid, process in enumerate(processes, 1):
        yield _name("process", pid, pid, process.name)
        yield _sort_index("process", pid, pid, pid)  # else viewers order them by name
        for track in process.tracks:
            for number, lane in enumerate(lanes(track.slices) or [[]]):
                tid += 1
                yield _name("thread", pid, tid, track.name + " +" * number)
                yield _sort_index("thread", pid, tid, tid)
                for one in lane:
                    yield from _slice(one, pid, tid)


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": f"{what}_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _sort_index(what: str, pid: int, tid: int, index: int) -> dict[str, Any]:
    args = {"sort_index": index}
    return {"ph": "M", "name": f"{what}_sort_index", "pid": pid, "tid": tid, "args": args}


def _slice(one: Slice, pid: int, tid: int) -> Iterator[dict[str, Any]]:
    yield {
        "ph": "X",
        "name": one.name,
        "ts": round(one.begin_us, 4),
        "dur": round(max(one.end_us - one.begin_us, 0.0), 4),
        "pid": pid,
        "tid": tid,
        "args": one.facts,
    }
    for inner in one.inner:
        yield from _slice(inner, pid, tid)


def write(path: str | Path, processes: Sequence[Process]) -> Path:
    """Writes a file that the viewers open.

    Raises:
        ValueError: it cannot be written.
    """
    target = Path(path)
    text = json.dumps(
        {"displayTimeUnit": "ns", "traceEvents": list(events(processes))}, separators=(",", ":")
    )
    try:
        target.write_text(text)
    except OSError as error:
        raise ValueError(f"path is {str(path)!r}: {error}") from error
    return target
