"""Prefill against the rate of a matrix product, decode against the rate at which the card reads."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from markupsafe import Markup

from perf.cases import decode
from perf.cases.prefill import CHUNK_LENGTHS, PREFILL_HEADS, PREFILL_LENGTHS
from perf.joining import OURS, Row, best_peers, is_ours, is_wrong
from perf.rates import Line, best, lines_of, short
from perf.report import svg
from perf.report.archive import Archive, Record
from perf.report.blocks import Block, Figure, Gap, Section, Source, Table

_STYLES = {OURS: 0, "best recorded peer": 1, "fa3": 2, "sdpa_cudnn": 3}
_LENGTHS = svg.Axis(
    "sequence length, 16k tokens in all", 512, 16384, [(n, short(n)) for n in PREFILL_LENGTHS]
)
_CHUNKS = svg.Axis("keys", 8192, 131072, [(n, short(n)) for n in (*CHUNK_LENGTHS, 65536)])
_BYTES = svg.Axis(
    "bytes of K and V",
    3e6,
    5e10,
    [(1e7, "10 MB"), (1e8, "100 MB"), (1e9, "1 GB"), (1e10, "10 GB")],
)


def section(archive: Archive) -> Section:
    """All rooflines."""
    text = (
        "Rates of useful work against what the same card does at best: one large matrix product of"
        " the same run for prefill, one streaming read for decode. Higher is better."
    )
    makers: Sequence[tuple[str, str, Callable[[Archive, Record], Figure], str]] = (
        ("A", "Prefill over sequence length", _prefill, "python -m perf.bench_prefill --section A"),
        ("K", "Long context: 256 queries", _chunks, "python -m perf.bench_prefill --section K"),
        ("C", "Decode over bytes read", _decode, "python -m perf.bench_decode"),
    )  # fmt: skip
    blocks: list[Block] = []
    for sec, title, make, command in makers:
        record = archive.newest(sec)
        gap = f"no record holds results of section {sec}"
        figure = make(archive, record) if record else None
        blocks.append(figure if figure and figure.panels else Gap(title, gap, command))
    return Section("rooflines", "Rooflines", text, blocks)


def ceiling(record: Record, field: str) -> float | None:
    """What section E of a record says of its card: "tflops" or "gbps_graph"."""
    return next((float(row[field]) for row in record.of("E") if field in row), None)


def _legend(styles: Sequence[tuple[str, int]], rule: str) -> list[tuple[Markup, str]]:
    legend = [(svg.swatch(style), name) for name, style in styles]
    return [*legend, (svg.rule_swatch(), rule)] if rule else legend


def _prefill(archive: Archive, record: Record) -> Figure:
    matrix = ceiling(record, "tflops")
    measured, recorded = lines_of(_right(record.rows)), lines_of(_right(archive.peers))
    panels, rows, names = [], [], {OURS: 0}
    y_max = 1.08 * max(
        [1.0]
        + [rate for panel in measured.values() for line in panel.values() for rate in line.values()]
        + ([matrix] if matrix else [])
    )
    for dim in PREFILL_HEADS:
        for mask in ("full", "causal"):
            lines = dict(measured.get((dim, mask), {}))
            if not lines:
                continue
            lines["best recorded peer"] = best(recorded.get((dim, mask), {}))
            series = [
                svg.Series(name, sorted(lines[name].items()), style)
                for name, style in _STYLES.items()
                if lines.get(name)
            ]
            names |= {one.name: one.style for one in series}
            title = f"head_dim {dim}, {mask}"
            panels.append(svg.lines(title, series, _LENGTHS, "TFLOP/s", y_max, matrix))
            rows += [
                [title, one.name, *(_cell(lines[one.name].get(n)) for n in PREFILL_LENGTHS)]
                for one in series
            ]
    rule = f"matrix product 8192³ of the same run, {matrix:.0f} TFLOP/s" if matrix else ""
    text = (
        "Dense prefill, bf16; causal cases count half of the square. “Best recorded peer” is the"
        " fastest in perf/peers/h200.jsonl, measured on another H200; the others ran turn by turn"
        " with ours. A long product runs at the card's power limit, so attention may lie above"
        " its line."
    )
    head = ("TFLOP/s", "who", *map(short, PREFILL_LENGTHS))
    sources = [Source.of(record)]
    table = Table("The numbers", head, rows, sources, folded=True)
    title = "Prefill over sequence length"
    return Figure(title, panels, _legend(_same_run(names), rule), sources, text, table)


def _same_run(names: dict[str, int]) -> list[tuple[str, int]]:
    live = ("fa3", "sdpa_cudnn")
    return [(f"{n}, same run" if n in live else n, style) for n, style in names.items()]


def _chunks(archive: Archive, record: Record) -> Figure:
    matrix = ceiling(record, "tflops")
    rates: dict[tuple[str, str], Line] = defaultdict(dict)
    for who, source in ((OURS, record.rows), ("best recorded peer", archive.peers)):
        for row in _right(source):
            match = (
                re.fullmatch(r"(\S+) q256 kv(\d+)", row["cfg"]) if row.get("sec") == "K" else None
            )
            if match is None or "tflops_graph" not in row or is_ours(row) != (who == OURS):
                continue
            line = rates[match[1], who]
            line[int(match[2])] = max(row["tflops_graph"], line.get(int(match[2]), 0.0))
    y_max = 1.08 * max([1.0, matrix or 0.0, *(r for line in rates.values() for r in line.values())])
    panels, rows = [], []
    for heads in dict.fromkeys(heads for heads, _ in rates):
        present = [name for name in _STYLES if rates.get((heads, name))]
        series = [svg.Series(n, sorted(rates[heads, n].items()), _STYLES[n]) for n in present]
        panels.append(svg.lines(f"{heads} heads", series, _CHUNKS, "TFLOP/s", y_max, matrix))
        for name in present:
            line = rates[heads, name]
            rows.append([heads, name, *(_cell(line.get(keys)) for keys in CHUNK_LENGTHS)])
    rule = f"matrix product 8192³ of the same run, {matrix:.0f} TFLOP/s" if matrix else ""
    names = [(name, style) for name, style in _STYLES.items() if any(n == name for _, n in rates)]
    text = "The last 256 rows of one prompt over its paged cache, in a replayed CUDA graph."
    sources = [Source.of(record)]
    head = ("TFLOP/s", "who", *map(short, CHUNK_LENGTHS))
    table = Table("The numbers", head, rows, sources, folded=True)
    title = "Long context: chunks of 256 queries"
    return Figure(title, panels, _legend(names, rule), sources, text, table)


def _decode(archive: Archive, record: Record) -> Figure:
    reads = ceiling(record, "gbps_graph")
    peers = best_peers(archive.peers)
    size = {case.cfg: case.kv_bytes for case in decode()}
    panels_of: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    rows = []
    for row in record.of("C"):
        name = row["cfg"]
        if not is_ours(row) or is_wrong(row) or "gbps_graph" not in row or name not in size:
            continue
        shape = " ".join(name.split()[:2])  # "32/8 p16"
        panel = panels_of["head_dim 64 and 256" if " d" in name else shape]
        panel[OURS].append((size[name], row["gbps_graph"]))
        line = [name, f"{size[name] / 1e6:.1f}", _cell(row["gbps_graph"]), "", ""]
        if peer := peers.get(("C", name)):
            rate = size[name] / peer[0] / 1e3
            panel["best recorded peer"].append((size[name], rate))
            line[3:] = [_cell(rate), peer[1]]
        rows.append(line)
    rates = [y for panel in panels_of.values() for points in panel.values() for _, y in points]
    y_max = 1.08 * max([1.0, *rates, reads or 0.0])
    panels = []
    for title, panel in panels_of.items():
        series = [svg.Series(n, sorted(p), _STYLES[n], False) for n, p in panel.items()]
        panels.append(svg.lines(_shape(title), series, _BYTES, "GB/s", y_max, reads))
    text = (
        "One token for each of 1 to 256 requests over a paged cache: lengths constant (1k, 8k),"
        " uniform to 8k and Zipf of mean 2k; bf16, in a replayed CUDA graph over rotating caches."
        " Peers were measured on another H200, which reads at 4,633 GB/s."
    )
    rule = f"streaming read of the same run, {reads:,.0f} GB/s" if reads else ""
    names = [(name, style) for name, style in _STYLES.items() if style < 2]
    sources = [Source.of(record)]
    head = ("case", "MB of K and V", "GB/s", "best peer's GB/s", "best peer")
    table = Table("The numbers", head, rows, sources, folded=True)
    return Figure("Decode over bytes read", panels, _legend(names, rule), sources, text, table)


def _shape(title: str) -> str:
    match = re.fullmatch(r"(\S+) p(\d+)", title)
    return f"{match[1]} heads, page size {match[2]}" if match else title


def _right(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not is_wrong(row)]


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
