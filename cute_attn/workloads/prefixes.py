"""`load_prefixes`: requests of a production trace with the blocks of their prompts, by content.

Source and how they were drawn: README.md beside this file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).parent / "prefixes.json"

BLOCK_TOKENS = 512
"""Tokens of a block; the last one of a request may hold fewer."""


@dataclass(frozen=True)
class SharedPrompts:
    """Requests that are served at the same time.

    Attributes:
        name: trace and number of the first request, e.g. "mooncake-4000".
        lengths: tokens of each prompt.
        blocks: block numbers of each prompt; equal numbers are equal tokens behind equal ones, so
            their keys and values can be shared.
    """

    name: str
    lengths: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]


def load_prefixes() -> list[SharedPrompts]:
    """Three batches of 64 requests of the Mooncake conversation trace."""
    return [
        SharedPrompts(
            entry["name"],
            tuple(int(length) for length, _ in entry["requests"]),
            tuple(tuple(map(int, blocks)) for _, blocks in entry["requests"]),
        )
        for entry in json.loads(_FILE.read_text())
    ]
