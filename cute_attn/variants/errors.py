"""Errors of traced functions, which show the user's own line."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from types import FrameType

_OURS = "cute_attn."
_LIBRARIES = ("torch", "numpy")


class TraceError(TypeError):
    """A function cannot be traced: what it does, what it may do instead, and the line it stands on.

    Attributes:
        file, line: where, if known.
    """

    def __init__(self, message: str, file: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.line = line


@dataclass(frozen=True)
class Place:
    """A line of the user's source."""

    file: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"  {self.file}, line {self.line}" + (f":\n    {text}" if text else "")


def _is_library(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.split(".")[0] in _LIBRARIES or module.startswith(_OURS)


def users_place() -> Place | None:
    """The innermost line on the stack that is neither ours nor a numeric library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    return None if frame is None else Place(frame.f_code.co_filename, frame.f_lineno)


def trace_error(message: str, place: Place | None = None) -> TraceError:
    """An error at `place`, by default the line that the user's function is at."""
    place = place or users_place()
    if place is None:
        return TraceError(message)
    return TraceError(f"{message}\n{place}", place.file, place.line)
