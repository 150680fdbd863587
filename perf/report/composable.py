"""Shared prefixes: decodes in levels beside the same step in one format."""

from __future__ import annotations

import re
from collections import defaultdict

from perf.joining import Row, is_wrong
from perf.report import svg
from perf.report.archive import Archive, Record
from perf.report.blocks import Block, Figure, Gap, Section, Source, Table

COMMAND = "python -m perf.bench_composable"
_BENCHES = ("composable", "shared")
_TRACES = ("azure-chat", "azure-code", "mooncake")
_ASKED = 1.15


def newest(archive: Archive) -> Record | None:
    """The newest record of shared prefixes."""
    return archive.newest("PG", _BENCHES)


def times(record: Record, sec: str) -> dict[str, dict[str, Row]]:
    """Rows of each case of a section, by way: flat, auto, levels."""
    found: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in record.of(sec):
        if not is_wrong(row):
            found[row["cfg"]][row["peer"]] = row
    return {cfg: rows for cfg, rows in found.items() if {"flat", "auto", "levels"} <= rows.keys()}


def gain(rows: dict[str, Row], way: str) -> float:
    """Time in one format over that of a way."""
    return float(rows["flat"]["us_graph"] / rows[way]["us_graph"])


def section(archive: Archive) -> Section:
    """Samples of one prompt as a picture; long prefixes and a trace as tables."""
    text = (
        "Decodes whose requests share keys (32/8 heads, head_dim 128, pages of 16), each in a"
        " replayed CUDA graph over rotating caches: in one format, where every request reads what"
        " is shared, against levels, where it is read once. “Auto” is what share_prefixes="
        "“auto” makes of the page tables alone."
    )
    record = newest(archive)
    if record is None:
        gap = Gap("Shared prefixes", "not measured: no record holds sections PG and SP", COMMAND)
        return Section("composable", "Composable formats", text, [gap])
    blocks = [_samples(record), *(_cases(record, sec) for sec in ("SP", "MP"))]
    return Section("composable", "Composable formats", text, blocks)


def _samples(record: Record) -> Block:
    series, rows, most = [], [], 1.0
    for style, trace in enumerate(_TRACES):
        points, prompt = [], ""
        for cfg, ways in times(record, "PG").items():
            match = re.fullmatch(rf"{trace} (\d+), n(\d+)", cfg)
            if match is None:
                continue
            prompt, count = match[1], int(match[2])
            points.append((count, gain(ways, "auto")))
            rows.append(_row(cfg, ways))
        series.append(svg.Series(f"{trace}, prompt of {prompt}", sorted(points), style))
        most = max(most, *(y for _, y in points), 1.0)
    axis = svg.Axis("samples", 1, 64, [(1 << i, str(1 << i)) for i in range(7)])
    panel = svg.lines("one format over auto", series, axis, "ratio of times", most * 1.05, _ASKED)
    legend = [(svg.swatch(s.style), s.name) for s in series]
    table = Table("The times", _HEAD, rows, [], folded=True)
    return Figure(
        "Parallel generation: samples of one prompt",
        [panel],
        [*legend, (svg.rule_swatch(), f"{_ASKED}: asked of 4 to 32 samples")],
        [Source.of(record)],
        "Prompts as long as the median request of the steps of each trace; every sample has 128"
        " keys of its own. Short prompts stay in one format: their flat step takes less than the"
        " three launches of levels.",
        table,
    )


_HEAD = ("case", "flat µs", "auto µs", "levels µs", "flat / auto", "flat / levels")


def _row(cfg: str, ways: dict[str, Row]) -> list[str]:
    shown = [f"{ways[way]['us_graph']:.1f}" for way in ("flat", "auto", "levels")]
    return [cfg, *shown, *(f"{gain(ways, way):.2f}" for way in ("auto", "levels"))]


def _cases(record: Record, sec: str) -> Block:
    titles = {
        "SP": "A prefix that all requests share, and 128 keys of each",
        "MP": "Batches of 64 requests of a production trace, by the hashes of their blocks",
    }
    found = times(record, sec)
    head, rows = list(_HEAD), [_row(cfg, ways) for cfg, ways in found.items()]
    if sec == "MP":
        head.append("share of the bytes that levels read")
        for row, ways in zip(rows, found.values(), strict=True):
            share = ways["levels"]["kv_bytes"] / ways["flat"]["kv_bytes"]
            row.append(f"{100 * share:.0f} %")
    return Table(titles[sec], head, rows, [Source.of(record)])
