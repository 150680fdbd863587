"""Small pictures as SVG: lines over a logarithmic axis, and dots in rows.

Series differ by shape as well as by colour; colours are classes of the page's style sheet, so that
they follow light and dark. All are drawn 380 units wide, to be shown about as large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 26, 40
_PLOT_HEIGHT = 190


class Series(NamedTuple):
    """Points (x, y) of one name; `style` 0 to 4 gives colour and shape."""

    name: str
    points: Sequence[tuple[float, float]]
    style: int
    joined: bool = True


class Axis(NamedTuple):
    """A logarithmic horizontal axis: ends, and what stands where."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]


class Dots(NamedTuple):
    """A row of dots: (value, style, title) each."""

    label: str
    dots: Sequence[tuple[float, int, str]]


def marker(style: int, x: float, y: float, title: str = "") -> str:
    """One dot: circle, triangle, square, diamond or cross."""
    r = 4.0
    shapes = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"',
        f'<path d="M{x:.1f} {y - r - 1:.1f}l{r + 0.6} {2 * r}h{-2 * r - 1.2}z"',
        f'<rect x="{x - 3.4:.1f}" y="{y - 3.4:.1f}" width="6.8" height="6.8"',
        f'<path d="M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z"',
        f'<path d="M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}"',
    )
    text = f"<title>{escape(title)}</title>" if title else ""
    return f'{shapes[style]} class="m s{style}">{text}</{shapes[style][1:].split()[0]}>'


def swatch(style: int) -> Markup:
    """A marker for a legend."""
    return Markup('<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true">{}</svg>').format(
        Markup(marker(style, 7, 7))
    )


def rule_swatch() -> Markup:
    """The line of a ceiling for a legend."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true">'
        '<line x1="0" x2="14" y1="7" y2="7" class="rule"/></svg>'
    )


def _svg(height: float, title: str, parts: Sequence[str]) -> Markup:
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img"'
        f' aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def nice_step(high: float) -> float:
    """Distance of four to six ticks from 0 to `high`: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(high / 4))
    return next(f * power for f in (1, 2, 5, 10) if high / (f * power) <= 6)


def lines(
    title: str, series: Sequence[Series], x: Axis, y_label: str, y_max: float, rule: float | None
) -> Markup:
    """Series over a logarithmic axis, from 0 up; `rule`: height of a ceiling's line."""
    height = _TOP + _PLOT_HEIGHT + _BOTTOM
    span = math.log(x.high / x.low)

    def at(px: float, py: float) -> tuple[float, float]:
        right = _LEFT + 6 + (WIDTH - _LEFT - _RIGHT - 12) * math.log(px / x.low) / span
        return right, _TOP + _PLOT_HEIGHT * (1 - py / y_max)

    parts = [_text(_LEFT, 15, f"{title}: {y_label}", "title", "start")]
    step = nice_step(y_max)
    for i in range(int(y_max / step + 1e-9) + 1):
        _, y = at(x.low, i * step)
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        )
        parts.append(_text(_LEFT - 5, y + 4, f"{i * step:g}", "", "end"))
    for value, text in x.ticks:
        parts.append(_text(at(value, 0)[0], _TOP + _PLOT_HEIGHT + 15, text))
    parts.append(_text((_LEFT + WIDTH) / 2, height - 6, x.label))
    if rule is not None:
        y = at(x.low, rule)[1]
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="rule"/>'
        )
    for one in reversed(series):  # the first lies on top
        places = [at(*point) for point in one.points]
        if one.joined and len(places) > 1:
            path = "L".join(f"{px:.1f} {py:.1f}" for px, py in places)
            parts.append(f'<path d="M{path}" class="line s{one.style}"/>')
        for (px, py), (value_x, value_y) in zip(places, one.points, strict=True):
            parts.append(marker(one.style, px, py, f"{one.name}: {value_y:.4g} at {value_x:.4g}"))
    return _svg(height, title, parts)


def dots(
    title: str,
    rows: Sequence[Dots],
    axis: Axis,
    mark: float | None,
    *,
    log: bool = True,
) -> Markup:
    """Rows of dots, their names above them; `mark`: a value to be seen, e.g. 1 for as fast as."""
    pitch, left, right = 36.0, 12.0, WIDTH - 12.0
    height = 26 + pitch * len(rows) + 36

    def at(value: float) -> float:
        value = min(max(value, axis.low), axis.high)
        share = (
            math.log(value / axis.low) / math.log(axis.high / axis.low)
            if log
            else (value - axis.low) / (axis.high - axis.low)
        )
        return left + (right - left) * share

    bottom = 26 + pitch * len(rows)
    parts = [_text(left, 15, title, "title", "start")]
    for value, text in axis.ticks:
        x = at(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="24" y2="{bottom:g}" class="grid"/>')
        anchor = "start" if x < left + 8 else "end" if x > right - 8 else "middle"
        parts.append(_text(x, bottom + 14, text, "", anchor))
    if mark is not None:
        x = at(mark)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="24" y2="{bottom:g}" class="rule"/>')
    parts.append(_text((left + right) / 2, bottom + 30, axis.label))
    for i, row in enumerate(rows):
        y = 26 + pitch * i
        parts.append(_text(left, y + 12, row.label, "name", "start"))
        parts += [marker(style, at(value), y + 24, text) for value, style, text in row.dots]
    return _svg(height, title, parts)
