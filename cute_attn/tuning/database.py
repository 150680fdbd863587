"""The tune database: one readable JSON per GPU model, every field of which is checked.

    {"version": 1,
     "gpu": {"name": "NVIDIA H200", "sms": 132, "arch": "sm_90a"},
     "entries": [{"step": "d64 causal 16 x 1024",
                  "class": {"dtype": "bf16", "head_dim_qk": 64, ..., "variant": "causal-1f2e3d4c"},
                  "key": {"kind": 0, "rows": 20, "keys": 20, "load": 18}, "rows": [[16, 1024]],
                  "measured": [{"schedule": "hopper_tile", "tile": {"q": 128, ...}, "us": 57.1,
                                "spread_us": 0.2, "predicted_us": 55.0, "error": 0.0}, ...],
                  "winner": null, "made": {"date": "...", ...}}]}

The first of `measured` is the default, `winner` the index of the one that is taken, or null: the
default. Entries of the same class and key replace each other when databases are merged, the younger
one stays.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt

from cute_attn.tuning.candidate import Candidate
from cute_attn.tuning.kernel_class import KernelClass
from cute_attn.tuning.step import StepKey

IntArray = npt.NDArray[np.integer[Any]]

VERSION = 1
"""Of the format, and of the kernels: raised where old measurements say nothing any more."""


OTHERS_GAIN = 1.02
"""What is to be expected of a kernel that did not win where it was measured: it was measured twice
only, and padding is not all that differs between steps."""


class DatabaseError(ValueError):
    """A database that cannot be used: which field, and why."""


@dataclass(frozen=True)
class Measured:
    """What came of one candidate.

    Attributes:
        candidate: the kernel.
        us: median time of a call.
        spread_us: half of the distance between the fastest and the slowest round.
        predicted_us: by the cost model.
        error: relative to the output of the default; 0 for the default.
    """

    candidate: Candidate
    us: float
    spread_us: float
    predicted_us: float
    error: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON values, rounded."""
        numbers = (
            ("us", self.us),
            ("spread_us", self.spread_us),
            ("predicted_us", self.predicted_us),
            ("error", self.error),
        )
        return self.candidate.to_json() | {n: float(f"{value:.5g}") for n, value in numbers}

    @classmethod
    def from_json(cls, data: object) -> Measured:
        """The inverse; ValueError: it is none."""
        if not isinstance(data, dict):
            raise ValueError(f"a measurement is an object, got {data!r}")
        names = ("us", "spread_us", "predicted_us", "error")
        numbers = [_number(data, name) for name in names]
        rest = {name: value for name, value in data.items() if name not in names}
        return cls(Candidate.from_json(rest), *numbers)


@dataclass(frozen=True)
class Entry:
    """What is known of one class of steps of one class of kernels.

    Attributes:
        step: name of the step that was measured.
        kernel_class, key: what `plan` looks up.
        rows: (requests, packed query rows of each), of the step that was measured.
        measured: all that was measured to the end; the default first.
        winner: index of the one that is taken; None: the default.
        made: how it came about: date, driver, toolchain, what was asked for.
    """

    step: str
    kernel_class: KernelClass
    key: StepKey
    rows: tuple[tuple[int, int], ...]
    measured: tuple[Measured, ...]
    winner: int | None
    made: Mapping[str, str | int | float]

    @property
    def taken(self) -> Measured | None:
        """What beat the default, or None."""
        return None if self.winner is None else self.measured[self.winner]

    @property
    def gain(self) -> float:
        """Time of the default over that of what is taken."""
        return 1.0 if self.taken is None else self.measured[0].us / self.taken.us

    @cached_property
    def offers(self) -> tuple[Measured, ...]:
        """What a step of this class may take: the winner, and of each other height of tiles the
        fastest, which wins where its tiles hold less padding."""
        default = self.measured[0]
        best = {} if self.taken is None else {self.taken.candidate.tile.q: self.taken}
        least = (self.taken or default).us
        for one in sorted(self.measured[1:], key=lambda m: m.us):
            if one.us >= least:  # else it was faster once, and not when it mattered
                best.setdefault(one.candidate.tile.q, one)
        if self.taken is None:
            best.pop(default.candidate.tile.q, None)
        return tuple(best.values())

    def best_at(self, rows: IntArray) -> Measured | None:
        """What is expected to be the fastest at a step whose requests have so many packed query
        rows; None: the default."""
        found, most = None, 1.0
        for one in self.offers:
            gain = self.gain_at(one, rows)
            if gain > most and (one is self.taken or gain >= OTHERS_GAIN):
                found, most = one, gain
        return found

    def gain_at(self, one: Measured, rows: IntArray) -> float:
        """The time of the default over that of another kernel, to expect at a step whose requests
        have so many packed query rows: tiles of other heights compute more padding at one step
        than at another."""
        gain = self.measured[0].us / one.us
        tall, default = one.candidate.tile.q, self.measured[0].candidate.tile.q
        if tall == default:
            return gain
        counts, measured = np.array(self.rows).T
        at_step = _computed(rows, default) / _computed(rows, tall)
        here = _computed(measured, default, counts) / _computed(measured, tall, counts)
        return gain * at_step / here

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "step": self.step,
            "class": self.kernel_class._asdict(),
            "key": self.key._asdict(),
            "rows": [list(pair) for pair in self.rows],
            "measured": [m.to_json() for m in self.measured],
            "winner": self.winner,
            "made": dict(self.made),
        }

    @classmethod
    def from_json(cls, data: object) -> Entry:
        """The inverse; ValueError: it is none."""
        if not isinstance(data, dict):
            raise ValueError(f"an entry is an object, got {data!r}")
        measured, winner, step = (data.get(name) for name in ("measured", "winner", "step"))
        made = data.get("made")
        if not isinstance(step, str):
            raise ValueError(f"step is {step!r}; it takes a name")
        if not isinstance(measured, list) or not measured:
            raise ValueError("measured is no list with the default in it")
        if winner is not None and (
            isinstance(winner, bool)
            or not isinstance(winner, int)
            or not 0 < winner < len(measured)
        ):
            raise ValueError(f"winner is {winner!r}; it takes null or 1 .. {len(measured) - 1}")
        if not isinstance(made, dict):
            raise ValueError(f"made is {made!r}; it takes an object")
        key = _of_types(StepKey, data.get("key"), "key")
        found = _of_types(KernelClass, data.get("class"), "class")
        rows = _pairs(data.get("rows"), "rows")
        return cls(step, found, key, rows, tuple(map(Measured.from_json, measured)), winner, made)


@dataclass(frozen=True)
class Database:
    """Entries of one GPU model.

    Attributes:
        name, sms, arch: of the GPU.
        entries: by class and key.
    """

    name: str
    sms: int
    arch: str
    entries: Mapping[tuple[KernelClass, StepKey], Entry]

    def with_entries(self, entries: Iterable[Entry]) -> Database:
        """With further entries; those of the same class and key are replaced."""
        more = {(entry.kernel_class, entry.key): entry for entry in entries}
        return replace(self, entries={**self.entries, **more})

    @property
    def digest(self) -> str:
        """Eight hex digits of all that it holds, for records."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:8]

    def text(self) -> str:
        """The file: entries in a fixed order, one kernel a line."""
        gpu = json.dumps({"name": self.name, "sms": self.sms, "arch": self.arch})
        entries = [self.entries[k] for k in sorted(self.entries)]
        body = ",\n".join(_entry_text(entry) for entry in entries)
        head = f'{{\n "version": {VERSION},\n "gpu": {gpu},\n "entries": ['
        return head + (f"\n{body}\n ]\n}}\n" if entries else "]\n}\n")

    @classmethod
    def of_text(cls, text: str) -> Database:
        """The inverse.

        Raises:
            DatabaseError: a field is missing or wrong, or the version is another.
        """
        try:
            whole = json.loads(text)
        except json.JSONDecodeError as error:
            raise DatabaseError(f"not JSON: {error}") from error
        if not isinstance(whole, dict):
            raise DatabaseError("not an object")
        version = whole.get("version")
        if version != VERSION or isinstance(version, bool):
            raise DatabaseError(f"version is {version!r}; this release reads {VERSION}")
        gpu = whole.get("gpu")
        wanted = {"name": str, "sms": int, "arch": str}
        if not isinstance(gpu, dict) or any(type(gpu.get(n)) is not t for n, t in wanted.items()):
            raise DatabaseError(f"gpu is {gpu!r}; it takes name, sms and arch")
        listed = whole.get("entries")
        if not isinstance(listed, list):
            raise DatabaseError("entries is no list")
        entries = []
        for number, data in enumerate(listed):
            try:
                entries.append(Entry.from_json(data))
            except ValueError as error:
                raise DatabaseError(f"entries[{number}]: {error}") from error
        return cls(gpu["name"], gpu["sms"], gpu["arch"], {}).with_entries(entries)


def _entry_text(entry: Entry) -> str:
    data = entry.to_json()
    lines = ",\n".join(f"    {json.dumps(one)}" for one in data.pop("measured"))
    rest = ",\n".join(f"   {json.dumps(n)}: {json.dumps(value)}" for n, value in data.items())
    return f'  {{\n{rest},\n   "measured": [\n{lines}\n   ]\n  }}'


def _computed(rows: IntArray, tile_q: int, counts: IntArray | int = 1) -> int:
    """Query rows that tiles compute, with their padding."""
    return max(int((-(-rows // tile_q) * tile_q * counts).sum()), 1)


def _pairs(data: object, field: str) -> tuple[tuple[int, int], ...]:
    pairs = data if isinstance(data, list) else []
    whole = [p for p in pairs if isinstance(p, list) and [type(x) for x in p] == [int, int]]
    if not pairs or len(whole) < len(pairs) or min(map(min, whole)) < 1:
        raise ValueError(f"{field} is {data!r}; it takes pairs of numbers of at least 1")
    return tuple((count, number) for count, number in whole)


def _number(data: Mapping[str, Any], name: str) -> float:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}; it takes a number")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value!r}; it takes a number of at least 0")
    return float(value)


def _of_types(kind: Any, data: object, field: str) -> Any:
    """A named tuple of strings and whole numbers out of an object."""
    names: Mapping[str, type] = get_type_hints(kind)
    if not isinstance(data, dict) or data.keys() != names.keys():
        raise ValueError(f"{field} is {data!r}; it takes {', '.join(names)}")
    for name, wanted in names.items():
        if type(data[name]) is not wanted:
            raise ValueError(f"{field}.{name} is {data[name]!r}; it takes {wanted.__name__}")
    return kind(**data)
