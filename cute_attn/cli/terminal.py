"""What the commands share at the terminal: consoles, tables, progress, errors as one line.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

PLAIN_WIDTH = 10_000
"""Columns where output goes to a file or a pipe: nothing is folded, so that what is searched for,
a path for example, is there in one piece."""


def output() -> Console:
    """Standard output; no colours and no folding where it is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    return console


def table(*headers: str, title: str | None = None, left: int = 1) -> Table:
    """A table whose first `left` columns are text and the others numbers."""
    made = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title,
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for index, header in enumerate(headers):
        justify: Literal["left", "right"] = "left" if index < left else "right"
        made.add_column(header, justify=justify, overflow="fold")
    return made


@contextmanager
def progress_bar(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while something runs, if that is a terminal; else nothing.

    Yields:
        a function that takes how many are done.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    disable = not (shown and console.is_terminal and total > 0)
    # Lines printed meanwhile go above the bar, unless standard output is a file.
    redirect = sys.stdout.isatty()
    with Progress(
        *columns, console=console, transient=True, disable=disable, redirect_stdout=redirect
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def first_line(error: BaseException) -> str:
    """An error in one line: its message's first line, with its reasons if it lists some."""
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0]
    reasons = getattr(error, "reasons", None)
    return f"{line} {'; '.join(reasons)}" if reasons else line


@contextmanager
def errors_for_people() -> Iterator[None]:
    """Errors that a user can do something about end the command with one line and exit code 1.

    Everything else is a fault of this program and keeps its traceback.
    """
    from cute_attn.runtime import CacheMissError, CompileError, DriverError, ToolchainError

    try:
        yield
    except (CompileError, ToolchainError, CacheMissError, DriverError, ValueError) as error:
        # A failed compile shows the compiler's messages; they are what is asked about.
        text = str(error).strip() if isinstance(error, CompileError) else first_line(error)
        typer.echo(f"error: {text}", err=True)
        raise typer.Exit(1) from error
