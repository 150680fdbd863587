"""Goals, reached and missed, and what was measured where."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from perf.compare import all_goals
from perf.report.archive import STANDARD, Archive, Record
from perf.report.blocks import Block, Gap, Section, Source, Table

GOAL_BENCHES = (*STANDARD, "launch", "plan", "compile")
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
                    record.name,
                    record.head["commit"],
                    (kind, _key(goal.what)) not in seen,
                )
            )
        seen |= {(kind, _key(goal.what)) for goal in own}
    return found


def _key(what: str) -> str:
    """A goal's name without what was the worst case, or how fast the card reads, this time."""
    head = what.partition(" over the worst")[0]
    return re.sub(r"\d+ GB/s \(this card\)", "this card", head)


def as_json(archive: Archive) -> dict[str, object]:
    """The summary table, for scripts."""
    return {
        "records": [
            {"record": r.name, "rows": len(r.rows), "command": r.command}
            | {k: r.head.get(k, "") for k in ("gpu", "driver", "torch", "toolchain", "commit", "date")}
            for r in archive.records
        ],
        "goals": [asdict(verdict) for verdict in verdicts(archive)],
    }


def _row(verdict: Verdict) -> list[str]:
    word = "✓ reached" if verdict.reached else "✗ missed"
    return [
        verdict.goal, word, f"{verdict.got:.4g}", f"{verdict.least:g}", verdict.record, verdict.commit
    ]  # fmt: skip


def _number(record: Record) -> str:
    return f"{len(record.rows):,}"


def section(archive: Archive) -> Section:
    """Goals and records."""
    found = verdicts(archive)
    newest, older = ([v for v in found if v.newest is is_new] for is_new in (True, False))
    head = ("goal", "", "measured", "at least", "record", "commit")
    used = {verdict.record for verdict in found}
    sources = [Source.of(record) for record in archive.records if record.name in used]
    blocks: list[Block] = []
    if newest:
        missed = [v for v in newest if not v.reached]
        reached = [v for v in newest if v.reached]
        text = (
            f"{len(reached)} of {len(newest)} goals are reached by the newest record that says something"
            " of them. Above 1 is better than the limit where a goal is a time."
        )
        rows = [_row(v) for v in (*missed, *reached)]
        blocks.append(Table("Goals, the missed ones first", head, rows, sources, text, left=2))
    else:
        gap = "no record is of a benchmark that goals are for"
        blocks.append(Gap("Goals", gap, "python -m perf.bench_prefill"))
    if older:
        title = "The same goals by older records and by other cards"
        blocks.append(Table(title, head, [_row(v) for v in older], sources, left=2, folded=True))
    columns = ("record", "benchmark", "GPU", "driver", "torch", "compiler", "commit", "date", "rows")
    listed = [
        [r.name, r.bench, r.head["gpu"], *(r.head.get(k, "") for k in ("driver", "torch", "toolchain"))]
        + [r.head["commit"], r.date, _number(r)]
        for r in archive.records
    ]
    sources = [Source.of(record) for record in archive.records]
    blocks.append(Table("Records on this page", columns, listed, sources, left=8))
    return Section("goals", "Goals and records", "", blocks)
