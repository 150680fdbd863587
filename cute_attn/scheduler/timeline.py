"""The picture of an `Explanation`: what every thread block does over time. Needs matplotlib.

A row is a thread block and those that start where it ends; blocks that share an SM share its
height. Launches side by side are stacked on the SMs that they have, launches in turn share all of
them. (Which SM runs which block is the hardware's choice; the plan says only how many there are.)
The requests that take the most time have colours of their own; pieces of split tiles are darker.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cute_attn.scheduler.explain import ExplainedItem, ExplainedLaunch, Explanation
from cute_attn.scheduler.explain_text import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")
_OTHERS = ("0.74", "0.84")
"""Greys of the other requests, in turns."""
_PIECE = 0.72
"""Brightness of a piece of a split tile."""
_MEAN: dict[str, Any] = {"color": "black", "ls": "--", "lw": 0.8}
_MOST_VECTORS = 4000
"""Items from which the bars of a vector format are an image within it."""
_DPI = 150


def figure_class(what: str) -> type[Figure]:
    """Of matplotlib, which draws `what`.

    Raises:
        ModuleNotFoundError: it is not installed; the message says how to install it.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} is drawn by matplotlib, which is not installed: pip install matplotlib",
            name=error.name,
        ) from error
    return Figure


def draw(explanation: Explanation) -> Figure:
    """The timeline as a matplotlib figure, which no window and no pyplot state knows."""
    sizes = [launch.num_sms for launch in explanation.launches]
    sms = max(sizes) if explanation.in_turn else sum(sizes)
    figure = figure_class("the timeline")(
        figsize=(11, min(max(sms / 16, 4), 9)), layout="constrained"
    )
    axes = figure.add_subplot()
    colours = _colours(explanation)
    begin = 0.0
    for launch in explanation.launches:
        _draw_launch(axes, launch, begin, colours)
        begin += 0 if explanation.in_turn else launch.num_sms
        axes.axhline(begin, color="black", lw=1)
    axes.set_ylim(sms, 0)
    axes.set_xlim(0, max(explanation.predicted_us, 1e-3) * 1.02)
    axes.set_xlabel("us, predicted")
    axes.set_ylabel("SM")
    names = (" then " if explanation.in_turn else " beside ").join(
        launch.name for launch in explanation.launches
    )
    axes.set_title(
        f"{names}: {explanation.predicted_us:.1f} us, imbalance {explanation.imbalance:.3f},"
        f" {explanation.num_items:,} items, {size_text(explanation.kv_bytes)} of K and V loaded"
    )
    for name, colour in colours.items():
        axes.bar(0, 0, color=colour, label=f"request {name}")
    requests = {item.request for item in _items(explanation)}
    if len(requests) > len(colours):
        axes.bar(0, 0, color=_OTHERS[0], label=f"{len(requests) - len(colours)} others")
    if any(launch.splits for launch in explanation.launches):
        axes.bar(0, 0, color="0.3", label="darker: pieces of split tiles")
        axes.bar(0, 0, color="white", edgecolor="0.4", hatch="////", label="merge")
    if requests:
        axes.plot([], [], **_MEAN, label="mean end")
        figure.legend(loc="outside lower center", ncols=7, fontsize="small")
    return figure


def save(explanation: Explanation, path: Path) -> Path:
    """Writes the timeline; equal explanations make equal files."""
    figure = draw(explanation)
    known = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        endings = ", ".join(f".{name}" for name in sorted(known))
        raise ValueError(f"path is {str(path)!r}; it takes a name that ends in one of {endings}")
    import matplotlib

    dated = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix.lower())
    with matplotlib.rc_context({"svg.hashsalt": "cute_attn"}):
        figure.savefig(path, dpi=_DPI, metadata={dated: None} if dated else None)
    return path


def _items(explanation: Explanation) -> list[ExplainedItem]:
    launches = explanation.launches
    return [item for launch in launches for block in launch.blocks for item in block.items]


def _colours(explanation: Explanation) -> dict[int, str]:
    """Colours of the requests that take the most time, the longest first."""
    time: Counter[int] = Counter()
    for launch in explanation.launches:
        for block in launch.blocks:
            for item in block.items:
                spent = (item.end_us - item.start_us) / launch.blocks_per_sm
                time[item.request] += round(1e6 * spent)
    most = [request for request, _ in time.most_common(len(_COLOURS))]
    return dict(zip(most, _COLOURS, strict=False))


def _draw_launch(
    axes: Axes, launch: ExplainedLaunch, begin: float, colours: dict[int, str]
) -> None:
    """Bars of all items of a launch that has the SMs from `begin` on."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    height = 1 / launch.blocks_per_sm
    boxes, faces = [], []
    for block in launch.blocks:
        low = begin + block.place * height
        high = low + height
        for item in block.items:
            left, right = item.start_us, item.end_us
            boxes.append([(left, low), (right, low), (right, high), (left, high)])
            colour = to_rgb(colours.get(item.request, _OTHERS[item.request % 2]))
            faces.append(colour if item.slot < 0 else tuple(_PIECE * part for part in colour))
    if boxes:
        bars = PolyCollection(boxes, facecolors=faces, edgecolors="white", linewidths=0.2)
        bars.set_rasterized(len(boxes) > _MOST_VECTORS)
        axes.add_collection(bars)
    if launch.merge_us:
        axes.fill_betweenx(
            [begin, begin + launch.num_sms],
            launch.busiest_us,
            launch.predicted_us,
            facecolor="none",
            edgecolor="0.4",
            hatch="////",
            lw=0,
        )
    axes.plot([launch.mean_us] * 2, [begin, begin + launch.num_sms], **_MEAN)
