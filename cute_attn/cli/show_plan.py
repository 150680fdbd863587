"""`cute-attn show --what plan`: the plan of a real step in numbers, explained, and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from cute_attn.api import KernelSpec, Problem
from cute_attn.api.launches import explained_launch, parts_of
from cute_attn.cli.plan_facts import GPU_SMS, NUM_KV_HEADS, facts_of, part_of
from cute_attn.cli.terminal import output, table
from cute_attn.scheduler import Explanation, explain
from cute_attn.workloads import Step, load_steps


@dataclass(frozen=True)
class PlanView:
    """What is planned, and what is shown of it.

    Attributes:
        step: name of the real step.
        blocks: thread blocks of the grid; None: all that a GPU has room for.
        beside: as a batch does it: other kernels for other lengths, two launches where that pays.
        explain: print what every thread block does.
        picture: file for the timeline, or None.
    """

    step: str
    blocks: int | None = None
    beside: bool = False
    explain: bool = False
    picture: Path | None = None


def run(spec: KernelSpec, problem: Problem, view: PlanView, *, as_json: bool) -> None:
    """Plans and prints."""
    step = step_of(view.step)
    gpu, sms = GPU_SMS[spec.arch]
    if view.beside:
        parts = parts_of(step.q_lens, step.kv_lens, problem, num_kv_heads=NUM_KV_HEADS, num_sms=sms)
    else:
        num_blocks = view.blocks or sms * spec.tile.blocks_per_sm
        parts = [part_of(step, spec, num_blocks)]
    launches, facts = [], []
    for part, (found, plan) in zip(parts, facts_of(parts), strict=True):
        launches.append(explained_launch(plan, part.spec))
        facts.append({"kernel": part.spec.name, **found.to_json()})
    explanation = explain(*launches) if view.explain or view.picture else None
    if explanation and view.picture:
        _draw(explanation, view.picture)
    about = {"step": view.step, "kv_heads": NUM_KV_HEADS}
    if as_json:
        shown: dict[str, Any] = about | ({"launches": facts} if view.beside else facts[0])
        if explanation and view.explain:
            shown["items"] = list(explanation.rows())
        typer.echo(json.dumps(shown, indent=2))
        return
    grid = "thread blocks, as given" if view.blocks else f"thread blocks, of one {gpu}"
    _print_facts(about, facts, grid)
    if view.explain:
        typer.echo(str(explanation))
    if view.picture:
        typer.echo(f"timeline: {view.picture}")


def step_of(name: str) -> Step:
    """The real step of a name.

    Raises:
        typer.BadParameter: there is none.
    """
    steps = {step.name: step for step in load_steps()}
    if name not in steps:
        raise typer.BadParameter(
            f"step is {name!r}; it takes {', '.join(steps)}", param_hint="--step"
        )
    return steps[name]


def _draw(explanation: Explanation, path: Path) -> None:
    try:
        explanation.plot(path)
    except (ModuleNotFoundError, OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--picture") from error


def _print_facts(about: dict[str, Any], facts: Sequence[dict[str, Any]], grid: str) -> None:
    """A line per fact, a column per launch."""
    made = table("plan", *("value" if len(facts) == 1 else "launch" for _ in facts), left=2)
    for name in (*about, *facts[0]):
        values = [about[name]] if name in about else [of_launch[name] for of_launch in facts]
        if any(value is not None for value in values):
            label = grid if name == "thread_blocks" else name.replace("_", " ")
            made.add_row(label, *(escape(str(value)) for value in values))
    output().print(made)
