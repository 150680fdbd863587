"""Sections put together and rendered: one HTML file with its style inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from perf import records
from perf.report import checked, composable, plans, published, rooflines, side_by_side, summary
from perf.report.archive import Archive
from perf.report.blocks import Section

TEMPLATES = Path(__file__).parent / "templates"


def sections(archive: Archive) -> list[Section]:
    """All of the page, in order."""
    makers = (summary, rooflines, side_by_side, plans, composable, published, checked)
    return [maker.section(archive) for maker in makers]


def head(archive: Archive) -> list[tuple[str, str]]:
    """What the page's first lines say: cards, software, commits and dates of the records."""

    def values(key: str) -> str:
        found = sorted({str(r.head.get(key) or "") for r in archive.records} - {"", "cpu"})
        return ", ".join(found) or "none"

    dates = sorted(record.date[:10] for record in archive.records)
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    rows = sum(len(record.rows) for record in archive.records)
    return [
        ("GPU", values("gpu")),
        ("driver", values("driver")),
        ("torch", values("torch")),
        ("compiler of the kernels", values("toolchain")),
        ("records", f"{len(archive.records)} with {rows:,} rows, measured {span}"),
        ("commits measured", values("commit")),
        ("page made by commit", records.commit()),
    ]


def render(archive: Archive, made: Sequence[Section] | None = None) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return environment.get_template("report.html.jinja").render(
        head=head(archive), sections=made or sections(archive), style=Markup(style)
    )
