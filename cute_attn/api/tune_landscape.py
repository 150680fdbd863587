"""Heat maps of what the tuner measured: candidates down, steps across. Needs matplotlib.

A cell holds the time and its spread and has the colour of the time over that of the table's kernel.
Steps of a class of kernels and of a kind have a picture together, since they share candidates.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cute_attn.scheduler.timeline import figure_class
from cute_attn.tuning import Candidate, Entry, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST, _MOST = 0.85, 1.3
"""Times over the table's at the ends of the colours."""
_COLOURS = "RdYlBu_r"
_ROW, _COLUMN, _LABELS, _HEAD = 0.27, 1.75, 3.2, 1.0  # inches


def check_drawable() -> None:
    """Raises ModuleNotFoundError, with what to install, where nothing can draw."""
    figure_class("a report of tuning")


def groups(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Entries by class of kernels and kind of step, in a fixed order."""
    found: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda e: (e.kernel_class, e.key)):
        found[entry.kernel_class, entry.key.kind].append(entry)
    return list(found.values())


def names(group: Sequence[Entry]) -> tuple[str, list[str]]:
    """The words with which all names of steps begin, and what is left of each; of a single step the
    name and nothing."""
    words = [entry.step.split() for entry in group]
    common = 0
    while all(len(w) > common and w[common] == words[0][common] for w in words):
        common += 1
    return " ".join(words[0][:common]), [" ".join(w[common:]) for w in words]


def draw(group: Sequence[Entry]) -> Figure:
    """The heat map of some steps, which no window and no pyplot state knows.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    of_step = [{m.candidate: m for m in entry.measured} for entry in group]
    candidates = _ordered(group, of_step)
    size = (_LABELS + _COLUMN * len(group), _HEAD + _ROW * len(candidates))
    figure = figure_class("a report of tuning")(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(0, len(group))
    axes.set_ylim(len(candidates), 0)
    axes.set_yticks([row + 0.5 for row in range(len(candidates))])
    axes.set_yticklabels([c.label for c in candidates], family="monospace", size=8)
    title, columns = names(group)
    axes.set_xticks([column + 0.5 for column in range(len(group))])
    axes.set_xticklabels([name or "µs" for name in columns], size=9)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_title(title, size=10, loc="left")
    for column, (entry, measured) in enumerate(zip(group, of_step, strict=True)):
        for row, candidate in enumerate(candidates):
            one = measured.get(candidate)
            if one is not None:
                _draw_cell(axes, (column, row), one, entry)
    for row in range(len(candidates) + 1):
        axes.axhline(row, color="white", lw=1.5, zorder=1)
    return figure


def svg(figure: Figure) -> str:
    """The picture as an element of a page; equal ones give equal text."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "cute_attn", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]  # without the prologue of a file


def _ordered(
    group: Sequence[Entry], of_step: Sequence[dict[Candidate, Measured]]
) -> list[Candidate]:
    """Candidates from the fastest on, in the mean of the steps that have them."""
    ratios: dict[Candidate, list[float]] = defaultdict(list)
    for entry, measured in zip(group, of_step, strict=True):
        for candidate, one in measured.items():
            ratios[candidate].append(one.us / entry.measured[0].us)
    return sorted(ratios, key=lambda c: (sum(ratios[c]) / len(ratios[c]), c.label))


def _draw_cell(axes: Axes, place: tuple[int, int], one: Measured, entry: Entry) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    is_default, is_taken = one is entry.measured[0], one is entry.taken
    ratio = one.us / entry.measured[0].us
    # Both ends from the table's time, which is the middle of the colours.
    end = _LEAST if ratio < 1 else _MOST
    shade = 0.5 + 0.5 * min((ratio - 1) / (end - 1), 1) * (1 if ratio > 1 else -1)
    red, green, blue, _ = colormaps[_COLOURS](shade)
    axes.add_patch(Rectangle(place, 1, 1, facecolor=(red, green, blue), edgecolor="none"))
    mark = "★ " if is_taken else "▪ " if is_default else ""
    luminance = 0.299 * red + 0.587 * green + 0.114 * blue
    axes.text(
        place[0] + 0.5,
        place[1] + 0.5,
        f"{mark}{one.us:.1f} ± {one.spread_us:.1f}  ({ratio:.2f})",
        ha="center",
        va="center",
        size=8,
        weight="bold" if is_taken or is_default else "normal",
        color="black" if luminance > 0.5 else "white",
        zorder=3,
    )
    if is_taken or is_default:
        inset = (place[0] + 0.015, place[1] + 0.06)
        line = "-" if is_taken else "--"
        frame = Rectangle(inset, 0.97, 0.88, fill=False, edgecolor="black", lw=1.6, ls=line)
        frame.set_zorder(2)
        axes.add_patch(frame)
