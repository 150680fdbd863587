"""The examples of docs/composable_formats.md run, and show what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).parents[2] / "docs" / "composable_formats.md"


def test_the_examples_run() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    for code in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
        assert printed.getvalue().splitlines() == said
    # A list of pages for each KV head, by its definition.
    q, chosen, out = (names[name] for name in ("q", "chosen", "out"))
    for request, heads in enumerate(chosen):
        for head, pages in enumerate(heads):
            k, v = (names[name][pages, head].flatten(0, 1).float() for name in "kv")
            rows = slice(head * names["group"], (head + 1) * names["group"])
            own = torch.softmax(q[request, rows].float() @ k.T / k.shape[1] ** 0.5, -1) @ v
            assert torch.allclose(out[request, rows].float(), own, atol=2e-2)
