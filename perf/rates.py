"""Rates of dense prefill (section A) over sequence length, by panel and by who was measured."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from perf.joining import OURS, Row

Line = dict[int, float]
"""Sequence length -> TFLOP/s."""
Panel = tuple[int, str]
"""head_dim and mask."""


def lines_of(rows: Sequence[Row]) -> dict[Panel, dict[str, Line]]:
    """Rates of section A by panel and by who was measured."""
    found: dict[Panel, dict[str, Line]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        match = re.fullmatch(r"d(\d+) (full|causal) +s(\d+)", row.get("cfg", ""))
        if row.get("sec") != "A" or match is None or "tflops" not in row:
            continue
        dim, mask, length = match.groups()
        found[int(dim), mask][row.get("peer", OURS)][int(length)] = row["tflops"]
    return found


def best(lines: dict[str, Line]) -> Line:
    """The highest rate at each length."""
    found: Line = {}
    for line in lines.values():
        for length, rate in line.items():
            found[length] = max(rate, found.get(length, 0.0))
    return found


def short(length: int) -> str:
    """16384 -> "16k"."""
    return f"{length // 1024}k" if length >= 1024 else str(length)
