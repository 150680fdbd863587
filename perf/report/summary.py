"""Goals, reached and missed, and what was measured where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from perf.compare import TITLES, all_goals
from perf.report.archive import STANDARD, Archive
from perf.report.blocks import Block, Gap, Section, Source, Table

NAMES = TITLES | {"J": "cold compiles", "L": "calls of the host", "N": "planner"}
NAMES |= {"U": "tuning, held-out steps", "SB": "block-sparse prefill", "SL": "lists of pages"}
GOAL_BENCHES = (*STANDARD, "launch", "plan", "compile", "tuning", "composable")
"""Records that goals are for; others force a kernel or a plan."""


@dataclass(frozen=True)
class Verdict:
    """A goal, and what a record says of it."""

    goal: str
    got: float
    least: float
    reached: bool
    record: str
    commit: str
    newest: bool


def verdicts(archive: Archive) -> list[Verdict]:
    """Every goal by every record of a standard benchmark, newest records first."""
    found, seen = [], set()
    for record in archive.records:
        if record.bench not in GOAL_BENCHES:
            continue
        own = all_goals(record.rows, archive.peers)
        kind = (record.bench, record.head["gpu"])
        for goal in own:
            found.append(
                Verdict(
                    goal.what,
                    goal.got,
                    goal.least,
                    goal.got >= goal.least,
                    record.short_name,
                    record.head["commit"],
                    (kind, _key(goal.what)) not in seen,
                )
            )
        seen |= {(kind, _key(goal.what)) for goal in own}
    return found


def _key(what: str) -> str:
    """A goal's name without what was the worst case, or how fast the card reads, this time."""
    head = what.partition(" over the longest")[0]
    return re.sub(r"\d+ GB/s \(this card\)", "this card", head)


def as_json(archive: Archive) -> dict[str, object]:
    """The summary table, for scripts."""
    return {
        "records": [
            {"record": r.name, "rows": len(r.rows), "command": r.command}
            | {
                k: r.head.get(k, "")
                for k in ("gpu", "driver", "torch", "toolchain", "commit", "date")
            }
            for r in archive.records
        ],
        "goals": [asdict(verdict) for verdict in verdicts(archive)],
    }


def _row(verdict: Verdict) -> list[str]:
    word = "✓ reached" if verdict.reached else "✗ missed"
    numbers = f"{verdict.got:.4g}", f"{verdict.least:g}"
    return [verdict.goal, word, *numbers, verdict.record, verdict.commit]


def _counts(found: Sequence[Verdict], sources: Sequence[Source], text: str) -> Table:
    """How many goals of each section are reached."""
    sections: dict[str, list[bool]] = {}
    for verdict in found:
        sections.setdefault(verdict.goal.partition(":")[0], []).append(verdict.reached)
    rows = []
    for sec, own in sorted(sections.items()):
        word = "✓ all" if all(own) else "✗ not all"
        rows.append([f"{sec} {NAMES[sec]}", str(sum(own)), str(len(own) - sum(own)), word])
    reached = sum(verdict.reached for verdict in found)
    rows.append(["all", str(reached), str(len(found) - reached), ""])
    head = ("section", "reached", "missed", "")
    return Table("Goals reached and missed", head, rows, sources, text)


def section(archive: Archive) -> Section:
    """Goals and records."""
    found = verdicts(archive)
    newest, older = ([v for v in found if v.newest is is_new] for is_new in (True, False))
    head = ("goal", "", "measured", "at least", "record", "commit")
    used = {verdict.record for verdict in found}
    sources = [Source.of(record) for record in archive.records if record.short_name in used]
    blocks: list[Block] = []
    if newest:
        missed = [v for v in newest if not v.reached]
        reached = [v for v in newest if v.reached]
        text = (
            f"{len(reached)} of {len(newest)} goals are reached by the newest record that says"
            " something of them. More is better: where a goal is a time, the limit over the time"
            " is at least 1. Records lie in perf/results."
        )
        blocks.append(_counts(newest, sources, text))
        blocks.append(Table("Goals that are missed", head, [_row(v) for v in missed], sources))
        title = "Goals that are reached"
        blocks.append(Table(title, head, [_row(v) for v in reached], sources, folded=True))
    else:
        gap = "no record is of a benchmark that goals are for"
        blocks.append(Gap("Goals", gap, "python -m perf.bench_prefill"))
    if older:
        title = "The same goals by older records and by other cards"
        blocks.append(Table(title, head, [_row(v) for v in older], sources, folded=True))
    columns = ("record", "GPU", "driver", "torch", "compiler", "commit", "date", "rows")
    listed = [
        [
            r.short_name,
            *(str(r.head.get(k, "")) for k in ("gpu", "driver", "torch", "toolchain", "commit")),
            r.date,
            f"{len(r.rows):,}",
        ]
        for r in archive.records
    ]
    sources = [Source.of(record) for record in archive.records]
    blocks.append(Table("Records on this page", columns, listed, sources))
    return Section("goals", "Goals and records", "", blocks)
