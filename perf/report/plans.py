"""What plans are worth and what they cost: predictions, balance, host times, compiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cute_attn.scheduler import BUILT_IN
from perf.fit_constants import HELD_OUT, measured_rows
from perf.joining import Row, best_peers, is_ours, is_wrong
from perf.report import svg
from perf.report.archive import Archive, Record
from perf.report.blocks import Block, Figure, Gap, Section, Source, Table
from perf.tuning_goals import speedups


def section(archive: Archive) -> Section:
    """All of it."""
    blocks: list[Block] = [
        _steps(archive),
        _predictions(archive),
        _planner(archive),
        _launches(archive),
        _tuning(archive),
        _compiles(archive),
    ]
    text = (
        "How good plans of real batches are, how long the host takes, and the first call of a"
        " kernel."
    )
    return Section("plans", "Plans, host and compiler", text, blocks)


def _steps(archive: Archive) -> Block:
    title = "Real steps over their floors"
    record = archive.newest("T")
    if record is None:
        return Gap(title, "no record holds section T", "python -m perf.bench_steps")
    peers = best_peers(archive.peers)
    rows, dots = [], []
    for row in record.of("T", "X"):
        us, floor = row.get("us_graph"), row.get("floor_us")
        if not us or not floor or is_wrong(row) or not is_ours(row):
            continue
        best = peers.get((row["sec"], row["cfg"]))
        points = [(us / floor, 0, f"cute_attn {us / floor:.2f}")]
        line = [row["cfg"], f"{floor:,.0f}", f"{us:,.1f}", f"{us / floor:.2f}", "", "", ""]
        if best:
            points.append((best[0] / floor, 1, f"{best[1]} {best[0] / floor:.2f}"))
            line[4:6] = [f"{best[0] / floor:.2f}", best[1]]
        line[6] = f"{row['imbalance']:.3f}" if row.get("imbalance") else ""
        rows.append(line)
        dots.append(svg.Dots(row["cfg"], points))
    if not dots:
        return Gap(title, f"{record.name} has no floors", "python -m perf.bench_steps")
    high = max([2.0, *(value for row in dots for value, _, _ in row.dots)]) * 1.03
    ticks = [(v / 4, f"{v / 4:g}x") for v in range(4, int(4 * high) + 1)]
    axis = svg.Axis("time over the floor", 1.0, high, ticks)
    half = (len(dots) + 1) // 2
    panels = [
        svg.dots(f"Time over the floor ({n} of 2)", part, axis, 1.0, log=False)
        for n, part in ((1, dots[:half]), (2, dots[half:]))
        if part
    ]
    legend = [
        (svg.swatch(0), "cute_attn"),
        (svg.swatch(1), "best recorded peer"),
        (svg.rule_swatch(), "floor"),
    ]
    text = (
        "Sixteen continuous-batching steps of production traces and a mixed batch, one call each,"
        " 32/8 heads, page size 16. The floor is the larger of FLOPs at 796 TFLOP/s and bytes at"
        " 4,633 GB/s, measured on an H200. Imbalance is the work of the longest thread block over"
        " the mean of the first launch's plan."
    )
    head = ("step", "floor µs", "µs", "of the floor", "best peer's", "best peer", "imbalance")
    sources = [Source.of(record)]
    table = Table("The numbers", head, rows, sources, folded=True)
    return Figure(title, panels, legend, sources, text, table)


def _predictions(archive: Archive) -> Block:
    title = "Predicted and measured time of real steps"
    records = archive.with_section(HELD_OUT, ["steps"])[:2]
    if not records:
        return Gap(title, "no record holds section T", "python -m perf.bench_steps")
    errors: dict[str, list[tuple[float, float, float]]] = {}
    for record in records:
        try:
            cases = measured_rows(record.rows, HELD_OUT)
        except (ValueError, KeyError) as error:  # kernels have changed since
            return Gap(title, f"{record.name} no longer fits the planner: {error}", record.command)
        for case in cases:
            us = case.predicted_us(BUILT_IN)
            errors.setdefault(case.name.split(" ", 1)[1], []).append(
                (us, case.us, us / case.us - 1)
            )
    rows = [
        [
            name,
            *(
                cell
                for one in found
                for cell in (f"{one[0]:,.1f}", f"{one[1]:,.1f}", f"{one[2]:+.1%}")
            ),
        ]
        for name, found in errors.items()
    ]
    dots = [
        svg.Dots(
            name, [(100 * e, i, f"{e:+.1%} of {us:,.1f} us") for i, (_, us, e) in enumerate(found)]
        )
        for name, found in errors.items()
    ]
    most = max(abs(e) for found in errors.values() for _, _, e in found)
    limit = max(15.0, 100 * most)
    ticks = [(float(v), f"{v:+d}" if v else "0") for v in (-15, -10, -5, 0, 5, 10, 15)]
    axis = svg.Axis("predicted time over measured time, % off", -limit, limit, ticks)
    half = (len(dots) + 1) // 2
    panels = [
        svg.dots(f"Error of predictions ({n} of 2)", part, axis, 0.0, log=False)
        for n, part in ((1, dots[:half]), (2, dots[half:]))
        if part
    ]
    means = [
        statistics.mean(abs(found[i][2]) for found in errors.values() if len(found) > i)
        for i in range(len(records))
    ]
    legend = [
        (svg.swatch(i), f"{record.short_name}, {means[i]:.1%} off on average")
        for i, record in enumerate(records)
    ]
    text = (
        "The simulator plays this version's plan with the built-in constants of an H200; steps were"
        f" never part of a fit. Largest error {most:.1%}."
    )
    head = ("step", *(f for _ in records for f in ("predicted µs", "measured µs", "off")))
    sources = [Source.of(record) for record in records]
    table = Table("The numbers", head, rows, sources, folded=True)
    return Figure(title, panels, [*legend, (svg.rule_swatch(), "exact")], sources, text, table)


def _planner(archive: Archive) -> Block:
    title = "Planning, µs"
    records = archive.with_section("N")
    if not records:
        return Gap(title, "no record holds section N", "python -m perf.bench_plan")
    rows = []
    for record in records:
        for row in record.of("N"):
            where = record.head.get("cpu") or record.head["gpu"]
            times = [f"{row[f]:,.1f}" if f in row else "" for f in ("us", "next_us", "device_us")]
            rows.append([row["cfg"], f"{where} ({record.bench}, {record.head['gpu']})", *times])
    rows.sort(key=lambda row: row[1], reverse=True)
    known = {(r["peer"], r["cfg"]): r["us"] for r in archive.peers if r["sec"] == "F"}
    of = ", ".join(
        f"{peer} {us:,.0f}"
        for (peer, cfg), us in known.items()
        if cfg == "decode plan b256 host indptr"
    )
    text = (
        "The planner alone: first a plan from nothing, then steps that follow each other by a"
        " token, then planned by a kernel within a CUDA graph."
    )
    text += f" Peers, 256 decodes, host lengths: {of} µs." if of else ""
    head = ("case", "host", "on the host", "in a row", "on the device")
    return Table(title, head, rows, [Source.of(r) for r in records], text, folded=True)


def _launches(archive: Archive) -> Block:
    title = "Calls of the host, µs"
    record = archive.newest("L", ["launch"])
    if record is None:
        return Gap(title, "no record holds section L", "python -m perf.bench_launch")
    grid: dict[str, dict[str, Row]] = {}
    for row in record.of("L"):
        call, _, case = row["cfg"].partition(": ")
        if case and not call.startswith(("load", "compile")):
            grid.setdefault(call, {})[case] = row
    cases = list(dict.fromkeys(case for own in grid.values() for case in own))
    rows = [
        [call, *(f"{own[case]['us']:,.1f}" if case in own else "" for case in cases)]
        for call, own in grid.items()
    ]
    text = "Median host time of a call in bursts of 32; azure-chat-900 is a step of two launches."
    return Table(title, ("call", *cases), rows, [Source.of(record)], text)


def _tuning(archive: Archive) -> Block:
    title = "Tuned against untuned, held-out steps"
    record = archive.newest("U", ["tuning"])
    found = speedups(record.rows) if record else {}
    if record is None or not found:
        return Gap(title, "no record holds results of section U", "python -m perf.bench_tuning")
    times = {(row["cfg"], row.get("peer")): row for row in record.of("U")}
    rows = []
    for name, ratio in found.items():
        untuned, tuned = times.get((name, "untuned")), times[name, "tuned"]
        both = [f"{row['us_graph']:,.1f}" if row else "" for row in (untuned, tuned)]
        spread = f"{tuned['spread']:.3f}" if "spread" in tuned else ""
        rows.append([name, *both, f"{ratio:.3f}", spread])
    mean = statistics.geometric_mean(found.values())
    text = (
        f"Geometric mean {mean:.3f}, worst {min(found.values()):.3f}. The tuner has not seen these"
        " steps; both take turns on one card. Spread is half of the range of the turns' ratios."
    )
    head = ("step", "untuned, µs", "tuned, µs", "speed-up", "spread")
    return Table(title, head, rows, [Source.of(record)], text)


def _compiles(archive: Archive) -> Block:
    title = "First call of a kernel"
    record = archive.newest("J", ["compile"])
    launch = archive.newest("L", ["launch"])
    if record is None:
        return Gap(title, "no record holds section J", "python -m perf.bench_compile")
    dots = [
        svg.Dots(_readable(row["cfg"]), [_seconds(row, "cpu_us", 0), _seconds(row, "us", 1)])
        for row in record.of("J")
    ]
    high = 1.1 * max(value for row in dots for value, _, _ in row.dots)
    ticks = [(float(v), f"{v} s") for v in range(0, int(high) + 1, max(1, int(high) // 8))]
    axis = svg.Axis("seconds", 0.0, high, ticks)
    panels = [svg.dots("Cold compile, seconds", dots, axis, None, log=False)]
    rows = [
        [
            row["cfg"],
            f"{row['cpu_us'] / 1e6:.2f}",
            f"{row['us'] / 1e6:.2f}",
            f"{row['emit_us'] / 1e3:.1f}" if "emit_us" in row else "",
        ]
        for row in record.of("J")
    ]
    legend = [
        (svg.swatch(0), "processor time: what a free core takes"),
        (svg.swatch(1), "wall time, on a machine that others used as well"),
    ]
    sources = [Source.of(record)]
    machine = f"{record.head.get('cpu', '?')}, {record.head['toolchain']}"
    text = f"Source to cubin into an empty cache, one kernel at a time on one core ({machine})."
    if launch is not None and (loads := _loads(launch)):
        sources.append(Source.of(launch))
        text += (
            f" A kernel that is in the cache is loaded in {min(loads):.1f} to {max(loads):.1f} ms."
        )
    head = ("kernel", "processor, s", "wall, s", "generate, ms")
    table = Table("The numbers", head, rows, sources, folded=True)
    return Figure(title, panels, legend, sources, text, table)


def _seconds(row: Row, field: str, style: int) -> tuple[float, int, str]:
    return row[field] / 1e6, style, f"{row[field] / 1e6:.2f} s"


def _loads(record: Record) -> Sequence[float]:
    return [row["us"] / 1e3 for row in record.of("L") if row["cfg"].startswith("load from disk")]


def _readable(kernel: str) -> str:
    """Without the hash of the tile at the end."""
    return kernel.rpartition("_")[0]
