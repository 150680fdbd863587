"""Sizes and times as people write them: "2GiB", "30d"."""

from __future__ import annotations

import re

import typer

_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def size(text: str) -> int:
    """Bytes of "500M", "2GiB" or "1048576"; units are powers of 1024.

    Raises:
        typer.BadParameter: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size; it takes e.g. 500M, 2GiB or 1048576")
    return int(float(match[1]) * _BYTES[match[2]])


def duration(text: str) -> float:
    """Seconds of "90m", "12h", "30d" or "2w".

    Raises:
        typer.BadParameter: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])", text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no time; it takes e.g. 90m, 12h, 30d or 2w")
    return float(match[1]) * _SECONDS[match[2]]


def in_words(num_bytes: float) -> str:
    """As "1.2 GiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def ago(seconds: float) -> str:
    """As "3 d ago"."""
    for limit, unit, length in ((3600.0, "min", 60.0), (2 * 86400.0, "h", 3600.0)):
        if seconds < limit:
            return f"{max(seconds, 0.0) / length:.0f} {unit} ago"
    return f"{seconds / 86400.0:.0f} d ago"
