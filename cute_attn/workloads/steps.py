"""`load_steps`: the query and KV lengths of sixteen real steps of a serving engine.

Sources and how they were drawn: README.md beside this file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).parent / "steps.json"


@dataclass(frozen=True)
class Step:
    """One step of a continuous-batching engine.

    Attributes:
        name: trace and step number, e.g. "azure-chat-900".
        requests: (q_len, kv_len) of every request, in tokens; kv_len counts the new ones. A decode
            has q_len 1, a prefill chunk more.
    """

    name: str
    requests: tuple[tuple[int, int], ...]

    @property
    def q_lens(self) -> tuple[int, ...]:
        """New tokens of each request."""
        return tuple(q for q, _ in self.requests)

    @property
    def kv_lens(self) -> tuple[int, ...]:
        """Keys of each request, the new ones counted."""
        return tuple(kv for _, kv in self.requests)

    @property
    def prefill_rows(self) -> int:
        """New tokens that belong to prefill chunks."""
        return sum(q for q, _ in self.requests if q > 1)


def load_steps() -> list[Step]:
    """The sixteen steps, in the order of the file: six of Azure chat, four of Azure code, six of
    Mooncake conversations.
    """
    return [
        Step(entry["name"], tuple((int(q), int(kv)) for q, kv in entry["requests"]))
        for entry in json.loads(_FILE.read_text())
    ]
