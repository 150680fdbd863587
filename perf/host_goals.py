"""What host times are to reach, checked on a record: launches (section L), planner (N) and cold
compiles (J). As for all goals more is better: the limit over the worst time is at least 1.

`check` says nothing about what a record does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from perf.goals import Goal
from perf.joining import Row

LAUNCH_US = {
    "run, out given: ": 10.0,
    "run, new pointers: ": 25.0,
    "run, torch operator: ": 18.0,
    "load from disk: ": 10e3,
}
"""At most, by how a case of section L begins."""
COMPILE_US = 6e6
"""Processor time of a cold compile, at most: a core that others use as well takes longer."""
PLAN_US = {"decode b16": 60.0, "decode b256": 150.0, "decode b4096": 1e3, "prefill b8 c8192": 1e3}
DEVICE_PLAN_US = {"decode b256": 6.0, "decode b4096": 15.0}
"""Cases of section N: the planner alone on the host, and on the device within a graph."""


def check(rows: Sequence[Row]) -> list[Goal]:
    """Goals that a record says something about."""
    found = []
    for begin, most in LAUNCH_US.items():
        own = [row for row in rows if row.get("sec") == "L" and row["cfg"].startswith(begin)]
        if own:
            found.append(_at_most("L: " + begin.removesuffix(": "), own, "us", most))
    for field, limits in (("us", PLAN_US), ("device_us", DEVICE_PLAN_US)):
        where = "the device" if field == "device_us" else "the host"
        for cfg, most in limits.items():
            own = [row for row in rows if row.get("sec") == "N" and row["cfg"] == cfg]
            if own and field in own[0]:
                found.append(_at_most(f"N: plan of {cfg} on {where}", own, field, most))
    if own := [row for row in rows if row.get("sec") == "J"]:
        found.append(_at_most("J: cold compile, processor time", own, "cpu_us", COMPILE_US))
    return found


def _at_most(what: str, rows: Sequence[Row], field: str, most: float) -> Goal:
    slowest = max(rows, key=lambda row: float(row[field]))
    case = slowest["cfg"].partition(": ")[2]  # of a call; names of kernels are long
    name = f" ({case})" if what.startswith("L: run") else ""
    limit = f"{most / 1e6:g} s" if most >= 1e6 else f"{most:g} us"
    return Goal(f"{what}, {limit} over the longest{name}", most / slowest[field], 1.0)
