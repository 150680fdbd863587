"""What sections are made of: tables, figures and gaps, each with where it comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from perf.report.archive import Record


@dataclass(frozen=True)
class Source:
    """Where numbers come from: a record and the command that wrote it, or a command alone."""

    command: str
    record: str = ""
    commit: str = ""
    date: str = ""
    gpu: str = ""

    @classmethod
    def of(cls, record: Record) -> Source:
        head = record.head
        return cls(record.command, record.name, head["commit"], record.date, head["gpu"])


@dataclass(frozen=True)
class Table:
    """Rows of text; columns that hold nothing but numbers are aligned as such."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    sources: Sequence[Source]
    text: str = ""
    folded: bool = False
    kind: str = "table"

    @property
    def numeric(self) -> list[bool]:
        """Of each column: are its cells numbers?"""
        return [
            any(cells := [row[i] for row in self.rows]) and all(map(_is_number, cells))
            for i in range(len(self.head))
        ]


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"([-+]?[\d,.]+(e-?\d+)?( ?%)?)?", cell) is not None


@dataclass(frozen=True)
class Figure:
    """Pictures side by side under one legend; `table` holds the numbers that they show."""

    title: str
    panels: Sequence[Markup]
    legend: Sequence[tuple[Markup, str]]
    sources: Sequence[Source]
    text: str = ""
    table: Table | None = None
    kind: str = "figure"


@dataclass(frozen=True)
class Gap:
    """What no record says, and the command that would say it, if there is one."""

    title: str
    text: str
    command: str = ""
    kind: str = "gap"


Block = Table | Figure | Gap


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    id: str
    title: str
    text: str
    blocks: Sequence[Block] = field(default_factory=list)
