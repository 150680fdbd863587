"""Plots section A of a record: TFLOP/s over sequence length, one panel per head_dim and mask.

    python -m perf.plot RESULTS.jsonl [--out FILE.svg] [--peers FILE]

Ours, the best recorded peer, peers of the same run and the matrix product's rate. Needs
matplotlib, no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from perf import records
from perf.cases.prefill import PREFILL_HEADS, PREFILL_LENGTHS
from perf.joining import OURS, PEERS, Row
from perf.rates import best, lines_of, short

MASKS = ("full", "causal")
COLORS = {OURS: "C0", "fa3": "C1", "sdpa_cudnn": "C2"}


def draw(rows: Sequence[Row], peers: Sequence[Row], title: str) -> Figure:
    """The figure of one record."""
    measured, recorded = lines_of(rows), lines_of(peers)
    matrix = [row["tflops"] for row in rows if row.get("sec") == "E" and "tflops" in row]
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    grid = figure.subplots(len(MASKS), len(PREFILL_HEADS), sharex=True, sharey=True)
    for row_axes, mask in zip(grid, MASKS, strict=True):
        for axes, dim in zip(row_axes, PREFILL_HEADS, strict=True):
            own = measured.get((dim, mask), {})
            for name, line in sorted(own.items(), key=lambda item: item[0] != OURS):
                style = {"lw": 2.2, "marker": "o"} if name == OURS else {"lw": 1, "marker": "x"}
                label = name if name == OURS else f"{name}, same run"
                axes.plot(
                    *zip(*sorted(line.items()), strict=True),
                    color=COLORS.get(name),
                    label=label,
                    **style,
                )
            if line := best(recorded.get((dim, mask), {})):
                points = zip(*sorted(line.items()), strict=True)
                axes.plot(*points, "k--", lw=1.2, marker=".", label="best recorded peer")
            if matrix:
                axes.axhline(matrix[0], color="0.5", lw=1, ls=":", label="matrix product")
            axes.set_xscale("log", base=2)
            axes.set_xticks(PREFILL_LENGTHS, [short(n) for n in PREFILL_LENGTHS])
            axes.set_title(f"head_dim {dim}, {mask}")
            axes.grid(alpha=0.3)
    grid[0, 0].set_ylim(0)  # last, and shared: a limit set by hand ends scaling by data
    for axes in grid[-1]:
        axes.set_xlabel("sequence length (16k tokens in all)")
    for row_axes in grid:
        row_axes[0].set_ylabel("TFLOP/s")
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    figure.suptitle(title)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="of perf.bench_prefill")
    parser.add_argument("--out", type=Path, help="default: perf/results/<name of the record>.svg")
    parser.add_argument("--peers", type=Path, default=PEERS, help="default: perf/peers/h200.jsonl")
    options = parser.parse_args()
    first, *rows = records.read(options.record)
    title = f"Prefill on {first.get('gpu', '?')}, bf16, {first.get('date', '')[:10]}"
    out = options.out or records.RESULTS / f"{options.record.stem}.svg"
    matplotlib.rcParams["svg.hashsalt"] = "cute_attn"  # equal records make equal files
    draw(rows, list(records.read(options.peers)), title).savefig(out, metadata={"Date": None})
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
