"""`cute-attn show --what mix|loop|sass`: machine code with its main loops marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from cute_attn.api import Kernel
from cute_attn.api.machine_code import MachineCode, MainLoop
from cute_attn.cli.terminal import output, table
from cute_attn.runtime.instruction_kinds import KINDS, mix

_NO_LOOP = "no main loop: nothing here has products and exponentials in one loop"


def code_facts(code: MachineCode) -> dict[str, Any]:
    """Counts of a kernel and of its main loops, as JSON values."""
    return {
        "instructions": len(code.instructions),
        "mix": mix(code.instructions),
        "main_loops": [
            {
                "main": found is code.main_loop,
                "address": found.loop.first.address,
                "instructions": len(found.loop.instructions),
                "usual_pass": len(found.usual),
                "mix": found.mix,
                "opcodes": dict(found.opcodes.most_common()),
                "local_memory": found.spills,
            }
            for found in code.main_loops
        ],
    }


def print_mix(kernel: Kernel) -> None:
    """A row per kind of instruction: a usual pass of each main loop, and the whole kernel."""
    code = kernel.machine_code
    loops = _numbered(code)
    made = table("instructions", *(title for title, _ in loops), "kernel")
    whole = mix(code.instructions)
    columns = [found.mix for _, found in loops]
    for kind in KINDS:
        if whole.get(kind):
            made.add_row(kind, *(str(column.get(kind, 0)) for column in columns), str(whole[kind]))
    passes = [str(len(found.usual)) for _, found in loops]
    made.add_row("in all", *passes, str(len(code.instructions)))
    output().print(made)
    typer.echo(kernel.name)
    if not loops:
        typer.echo(_NO_LOOP)
    for title, found in loops:
        usual = ", ".join(f"{number} {name}" for name, number in found.opcodes.most_common(8))
        spills = "; local memory is touched" if found.spills else ""
        typer.echo(f"{title}: a usual pass issues {usual}{spills}")


def print_sass(code: MachineCode, *, loops_alone: bool) -> None:
    """The disassembly with a column in front: loop number and "|" for what a usual pass issues, ":"
    for the rest of the loop.

    Args:
        code: of a kernel.
        loops_alone: leave out what is in no main loop.
    """
    console = Console(highlight=False)
    if loops_alone and not code.main_loops:
        typer.echo(_NO_LOOP)
        return
    for mark, line in _marked(code):
        if loops_alone and not mark:
            continue
        text = f"{mark:3}{line}" if code.main_loops else line
        if mark and console.is_terminal:
            style = {"|": "bold green", ":": "green"}.get(mark[-1], "bold yellow")
            console.print(Text(text, style=style), soft_wrap=True)
        else:
            typer.echo(text)


def _numbered(code: MachineCode) -> list[tuple[str, MainLoop]]:
    """Each main loop with its name in words."""
    several = len(code.main_loops) > 1
    return [
        (
            (f"{'main loop' if found is code.main_loop else 'loop'} {number}")
            if several
            else "main loop",
            found,
        )
        for number, found in enumerate(code.main_loops, 1)
    ]


def _marked(code: MachineCode) -> Iterator[tuple[str, str]]:
    """(mark, line) of all lines, and of one more before each loop that says what it is."""
    marks: dict[int, str] = {}
    titles: dict[int, str] = {}
    for number, (title, found) in enumerate(_numbered(code), 1):
        marks |= {one.line: f"{number}:" for one in found.loop.instructions}
        marks |= {one.line: f"{number}|" for one in found.usual}
        counts = ", ".join(f"{count} {kind}" for kind, count in found.mix.items())
        titles[found.loop.first.line] = (
            f"======== {title}: {len(found.loop.instructions)} instructions,"
            f" {len(found.usual)} in a usual pass: {counts}"
        )
    for number, line in enumerate(code.sass.splitlines()):
        if number in titles:
            yield "==", titles[number]
        yield marks.get(number, ""), line
