"""The picture of a tune database: a row per step, its kernels from the fastest on. Needs
matplotlib.

The colour of a kernel says its time over that of the table's, which is framed in black; what plans
take instead is framed in red and says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cute_attn.tuning.database import Database, Entry, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_KERNELS = 12
"""Kernels of a step that are drawn: the fastest, and the table's in any case."""
_RANGE = 0.15
"""Relative differences from which colours are the same."""


def save(database: Database, path: Path) -> Path:
    """Writes the picture.

    Args:
        database: with entries.
        path: its ending says the format: .png, .svg, .pdf, ...

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: there are no entries; or an ending that matplotlib does not write.
    """
    draw(database).savefig(path, dpi=130)
    return path


def draw(database: Database) -> Figure:
    """The picture as a matplotlib figure, which no window and no pyplot state knows."""
    entries = [database.entries[key] for key in sorted(database.entries)]
    if not entries:
        raise ValueError("the database has no entries: nothing to draw")
    figure = _figure_class()(figsize=(19, 1.6 + 0.34 * len(entries)), layout="constrained")
    axes = figure.add_subplot()
    rows = [_shown(entry) for entry in entries]
    for place, (entry, shown) in enumerate(zip(entries, rows, strict=True)):
        _draw_row(axes, place, entry, shown)
    axes.set_xlim(-0.5, max(map(len, rows)) - 0.5)
    axes.set_ylim(len(entries) - 0.5, -0.5)
    axes.set_yticks(range(len(entries)), [entry.step for entry in entries], fontsize=7)
    axes.set_xticks([])
    axes.set_xlabel("kernels of a step, the fastest first: tile, time over the table's kernel")
    axes.set_title(
        f"{database.name}, {database.sms} SMs: {len(entries)} steps,"
        f" {sum(entry.winner is not None for entry in entries)} take another kernel"
        " (red frame) than the table's (black frame)"
    )
    _add_scale(figure, axes)
    return figure


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the landscape is drawn by matplotlib, which is not installed: pip install matplotlib",
            name=error.name,
        ) from error
    return Figure


def _shown(entry: Entry) -> list[Measured]:
    """The fastest kernels of a step, and the table's."""
    ranked = sorted(entry.measured, key=lambda m: m.us)
    shown = ranked[:MOST_KERNELS]
    if entry.measured[0] not in shown:
        shown[-1] = entry.measured[0]
    return shown


def _draw_row(axes: Axes, place: int, entry: Entry, shown: list[Measured]) -> None:
    from matplotlib.patches import Rectangle

    default = entry.measured[0]
    for column, one in enumerate(shown):
        share = one.us / default.us
        box = Rectangle((column - 0.48, place - 0.44), 0.96, 0.88, color=_colour(share))
        axes.add_patch(box)
        if one is default or one is entry.taken:
            box.set_edgecolor("red" if one is entry.taken else "black")
            box.set_linewidth(2.2)
        text = f"{_short(one)}\n{share:.3f} ±{one.spread_us / default.us:.3f}"
        text += " taken" if one is entry.taken else ""
        light = abs(share - 1) < 0.6 * _RANGE
        axes.text(
            column, place, text, ha="center", va="center", fontsize=5.2,
            color="black" if light else "white",
        )  # fmt: skip


def _colour(share: float) -> tuple[float, float, float, float]:
    from matplotlib import colormaps

    found: tuple[float, float, float, float] = colormaps["PuOr_r"](_place(share))
    return found


def _place(share: float) -> float:
    return min(max(0.5 + (share - 1) / (2 * _RANGE), 0.04), 0.96)


def _short(one: Measured) -> str:
    """The label, the kernel family by its first letters."""
    candidate = one.candidate
    family, _, rest = replace(candidate, toolchain=None).label.partition(" ")
    names = {"hopper_tile": "", "ampere_tile": "A ", "ampere_decode": "D "}
    compiler = "" if candidate.toolchain is None else f" {candidate.toolchain.rpartition('+')[2]}"
    return names.get(family, f"{family} ") + rest + compiler


def _add_scale(figure: Figure, axes: Axes) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(1 - _RANGE, 1 + _RANGE), "PuOr_r")
    bar = figure.colorbar(scale, ax=axes, fraction=0.012, pad=0.01, extend="both")
    bar.set_label("time over the table's kernel")
