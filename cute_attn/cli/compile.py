"""`cute-attn compile`: kernels of a preset or of given axes into the cache."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import typer

from cute_attn.cli import presets
from cute_attn.cli.compiling import Outcome, compile_all
from cute_attn.cli.presets import PRESETS, Axes
from cute_attn.cli.variants import variant_of
from cute_attn.runtime import default_arch


def axes_of(preset: str | None, given: dict[str, tuple[Any, ...]]) -> Axes:
    """A preset's axes, or the defaults, with the given ones in place of its own.

    Args:
        preset: name, or None.
        given: values by axis; an empty tuple means not given.

    Raises:
        typer.BadParameter: nothing is given, an unknown preset or variant, no architecture.
    """
    given = {name: values for name, values in given.items() if values}
    if preset is None and not given:
        raise typer.BadParameter(
            f"say what to compile: --preset {'|'.join(PRESETS)}, or axes such as --head-dim 128"
        )
    if preset is not None and preset not in PRESETS:
        raise typer.BadParameter(
            f"preset is {preset!r}; it takes {', '.join(PRESETS)}", param_hint="--preset"
        )
    if preset is None and "arch" not in given:
        given["arch"] = (arch_here(),)
    axes = replace(PRESETS[preset] if preset else Axes(), **given)
    check_axes(axes)
    return axes


def arch_here() -> str:
    """The architecture of the GPU of this machine, or CUTE_ATTN_ARCH.

    Raises:
        typer.BadParameter: there is neither.
    """
    arch = default_arch()
    if arch is None:
        raise typer.BadParameter("there is no GPU here: say which architecture, e.g. --arch sm_90a")
    return arch


def check_axes(axes: Axes) -> None:
    """Raises typer.BadParameter for values that no kernel can have."""
    for name in axes.variant:
        try:
            variant_of(name)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--variant") from error


def run(axes: Axes, *, jobs: int | None, as_json: bool) -> bool:
    """Compiles everything and prints what came of it.

    Returns:
        whether all of it compiled.
    """
    kernels, further = presets.generate(axes), presets.other_toolchains(axes)
    if not as_json:
        typer.echo(f"{len(kernels) + len(further)} kernels for {', '.join(axes.arch)}")

    def each(outcome: Outcome) -> None:
        if not as_json:
            typer.echo(outcome.line)
            for problem in outcome.problems:
                typer.echo(f"{'':9}warning: {problem}")

    outcomes, seconds = compile_all(kernels, further=further, jobs=jobs, each=each)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if as_json:
        facts = {"seconds": round(seconds, 2), "kernels": [o.to_json() for o in outcomes]}
        typer.echo(json.dumps(facts, indent=2))
    else:
        for outcome in failed:
            typer.echo(outcome.line)
        typer.echo(summary(outcomes, seconds))
    return not failed


def summary(outcomes: list[Outcome], seconds: float) -> str:
    """How many were compiled, found in the cache and failed."""
    count = Counter(outcome.status for outcome in outcomes)
    return (
        f"{count['compiled']} compiled, {count['cached']} found in the cache,"
        f" {count['failed']} failed: {seconds:.1f} s"
    )
