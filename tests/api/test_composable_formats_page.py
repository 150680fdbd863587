"""The examples of docs/composable_formats.md run, and show what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "composable_formats.md"


def test_the_examples_run() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for code in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
        assert printed.getvalue().splitlines() == said
