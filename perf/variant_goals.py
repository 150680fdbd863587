"""What variants are to reach, checked on a record: against FlexAttention, against our own plain
causal kernel, and StreamingLLM decode against a pair of kernels that rotates first.

`check` says nothing about what a record does not hold.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from perf.goals import Goal
from perf.joining import Cell, Key, Row, is_ours, is_wrong, join

# Sections V and R against the best peer: the geometric mean, and the worst cell.
FLEX_MEAN, FLEX_WORST = 1.8, {"full": 1.4, "softcap30": 2.8, "": 1.5}
UNFUSED_WORST = 2.0
OF_PLAIN = {
    "alibi": 0.92,
    "relative": 0.92,
    "sinks": 0.92,
    "rope": 0.85,
    "sigmoid": 0.95,
    "softcap30": 0.78,
}
"""Prefill of 2 x 8k tokens: share of the plain causal kernel's TFLOP/s."""
DECODE_OF_PLAIN, STREAMING_OF_PLAIN = 0.97, 0.95


def check(rows: Sequence[Row], peers: Sequence[Row]) -> list[Goal]:
    """Goals that a record says something about."""
    right = [row for row in rows if is_ours(row) and not is_wrong(row)]
    ours = {(row["sec"], row["cfg"]): row for row in right}
    return [*_against_peers(join(rows, peers)), *_of_plain(ours)]


def _against_peers(cells: Sequence[Cell]) -> list[Goal]:
    def ratios(sec: str) -> dict[str, float]:
        own = (cell for cell in cells if cell.row["sec"] == sec)
        return {cell.name: cell.ratio for cell in own if cell.ratio}

    found = []
    if flex := ratios("V"):
        got = statistics.geometric_mean(flex.values())
        found.append(Goal("V: mean of FlexAttention", got, FLEX_MEAN))
        for variant, least in FLEX_WORST.items():
            own = [ratio for name, ratio in flex.items() if _limit(name) == variant]
            if own:
                found.append(Goal(f"V: worst of {variant or 'the others'}", min(own), least))
    if unfused := ratios("R"):
        found.append(Goal("R: worst of the unfused pair", min(unfused.values()), UNFUSED_WORST))
    return found


def _limit(name: str) -> str:
    variant = name.split()[-1]
    return variant if variant in FLEX_WORST else ""


def _of_plain(ours: Mapping[Key, Row]) -> list[Goal]:
    found = []
    for variant, least in OF_PLAIN.items():
        row = ours.get(("V", f"b2 s8192 {variant}"))
        if row:
            what = f"V: {variant} of the plain causal kernel, 2 x 8k"
            found.append(Goal(what, row["of_plain"], least))
    shares = {
        "V: worst decode of the plain kernel": ("V", "decode ", DECODE_OF_PLAIN),
        "R: worst of decode without an embedding": ("R", "", STREAMING_OF_PLAIN),
    }
    for what, (section, begin, least) in shares.items():
        own = [
            row["of_plain"]
            for (sec, cfg), row in ours.items()
            if sec == section and cfg.startswith(begin)
        ]
        if own:
            found.append(Goal(what, min(own), least))
    return found
