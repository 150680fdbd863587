"""Ours beside the fastest peer of every case: a picture of ratios, means and worst cells, cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from perf.compare import TITLES, geometric_mean
from perf.joining import Cell, join
from perf.report import svg
from perf.report.archive import Archive, Record
from perf.report.blocks import Block, Figure, Gap, Section, Source, Table

COMMANDS = {
    "A": "python -m perf.bench_prefill",
    "B": "python -m perf.bench_prefill --section B",
    "C": "python -m perf.bench_decode",
    "D": "python -m perf.bench_mla",
    "H": "python -m perf.bench_prefill --section H",
    "K": "python -m perf.bench_prefill --section K",
    "M": "python -m perf.bench_prefill --section M",
    "Q": "python -m perf.bench_decode",
    "R": "python -m perf.bench_variants",
    "T": "python -m perf.bench_steps",
    "V": "python -m perf.bench_variants",
    "W": "python -m perf.bench_prefill --section W",
    "X": "python -m perf.bench_steps",
}
WITHOUT_PEERS = ("H", "P")
"""Sections that are held against ourselves."""
Ratio = Callable[[Cell], float | None]


def ratios(cells: Sequence[Cell], sec: str, ratio: Ratio) -> list[tuple[float, str]]:
    """(ratio, case) of a section's cells that have one."""
    return [(r, c.name) for c in cells if c.row["sec"] == sec and (r := ratio(c))]


def recorded(cell: Cell) -> float | None:
    """To the best peer of the peers' file."""
    return cell.ratio


def live(cell: Cell) -> float | None:
    """To the best peer of the same run."""
    return cell.live_ratio


def section(archive: Archive) -> Section:
    """The whole comparison."""
    text = (
        "Ratio = fastest peer's time over ours: above 1 we are faster. “Recorded” peers are those"
        " of perf/peers/h200.jsonl (FlashAttention-3 and 4, FlashInfer 0.7.4, cuDNN,"
        " FlexAttention, FlashMLA), all on one other H200; peers of the same run took turns with"
        " ours on the same card."
    )
    joined = {r.name: join(r.rows, archive.peers) for r in archive.records if r.of(*TITLES)}
    blocks: list[Block] = [_picture(archive, joined), _means(archive, joined)]
    for sec in sorted({row["sec"] for row in archive.peers} & TITLES.keys()):
        record = archive.newest(sec)
        if record is None:
            blocks.append(_gap(sec))
        elif sec not in WITHOUT_PEERS:
            blocks.append(_cases(sec, record, joined[record.name]))
    if record := archive.newest("H"):
        blocks.append(_head_dims(record))
    return Section("peers", "Peers side by side", text, blocks)


def _gap(sec: str) -> Gap:
    what = f"Section {sec}, {TITLES[sec]}"
    if sec == "D":
        return Gap(
            what, "not measured: there are no kernels for MLA decode here; peers' times are known"
        )
    return Gap(what, "not measured: no record holds it", COMMANDS.get(sec, ""))


def _picture(archive: Archive, joined: dict[str, list[Cell]]) -> Block:
    rows, numbers, used = [], [], {}
    for sec, title in TITLES.items():
        record = archive.newest(sec)
        found = ratios(joined[record.name], sec, recorded) if record else []
        if record is None or not found:
            continue
        used[record.name] = record
        mean = geometric_mean([value for value, _ in found])
        points = [(v, 0 if v >= 1 else 1, f"{name}: {v:.2f}") for v, name in found]
        rows.append(
            svg.Dots(
                f"{sec}  {title}: mean {mean:.2f}, worst {min(found)[0]:.2f}, {len(found)} cases",
                [*points, (mean, 3, f"geometric mean {mean:.2f}")],
            )
        )
        numbers.append([sec, title, f"{mean:.3f}", f"{min(found)[0]:.3f}", f"{max(found)[0]:.3f}"])
    if not rows:
        return Gap(
            "Ratios", "no record shares a case with the peers", "python -m perf.bench_prefill"
        )
    ticks = [(v, f"{v:g}x") for v in (0.8, 1, 1.5, 2, 3, 4, 8)]
    high = max(1.3, *(value for row in rows for value, _, _ in row.dots)) * 1.05
    axis = svg.Axis(
        "times as fast as the best recorded peer", 0.75, high, [t for t in ticks if t[0] <= high]
    )
    half = math.ceil(len(rows) / 2)
    panels = [svg.dots(f"Sections {part[0].label[:1]} to {part[-1].label[:1]}", part, axis, 1.0)
              for part in (rows[:half], rows[half:]) if part]  # fmt: skip
    legend = [
        (svg.swatch(0), "a case, at least as fast as the best peer"),
        (svg.swatch(1), "a case, slower"),
        (svg.swatch(3), "geometric mean"),
        (svg.rule_swatch(), "as fast"),
    ]
    sources = [Source.of(record) for record in used.values()]
    head = ("section", "", "geometric mean", "worst", "best")
    table = Table("The numbers", head, numbers, sources, folded=True)
    text = "The newest record of each section. Every case is a dot."
    return Figure("Ratios by section", panels, legend, sources, text, table)


def _means(archive: Archive, joined: dict[str, list[Cell]]) -> Block:
    rows, used = [], {}
    for sec, title in TITLES.items():
        for record in archive.with_section(sec):
            cells = joined[record.name]
            groups = [ratios(cells, sec, recorded), ratios(cells, sec, live)]
            if not any(groups):
                continue
            used[record.name] = record
            line = [f"{sec} {title}"]
            for found in groups:
                mean = geometric_mean([v for v, _ in found])
                worst = min(found) if found else (math.nan, "")
                line += (
                    [f"{len(found)}", f"{mean:.2f}", f"{worst[0]:.2f}", worst[1]]
                    if found
                    else [""] * 4
                )
            rows.append([*line, record.short_name])
    title = "Geometric mean and worst case, by every record"
    if not rows:
        return Gap(title, "no record shares a case with the peers", "python -m perf.bench_prefill")
    head = ("section", *("cases", "mean", "worst", "worst case") * 2, "record")
    text = (
        "First against the best recorded peer, then (the second four columns) against the best"
        " peer of the same run. Records of forced kernels (prefill-ampere) and of batch"
        " invariance are named so."
    )
    return Table(title, head, rows, [Source.of(r) for r in used.values()], text)


def _cases(sec: str, record: Record, cells: Sequence[Cell]) -> Table:
    rows = []
    for cell in cells:
        if cell.row["sec"] != sec:
            continue
        us = f"{cell.us:,.1f}" if cell.us else ""
        line = [cell.name, us, _rate(cell)]
        for best, ratio in ((cell.recorded, cell.ratio), (cell.live, cell.live_ratio)):
            line += [f"{ratio:.2f}", f"{best[1]}, {best[0]:,.1f}"] if best and ratio else ["", ""]
        if not cell.ratio:
            line[4] = cell.note
        rows.append(line)
    head = (
        "case",
        "µs",
        "rate",
        "ratio",
        "best recorded peer, µs",
        "ratio",
        "best of the same run, µs",
    )
    title = f"Section {sec}, {TITLES[sec]}: every case"
    return Table(title, head, rows, [Source.of(record)], folded=True)


def _rate(cell: Cell) -> str:
    graph = (
        "_graph" if "us_graph" in cell.row and cell.row["sec"] in ("C", "K", "Q", "T", "X") else ""
    )
    for field, unit in (("tflops", "TFLOP/s"), ("gbps", "GB/s")):
        value = cell.row.get(field + graph, cell.row.get(field))
        if isinstance(value, int | float):
            return f"{value:,.0f} {unit}"
    return ""


def _head_dims(record: Record) -> Table:
    own = {row["cfg"]: row for row in record.of("H") if row.get("peer") == "cute_attn"}
    dims = sorted({int(cfg.split()[0][1:]) for cfg in own})
    shapes = dict.fromkeys(" ".join(cfg.split()[1:]) for cfg in own)

    def rate(dim: int, shape: str) -> str:
        row = next(
            (r for cfg, r in own.items() if cfg.split() == [f"d{dim}", *shape.split()]), None
        )
        return f"{row['tflops']:.0f}" if row and "tflops" in row else ""

    rows = [[shape, *(rate(dim, shape) for dim in dims)] for shape in shapes]
    head = ("TFLOP/s", *(f"head_dim {dim}" for dim in dims))
    text = (
        "No peer was measured: these are held against our head_dim 128 and 256. No padding counted."
    )
    return Table("Section H, prefill, other head dims", head, rows, [Source.of(record)], text)
