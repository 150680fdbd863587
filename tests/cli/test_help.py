"""`--help` of every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

from cute_attn.cli import app

Invoke = Callable[..., Any]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands, those of groups by all their names."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path
    else:
        for name, each in inner.items():
            yield from commands(each, (*path, name))


ALL = list(commands(typer.main.get_command(app)))


def test_there_are_commands() -> None:
    assert {("show",), ("doctor",), ("cache", "prune")} <= set(ALL)


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_it_has_examples_and_they_are_commands(command: tuple[str, ...], invoke: Invoke) -> None:
    text = invoke(*command, "--help").output
    examples = text.split("Examples:")[1].split("Options:")[0].split("Arguments:")[0]
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines and all(line.startswith(f"cute-attn {' '.join(command)}") for line in lines)
    for line in lines:
        options = [word for word in line.split("#")[0].split() if word.startswith("--")]
        assert all(option in text for option in options), line


def test_an_unknown_command_is_one_line(invoke: Invoke) -> None:
    result = invoke("fly")
    assert result.exit_code == 2
    assert sum(line.startswith("Error: ") for line in result.output.splitlines()) == 1
