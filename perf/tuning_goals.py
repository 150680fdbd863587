"""What tuning is to bring on held-out steps (section U), checked on a record.

`check` says nothing about what a record does not hold.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from perf.goals import Goal
from perf.joining import Row, is_wrong

GOAL_MEAN, GOAL_WORST = 1.03, 0.99


def speedups(rows: Sequence[Row]) -> dict[str, float]:
    """Time without tuning over the time with it, by step."""
    return {
        row["cfg"]: row["speedup"]
        for row in rows
        if row.get("sec") == "U" and row.get("peer") == "tuned" and not is_wrong(row)
    }


def check(rows: Sequence[Row]) -> list[Goal]:
    """Goals that a record says something about."""
    found = speedups(rows)
    if not found:
        return []
    mean = statistics.geometric_mean(found.values())
    return [
        Goal("U: mean of the untuned time", mean, GOAL_MEAN),
        Goal("U: worst held-out step", min(found.values()), GOAL_WORST),
    ]
