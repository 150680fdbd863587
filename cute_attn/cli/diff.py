"""`cute-attn diff`: two kernels side by side."""

from __future__ import annotations

import difflib
import json
from dataclasses import fields
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from cute_attn.api import Kernel, KernelSpec, build
from cute_attn.api.dispatch import emit
from cute_attn.cli.show import resource_facts
from cute_attn.cli.terminal import output, table
from cute_attn.runtime import ToolchainError
from cute_attn.runtime.instruction_kinds import KINDS

Pair = tuple[Any, Any]

_RESOURCES = (
    "threads",
    "registers",
    "smem_bytes",
    "spill_store_bytes",
    "spill_load_bytes",
    "stack_bytes",
    "barriers",
    "blocks_per_sm",
    "warps_per_sm",
    "limited_by",
    "bytes_in_flight_per_sm",
    "cubin_bytes",
    "source_lines",
    "lint",
)


def run(
    first: KernelSpec, second: KernelSpec, *, source: bool, compiled: bool, as_json: bool
) -> None:
    """Prints what differs.

    Args:
        first, second: the kernels.
        source: with the sources as a unified diff.
        compiled: with what takes a compiler: resources and main loops.
    """
    facts: dict[str, Any] = {"names": (first.name, second.name), "spec": spec_pairs(first, second)}
    if compiled:
        kernels = build(first), build(second)
        facts["resources"] = _pairs(*(_resources(kernel) for kernel in kernels))
        try:
            facts["main_loop"] = _mixes(*kernels)
        except ToolchainError as error:
            facts["main_loop_problem"] = str(error)
    if source:
        facts["source"] = source_diff(first, second)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


def spec_pairs(first: KernelSpec, second: KernelSpec) -> dict[str, Pair]:
    """Fields of the specs and of their tiles that differ."""
    return _pairs(_flat(first), _flat(second))


def _flat(spec: KernelSpec) -> dict[str, Any]:
    found = {f.name: getattr(spec, f.name) for f in fields(spec) if f.name != "tile"}
    found["variant"] = spec.variant.name
    return found | {f"tile.{f.name}": getattr(spec.tile, f.name) for f in fields(spec.tile)}


def _pairs(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Pair]:
    """What differs, by name."""
    names = dict.fromkeys((*first, *second))
    both = {name: (first.get(name), second.get(name)) for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _resources(kernel: Kernel) -> dict[str, Any]:
    facts = resource_facts(kernel)
    return {name: facts[name] for name in _RESOURCES}


def _mixes(first: Kernel, second: Kernel) -> dict[str, tuple[int, int]]:
    """Instructions of a usual pass of the main loops by kind; all kinds that one of them has."""
    loops = first.machine_code.main_loop, second.machine_code.main_loop
    mixes = [loop.mix if loop else {} for loop in loops]
    found = {kind: (mixes[0].get(kind, 0), mixes[1].get(kind, 0)) for kind in KINDS}
    found = {kind: pair for kind, pair in found.items() if any(pair)}
    found["in all"] = (sum(mixes[0].values()), sum(mixes[1].values()))
    return found


def source_diff(first: KernelSpec, second: KernelSpec) -> str:
    """The sources as a unified diff; empty if they are the same."""
    a, b = (emit(spec).text.splitlines(keepends=True) for spec in (first, second))
    return "".join(difflib.unified_diff(a, b, first.name, second.name))


def _print(facts: dict[str, Any]) -> None:
    names = facts["names"]
    if names[0] == names[1]:
        typer.echo(f"the same kernel: {names[0]}")
        return
    typer.echo(f"A  {names[0]}\nB  {names[1]}")
    for title in ("spec", "resources", "main_loop"):
        pairs: dict[str, Pair] = facts.get(title, {})
        if not pairs:
            continue
        rows = table(title.replace("_", " "), "A", "B")
        for name, pair in pairs.items():
            label = name if title == "spec" else name.replace("_", " ")
            rows.add_row(label, *(escape(_text(value)) for value in pair))
        output().print(rows)
    if "main_loop_problem" in facts:
        typer.echo(facts["main_loop_problem"])
    text = facts.get("source", "")
    console = Console()
    if text and console.is_terminal:
        console.print(Syntax(text, "diff", background_color="default", word_wrap=True))
    elif text:
        typer.echo(text.rstrip("\n"))


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)
