"""Records beside those of peers: ratio to the best peer per case, means and worst cells, goals.

    python -m perf.compare [RESULTS.jsonl ...] [--peers FILE] [--against fi_] [--summary]

A ratio above 1 is faster than every peer. Sections C, D, DH, T, K, Q, X and SL are compared by
`us_graph`, the time of a call within a replayed CUDA graph, all others by `us` (L2 emptied before
each call). A record may hold peers of its own, measured in the same run: they have a column to
themselves.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from perf import (
    goals,
    host_goals,
    records,
    serving_goals,
    sparse_goals,
    tuning_goals,
    variant_goals,
)
from perf.joining import PEERS, Cell, Row, is_ours, join, time_field

TITLES = {
    "A": "prefill, dense",
    "A16": "prefill, dense, fp16",
    "B": "prefill, paged",
    "C": "decode",
    "D": "decode, MLA",
    "DH": "decode, MLA, other heads and tokens",
    "F": "prefill, dense, e4m3",
    "H": "prefill, other head dims",
    "K": "chunked prefill",
    "M": "prefill, MLA",
    "P": "prefill, pages",
    "Q": "a few tokens each",
    "T": "real steps",
    "V": "variants",
    "R": "StreamingLLM decode",
    "W": "sliding windows",
    "X": "mixed batch",
}


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; NaN of none."""
    if not values:
        return math.nan
    return math.exp(sum(map(math.log, values)) / len(values))


def _rate(row: Row) -> str:
    suffix = "_graph" if time_field(row["sec"]) == "us_graph" else ""
    for name, unit in (("tflops", "TFLOP/s"), ("gbps", "GB/s")):
        value = row.get(name + suffix, row.get(name))
        if value is not None:
            return f"{value:6.0f} {unit:7s}"
    return ""


def table(cells: Iterable[Cell]) -> list[str]:
    """A line per case: our time and rate, the ratio to the best peer, to the best of this run."""
    lines = []
    for cell in cells:
        us = f"{cell.us:10.1f} us" if cell.us else f"{'':10s}   "
        line = f"{cell.row['sec']:3s} {cell.name:34s}{us} {_rate(cell.row):15s}"
        if cell.recorded and cell.ratio:
            line += f" {cell.ratio:5.2f} x {cell.recorded[1]} ({cell.recorded[0]:.1f} us)"
        else:
            line += f" {cell.note}"
        if cell.live and cell.live_ratio:
            line += f"; same run {cell.live_ratio:.2f} x {cell.live[1]} ({cell.live[0]:.1f} us)"
        lines.append(line.rstrip())
    return lines


def _mean_and_worst(found: list[tuple[float, str]]) -> str:
    if not found:
        return f"{'':42s}"
    worst, name = min(found)
    return f"{geometric_mean([ratio for ratio, _ in found]):6.3f}  {worst:5.2f} {name:28.28s}"


def summary(cells: Iterable[Cell]) -> list[str]:
    """A line per section: cells, geometric mean and worst cell, for both kinds of peers."""
    by_section: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_section[cell.row["sec"]].append(cell)
    lines = [
        f"{'section':28s} joined   mean  worst {'(best recorded peer)':28s}"
        "   mean  worst (best peer of the same run)"
    ]
    for sec, own in sorted(by_section.items()):
        ratios = [(cell.ratio, cell.name) for cell in own if cell.ratio]
        live = [(cell.live_ratio, cell.name) for cell in own if cell.live_ratio]
        count = f"{len(ratios)}/{len(own)}"
        line = f"{sec:3s} {TITLES.get(sec, ''):24s} {count:>6s} {_mean_and_worst(ratios)}"
        lines.append(f"{line} {_mean_and_worst(live)}".rstrip())
    return lines


def matrix_line(rows: Iterable[Row]) -> list[str]:
    """The matrix product of the same run, and the best prefill against it."""
    rates = [row["tflops"] for row in rows if row.get("sec") == "E" and "tflops" in row]
    dense = [row for row in rows if is_ours(row) and row["sec"] == "A"]
    ours = [(row["tflops"], row["cfg"]) for row in dense if "tflops" in row]
    if not rates or not ours:
        return []
    best, name = max(ours)
    return [
        f"bf16 matrix product of the same run {rates[0]:.0f} TFLOP/s; best of section A"
        f" {best:.0f} ({name}), {best / rates[0]:.0%}"
    ]


def all_goals(rows: Sequence[Row], peers: Sequence[Row]) -> list[goals.Goal]:
    """Every goal that one record says something about."""
    return [
        *goals.check(rows, peers),
        *serving_goals.check(rows, peers),
        *variant_goals.check(rows, peers),
        *host_goals.check(rows),
        *tuning_goals.check(rows),
        *sparse_goals.check(rows),
    ]


def page(rows: Sequence[Row], peers: Sequence[Row], cells: Sequence[Cell]) -> list[str]:
    """What is to be known of one record: sections, the matrix product's rate, goals."""
    return [*summary(cells), *matrix_line(rows), *map(str, all_goals(rows, peers))]


def print_tables(rows: Sequence[Row], peers: Path) -> None:
    """What a benchmark prints last."""
    recorded = list(records.read(peers))
    cells = join(rows, recorded)
    print("\n".join(["", *table(cells), "", *page(rows, recorded, cells)]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="*", help="default: all of perf/results")
    parser.add_argument("--peers", type=Path, default=PEERS, help="default: perf/peers/h200.jsonl")
    parser.add_argument("--against", default="", help="only peers whose name begins so, e.g. fi_")
    parser.add_argument("--summary", action="store_true", help="no lines for single cases")
    options = parser.parse_args()
    peers = list(records.read(options.peers))
    pages = []
    for path in options.results or sorted(records.RESULTS.glob("*.jsonl")):
        rows = list(records.read(path))
        cells = join(rows, peers, options.against)
        if not cells:
            continue
        first = next((row for row in rows if "sec" not in row), {})
        title = f"\n{path.name}: {first.get('gpu', '')}, commit {first.get('commit', '')}"
        if not options.summary:
            print("\n".join([title, *table(cells)]))
        pages += [title, *page(rows, peers, cells)]
    print("\n".join(pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
