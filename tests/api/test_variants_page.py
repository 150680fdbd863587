"""The examples of docs/variants.md run, and show what they say."""

from __future__ import annotations

import inspect
import linecache
import re
from pathlib import Path
from typing import Any

from cute_attn.variants import builtin, positions

PAGE = Path(__file__).parents[2] / "docs" / "variants.md"


def blocks(language: str) -> list[tuple[int, str]]:
    """(line of the page, text) of its code blocks."""
    text = PAGE.read_text()
    return [
        (text[: found.start(1)].count("\n"), found[1])
        for found in re.finditer(rf"```{language}\n(.*?)```", text, re.DOTALL)
    ]


def test_the_examples_run() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    assert len(blocks("python")) >= 8
    for line, code in blocks("python"):
        # Blank lines in front: errors then name lines of the page.
        name = f"{PAGE}#{line}"
        source = "\n" * line + code
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), names)
    ((_, shown),) = blocks("text")
    assert names["capped"].show() == shown.strip()
    assert f"{PAGE}" in names["message"] and "return kv_idx <= q_idx and h < 4" in names["message"]
    for name in ("near", "packed", "flex", "every_other"):
        assert names[name].show().startswith("variant ")


def test_every_built_in_is_named() -> None:
    text = PAGE.read_text()
    built_ins = text[text.index("## Built-ins") :]
    public = {
        name
        for module in (builtin, positions)
        for name, x in vars(module).items()
        if inspect.isfunction(x) and x.__module__ == module.__name__ and name[0] != "_"
    }
    assert set(re.findall(r"`(\w+)`", built_ins)) == public
