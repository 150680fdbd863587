"""Results beside those of peers: ratio to the best peer per case, geometric means per section.

    python -m perf.compare PEERS.jsonl [RESULTS.jsonl ...]

A ratio above 1 is faster than every peer. Rows are compared by `us_graph` where they have it
(decode, steps), else by `us` (prefill): both are times of one call.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perf import records

Row = dict[str, Any]
Key = tuple[str, str]


def time_of(row: Row) -> float | None:
    """Microseconds of a call; None if the row has none."""
    for name in ("us_graph", "us"):
        value = row.get(name)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    return None


def best_peers(rows: Iterable[Row], ours: str = "cute_attn") -> dict[Key, tuple[float, str]]:
    """(us, peer) of the fastest peer of every (sec, cfg)."""
    best: dict[Key, tuple[float, str]] = {}
    for row in rows:
        us, peer = time_of(row), str(row.get("peer", ""))
        if us is None or "sec" not in row or peer == ours:
            continue
        key = (row["sec"], row["cfg"])
        if key not in best or us < best[key][0]:
            best[key] = (us, peer)
    return best


def geometric_mean(values: list[float]) -> float:
    """Of positive numbers; NaN of none."""
    if not values:
        return math.nan
    return math.exp(sum(map(math.log, values)) / len(values))


def table(rows: Iterable[Row], best: dict[Key, tuple[float, str]]) -> list[str]:
    """Lines: our time, the best peer's, the ratio; then the geometric mean of each section."""
    lines = []
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        us = time_of(row)
        if us is None or "sec" not in row:
            continue
        rate = ""
        for name, unit in (("tflops", "TFLOP/s"), ("gbps_graph", "GB/s"), ("gbps", "GB/s")):
            if name in row:
                rate = f"{row[name]:7.0f} {unit:7s}"
                break
        line = f"{row['sec']} {row['cfg']:26s} {us:10.1f} us {rate:16s}"
        if (peer := best.get((row["sec"], row["cfg"]))) is not None:
            ratios[row["sec"]].append(peer[0] / us)
            line += f" best peer {peer[0]:10.1f} us {peer[1]:14s} {peer[0] / us:5.2f} x"
        lines.append(line)
    for sec, values in sorted(ratios.items()):
        mean = geometric_mean(values)
        lines.append(f"section {sec}: {mean:.3f} x the best peer (geometric mean, {len(values)})")
    return lines


def print_tables(rows: list[Row], peers: Path | None) -> None:
    """What a benchmark prints last."""
    best = best_peers(records.read(peers)) if peers is not None else {}
    print("\n".join(["", *table(rows, best)]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peers", type=Path, help="rows with sec, peer, cfg, us, us_graph")
    parser.add_argument("results", type=Path, nargs="*", help="default: all of perf/results")
    options = parser.parse_args()
    paths = options.results or sorted(records.RESULTS.glob("*.jsonl"))
    rows = [row for path in paths for row in records.read(path)]
    print_tables(rows, options.peers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
