"""Why a candidate won, in words: its predicted facts held against those of the table's kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cute_attn.api.tune_facts import Facts
from cute_attn.tuning import Entry, Measured

_ALIKE = 0.02
"""Differences, relative or of shares, of which nothing is said."""


class _Quantity(NamedTuple):
    """A fact that speaks for a kernel, or against it.

    `is_share`: differences count as they are; else in relation. `sign`: 1 where more is better.
    """

    name: str
    of: Callable[[Facts], float]
    shown: Callable[[float], str]
    sign: int
    is_share: bool = False


def _size(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB" if value >= 10 << 20 else f"{value / 1024:,.0f} KiB"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _count(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _millions(value: float) -> str:
    return f"{value / 1e6:,.1f} M"


_QUANTITIES = (
    _Quantity("rows that are padding", lambda f: f.padding, _percent, -1, True),
    _Quantity(
        "scores computed, of padding and behind masks too", lambda f: f.scores, _millions, -1
    ),
    _Quantity("time in which blocks wait for the busiest", lambda f: f.idle, _percent, -1, True),
    _Quantity("steps over blocks of keys per SM", lambda f: f.kv_steps, _count, -1),
    _Quantity("K and V loaded", lambda f: f.kv_bytes, _size, -1),
    _Quantity("K and V in flight per SM", lambda f: f.in_flight, _size, 1),
    _Quantity("warps per SM", lambda f: f.warps_per_sm, _count, 1),
)
_FURTHER: tuple[tuple[str, Callable[[Facts], str]], ...] = (
    ("query tiles", lambda f: f"{f.tiles:,}"),
    ("of them split over thread blocks", lambda f: f"{f.split_tiles:,}"),
    ("tiles per thread block (waves)", lambda f: _count(f.rounds)),
    ("shared memory of a block", lambda f: _size(f.smem_bytes)),
    ("thread blocks per SM", lambda f: str(f.blocks_per_sm)),
)


def fact_rows(*of_kernels: Facts) -> list[tuple[str, ...]]:
    """A row per fact: its name, then its value for each kernel."""
    rows = [(name, *(shown(f) for f in of_kernels)) for name, shown in _FURTHER]
    return rows + [(q.name, *(q.shown(q.of(f)) for f in of_kernels)) for q in _QUANTITIES]


def reasons(winner: Facts, default: Facts) -> tuple[list[str], list[str]]:
    """What speaks for a winner, and what against it, as far as that is known ahead."""
    pro: list[str] = []
    contra: list[str] = []
    for quantity in _QUANTITIES:
        ours, theirs = quantity.of(winner), quantity.of(default)
        apart = ours - theirs
        if abs(apart) <= (_ALIKE if quantity.is_share else _ALIKE * theirs):
            continue
        text = f"{quantity.name} {quantity.shown(ours)} instead of {quantity.shown(theirs)}"
        (pro if apart * quantity.sign > 0 else contra).append(text)
    return pro, contra


def outcome(entry: Entry) -> str:
    """What was measured: the winner and by how much, or why the default stays."""
    default = entry.measured[0]
    if entry.taken is not None:
        return (
            f"{entry.taken.candidate.label} takes {_time(entry.taken)}, {entry.gain:.3f} times as"
            f" fast as the table's {default.candidate.label} with {_time(default)}."
        )
    if len(entry.measured) == 1:
        return f"Nothing was left to compare with {default.candidate.label}, {_time(default)}."
    best = min(entry.measured[1:], key=lambda m: m.us)
    apart = best.us / default.us - 1
    how = f"{100 * abs(apart):.1f} % {'more' if apart > 0 else 'less'}"
    why = ": a winner must gain more (1 %, and both spreads)" if apart < 0 else ""
    return (
        f"The table's {default.candidate.label} stays, with {_time(default)}. The best other,"
        f" {best.candidate.label}, takes {_time(best)}, {how}{why}."
    )


def explanation(entry: Entry, winner: Facts, default: Facts) -> str:
    """Why a winner won, by what was known ahead, and what the cost model had expected."""
    assert entry.taken is not None
    pro, contra = reasons(winner, default)
    text = f"For it: {'; '.join(pro)}." if pro else "Nothing that the equations know is for it."
    if contra:
        text += f" Against it: {'; '.join(contra)}."
    expected = entry.measured[0].predicted_us / entry.taken.predicted_us
    return f"{text} The cost model expected {expected:.3f} times, {entry.gain:.3f} were measured."


def _time(measured: Measured) -> str:
    return f"{measured.us:.1f} ± {measured.spread_us:.1f} µs"
