"""`cute-attn show`: the source, resources, PTX or SASS of one kernel."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from cute_attn.api import Kernel, KernelSpec, Problem, build, choose
from cute_attn.api.dispatch import emit, with_tile
from cute_attn.api.hook_cost import hook_instructions
from cute_attn.cli.presets import variant_of
from cute_attn.cli.terminal import output, table
from cute_attn.runtime import supports_arch

_GPUS = ("sm_80", "sm_86", "sm_89", "sm_90a")
_LEXERS = {"source": "cuda", "ptx": "ptx", "sass": "text"}


def problem_of(
    *,
    arch: str,
    dtype: str,
    head_dim: int,
    head_dim_vo: int | None,
    group: int,
    page_size: int,
    variant: str,
) -> Problem:
    """What the kernel is chosen by.

    Raises:
        typer.BadParameter: no such variant.
    """
    try:
        known = variant_of(variant)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--variant") from error
    return Problem(arch, dtype, head_dim, head_dim_vo or head_dim, group, known, page_size or None)


def spec_of(problem: Problem, *, schedule: str | None, decode: bool, tile: list[str]) -> KernelSpec:
    """The kernel that the options describe.

    Raises:
        typer.BadParameter: an option is malformed.
        UnsupportedSpecError: there is no such kernel.
    """
    spec = choose(problem, rows=problem.group if decode else None, schedule=schedule)
    overrides = dict(_override(text, spec) for text in tile)
    return with_tile(spec, **overrides) if overrides else spec


def _override(text: str, spec: KernelSpec) -> tuple[str, int]:
    """ "kv=64" as ("kv", 64)."""
    name, _, value = text.partition("=")
    fields = asdict(spec.tile)
    if name not in fields or not value.isdecimal():
        raise typer.BadParameter(
            f"{text!r} is no tile field: it takes NAME=NUMBER with {', '.join(fields)}",
            param_hint="--tile",
        )
    return name, type(fields[name])(int(value))  # a switch stays a bool


def run(spec: KernelSpec, what: str, *, as_json: bool) -> None:
    """Prints one view of a kernel; of its plans: `show_plan`."""
    if what == "resources":
        _show_resources(build(spec), as_json)
    elif what == "variant":
        _show_variant(spec, as_json)
    else:
        text = emit(spec).text if what == "source" else str(getattr(build(spec), what))
        if as_json:
            typer.echo(json.dumps({"name": spec.name, what: text}))
        else:
            _print_code(text, _LEXERS[what])


def _print_code(text: str, lexer: str) -> None:
    """Coloured on a terminal, byte for byte elsewhere."""
    console = Console()
    if console.is_terminal:
        console.print(Syntax(text, lexer, background_color="default", word_wrap=True))
    else:
        typer.echo(text.rstrip("\n"))


def resource_facts(kernel: Kernel) -> dict[str, Any]:
    """What a kernel takes, as JSON values."""
    generated, compiled, spec = kernel.generated, kernel.compiled, kernel.spec
    assert spec is not None
    return {
        "name": kernel.name,
        "arch": spec.arch,
        "runs_on": [gpu for gpu in _GPUS if not supports_arch(spec.arch, gpu)],
        "schedule": spec.schedule,
        "loader": spec.loader,
        "dtype": spec.dtype,
        "head_dim": spec.head_dim_qk,
        "head_dim_vo": spec.head_dim_vo,
        "group": spec.group,
        "variant": spec.variant.name,
        "tile": {name: value for name, value in asdict(spec.tile).items() if value},
        "threads": generated.threads,
        "smem_bytes": generated.smem_bytes + kernel.resources.static_smem_bytes,
        "params_bytes": generated.params.size,
        "source_lines": generated.text.count("\n"),
        "cubin_bytes": len(compiled.cubin),
        "compile_seconds": round(compiled.compile_seconds, 3),
        "from_cache": compiled.from_cache,
        "toolchain": compiled.toolchain.name,
        **{
            name: value
            for name, value in kernel.resources.to_json().items()
            if name != "static_smem_bytes"
        },
        "lint": kernel.lint(),
    }


def _show_variant(spec: KernelSpec, as_json: bool) -> None:
    counted = hook_instructions(spec.variant, spec.arch)
    if as_json:
        facts = {"name": spec.variant.name, "shown": spec.variant.show(), "instructions": counted}
        typer.echo(json.dumps(facts, indent=2))
        return
    lines = [spec.variant.show()]
    for role, counts in counted.items():
        words = ", ".join(f"{number:g} {kind}" for kind, number in counts.items() if number)
        lines.append(f"\n{role}, in machine code of {spec.arch}: {words or 'none'}")
    typer.echo("".join(lines))


def _show_resources(kernel: Kernel, as_json: bool) -> None:
    facts = resource_facts(kernel)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    made = table("resource", "value", left=2)
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {number}" for key, number in value.items())
        elif isinstance(value, list | tuple):
            value = "; ".join(map(str, value)) or "none"
        made.add_row(name.replace("_", " "), escape(str(value)))
    output().print(made)
