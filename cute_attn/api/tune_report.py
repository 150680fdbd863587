"""The report of a tune database: one HTML page of heat maps, and words why the winners won."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from cute_attn.api.tune_facts import facts_of
from cute_attn.api.tune_landscape import check_drawable, draw, groups, names, svg
from cute_attn.api.tune_plan import PlannedStep
from cute_attn.api.tune_words import explanation, fact_rows, outcome
from cute_attn.api.tuned import class_of
from cute_attn.codegen.spec import UnsupportedSpecError
from cute_attn.tuning import Database, Entry, TuneStep, default_steps

_UNKNOWN = "The report was not told the lengths of this step, so there is no plan to hold it to."
_NO_KERNEL = "This version no longer has one of the two kernels."


@dataclass(frozen=True)
class _Step:
    """What is said of one step."""

    entry: Entry
    outcome: str
    why: str = ""
    facts: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class _Group:
    """Steps that share a picture."""

    title: str
    anchor: str
    picture: str
    steps: tuple[_Step, ...]


def check_report(path: str | Path) -> Path:
    """The path, if a report can be written under this name.

    Raises:
        ValueError: it does not end in .html.
        ModuleNotFoundError: matplotlib is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"path is {str(path)!r}; it takes a name that ends in .html")
    check_drawable()
    return path


def write_report(
    database: Database, path: str | Path, *, steps: Sequence[TuneStep] | None = None
) -> Path:
    """Writes what a database holds as a page that needs nothing else.

    Args:
        database: of a GPU; the GPU need not be here.
        path: of the page, *.html.
        steps: what was tuned; default: what `tune` measures by default. Of other steps the times
            are shown, and no plan.

    Raises:
        ValueError: `path` does not end in .html.
        ModuleNotFoundError: matplotlib is not installed.
        OSError: it cannot be written.
    """
    path = check_report(path)
    path.write_text(page(database, steps), encoding="utf-8")
    return path


def page(database: Database, steps: Sequence[TuneStep] | None = None) -> str:
    """The text of the page; arguments as for `write_report`."""
    by_name = {step.name: step for step in (default_steps() if steps is None else steps)}
    shown = [
        _Group(
            title=names(group)[0] or f"{len(group)} steps",
            anchor=f"g{number}",
            picture=svg(draw(group)),
            steps=tuple(_explained(entry, by_name.get(entry.step), database) for entry in group),
        )
        for number, group in enumerate(groups(database.entries.values()))
    ]
    gains = [e.gain for e in database.entries.values() if e.taken is not None]
    environment = Environment(
        loader=PackageLoader("cute_attn.api"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("tuning.html.jinja").render(
        database=database,
        groups=shown,
        total=len(database.entries),
        won=len(gains),
        mean=math.exp(sum(map(math.log, gains)) / len(gains)) if gains else 1.0,
        most=max(gains, default=1.0),
        candidates=sum(len(e.measured) for e in database.entries.values()),
    )


def _explained(entry: Entry, step: TuneStep | None, database: Database) -> _Step:
    if entry.taken is None:
        return _Step(entry, outcome(entry))
    try:
        planned = None if step is None else PlannedStep(step, database.arch, database.sms)
        # Of this name there may be another step.
        if planned is None or not _is_of(entry, planned):
            return _Step(entry, outcome(entry), _UNKNOWN)
        both = [facts_of(planned, m.candidate) for m in (entry.taken, entry.measured[0])]
    except UnsupportedSpecError:
        return _Step(entry, outcome(entry), _NO_KERNEL)
    return _Step(entry, outcome(entry), explanation(entry, *both), tuple(fact_rows(*both)))


def _is_of(entry: Entry, planned: PlannedStep) -> bool:
    key = planned.step.key(planned.num_sms)
    return (entry.kernel_class, entry.key) == (class_of(planned.problem), key)
