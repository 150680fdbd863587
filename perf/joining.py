"""Joins our rows of a record with those of peers, by section and case.

Sections C, D, T, K, Q, X and SL are compared by `us_graph`, the time of a call within a replayed
CUDA graph, all others by `us` (L2 emptied before each call). A row without the field is not
compared, nor is one with a wrong result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.cases.case import GRAPH_SECTIONS

PEERS = Path(__file__).parent / "peers" / "h200.jsonl"
OURS = "cute_attn"
ALIASES = {"A16": "A"}
"""Sections that the peers' file has under another name: fp16 is held against bf16 there."""
WRONG = 0.01
WRONG_OF = {"F": 0.03}
"""Of sections in e4m3: what rounding the probabilities to three bits leaves is 0.026."""
"""Errors of 16-bit outputs are a third of it; a row with a larger one, or NaN, is no result."""

Row = dict[str, Any]
Key = tuple[str, str]
Time = tuple[float, str]
"""Microseconds and who took them."""


@dataclass(frozen=True)
class Cell:
    """A case of ours beside the fastest peers.

    Attributes:
        row: as recorded.
        us: its time by the section's rule; None if the row does not have it or is wrong.
        recorded, live: fastest peer of the peers' file, and of the same run.
        note: why there is no ratio, if there is none.
    """

    row: Row
    us: float | None
    recorded: Time | None
    live: Time | None
    note: str

    @property
    def name(self) -> str:
        return str(self.row["cfg"])

    @property
    def ratio(self) -> float | None:
        """Best recorded peer's time by ours."""
        return self.recorded[0] / self.us if self.recorded and self.us else None

    @property
    def live_ratio(self) -> float | None:
        """Best time of a peer in the same run by ours."""
        return self.live[0] / self.us if self.live and self.us else None


def time_field(sec: str) -> str:
    """The field by which a section is compared."""
    return "us_graph" if sec in GRAPH_SECTIONS else "us"


def time_of(row: Row) -> float | None:
    """Microseconds of a call by the section's rule; None if the row has none."""
    value = row.get(time_field(row.get("sec", "")))
    return float(value) if isinstance(value, int | float) and value > 0 else None


def is_ours(row: Row) -> bool:
    """A row of this project (the first row of a file is of nobody)."""
    return "sec" in row and row.get("peer", OURS) == OURS


def is_wrong(row: Row) -> bool:
    """A row whose `err` says that the result was wrong (NaN is text in a record)."""
    err = row.get("err", 0.0)
    return not (isinstance(err, int | float) and err <= WRONG_OF.get(str(row.get("sec")), WRONG))


def best_peers(rows: Iterable[Row], against: str = "") -> dict[Key, Time]:
    """The fastest peer of every (sec, cfg), among those whose name begins with `against`."""
    best: dict[Key, Time] = {}
    for row in rows:
        us, peer = time_of(row), str(row.get("peer", ""))
        if us is None or "sec" not in row or is_ours(row) or is_wrong(row):
            continue
        key = (row["sec"], row["cfg"])
        if peer.startswith(against) and (key not in best or us < best[key][0]):
            best[key] = (us, peer)
    return best


def join(rows: Sequence[Row], peers: Sequence[Row], against: str = "") -> list[Cell]:
    """Our rows of a record, each beside its peers."""
    recorded, live = best_peers(peers, against), best_peers(rows, against)
    known = {(row["sec"], row["cfg"]) for row in peers if "sec" in row}
    cells = []
    for row in rows:
        if not is_ours(row) or not ("us" in row or "us_graph" in row):
            continue
        own: Key = (row["sec"], row["cfg"])
        key: Key = (ALIASES.get(own[0], own[0]), own[1])
        us = time_of(row)
        field, note = time_field(own[0]), ""
        if is_wrong(row):
            us, note = None, f"WRONG RESULT, err {row['err']}"
        elif us is None:
            note = f"cannot be joined: no {field} here"
        elif key not in recorded:
            note = f"cannot be joined: no peer gives {field}" if key in known else "no peer"
        cells.append(Cell(row, us, recorded.get(key), live.get(own), note))
    return cells
