"""What sparse KV is to reach, checked on a record: block-sparse prefill (section SB) against its
share of the dense time of the same run, decode over lists of pages (SL) against the bytes it reads.
As for all goals more is better: the limit over the worst time is at least 1.

`check` says nothing about what a record does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from perf.goals import Goal
from perf.joining import Row, is_ours, is_wrong

OF_DENSE = {64: 1.9, 128: 1.15}
"""Times density, by query rows of a block: a tile of 64 rows computes half as much for a read."""
PREFILL_US = 20.0
LIST_GBPS, LIST_US = 4400.0, 5.0


def limit_us(row: Row) -> float:
    """The longest that a case may take, in microseconds."""
    if row["sec"] == "SL":
        return float(row["kv_bytes"]) / LIST_GBPS / 1e3 + LIST_US
    share = float(row["density"]) * OF_DENSE[row["row_block"]]
    return share * float(row["dense_us"]) + PREFILL_US


def check(rows: Sequence[Row]) -> list[Goal]:
    """Goals that a record says something about."""
    right = [row for row in rows if is_ours(row) and not is_wrong(row)]
    found = []
    for block, factor in OF_DENSE.items():
        own = [r for r in right if r["sec"] == "SB" and r.get("row_block") == block and "us" in r]
        if own:
            worst = min(limit_us(row) / row["us"] for row in own)
            what = f"SB: {factor:g} x share of dense + {PREFILL_US:g} us, rows of {block}, worst"
            found.append(Goal(what, worst, 1.0))
    own = [row for row in right if row["sec"] == "SL" and "us_graph" in row]
    if own:
        worst = min(limit_us(row) / row["us_graph"] for row in own)
        found.append(Goal(f"SL: bytes / {LIST_GBPS:g} GB/s + {LIST_US:g} us, worst", worst, 1.0))
    return found
