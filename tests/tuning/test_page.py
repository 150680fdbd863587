"""docs/tuning.md: its examples run and show what they say, its commands and figures exist."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import shlex
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import cute_attn
from cute_attn.api.tune_bench import MOST_ERROR
from cute_attn.api.tune_space import CANDIDATES
from cute_attn.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tuning.md").read_text()


def test_the_examples_run() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for code in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
        assert said and printed.getvalue().splitlines() == said


def test_the_commands_are_taken() -> None:
    lines = re.findall(r"^cute-attn (tune.*?)(?:  +#.*)?$", PAGE, re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        # Help is shown once all options are known.
        result = CliRunner().invoke(app, [*shlex.split(line), "--help"])
        assert result.exit_code == 0, (line, result.output)
    assert CliRunner().invoke(app, ["tune", "--secs", "3", "--help"]).exit_code == 2


def test_what_it_names_is_there() -> None:
    for target in re.findall(r"\]\(\.\./([^)#]+)\)", PAGE):
        assert (ROOT / target).exists(), target
    options = inspect.signature(cute_attn.tune).parameters
    for name in ("device", "match", "candidates", "path", "again", "jobs"):
        assert name in options and f"`{name}`" in PAGE
    assert f"{CANDIDATES} a class" in PAGE
    assert f"{MOST_ERROR['bf16'] * 1e3:g}e-3 in bf16" in PAGE
    assert f"{MOST_ERROR['fp16'] * 1e4:g}e-4 in fp16" in PAGE
