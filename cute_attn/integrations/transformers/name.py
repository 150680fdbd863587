"""The name in `attn_implementation=`, and what its functions are to `torch.compile`."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

NAME = "cute_attn"

_F = TypeVar("_F")


def untraced(function: _F) -> _F:
    """Lengths are read and planned on the host, which cannot be traced: a break in the graph."""
    disable: Any = torch.compiler.disable  # torch does not annotate it
    traced: _F = disable(function)
    return traced
