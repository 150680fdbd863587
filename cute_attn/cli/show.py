"""`cute-attn show`: the source, resources, instruction mix, PTX or SASS of one kernel."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from cute_attn.api import Kernel, KernelSpec, build
from cute_attn.api.dispatch import emit
from cute_attn.api.hook_cost import hook_instructions
from cute_attn.cli.show_code import code_facts, print_mix, print_sass
from cute_attn.cli.terminal import output, table
from cute_attn.runtime import supports_arch

_GPUS = ("sm_80", "sm_86", "sm_89", "sm_90a")
_LEXERS = {"source": "cuda", "ptx": "ptx"}


def run(spec: KernelSpec, what: str, *, as_json: bool) -> None:
    """Prints one view of a kernel; of its plans: `show_plan`."""
    if what == "resources":
        _show_resources(build(spec), as_json)
    elif what == "variant":
        _show_variant(spec, as_json)
    elif what in ("mix", "loop", "sass"):
        kernel = build(spec)
        if as_json:
            facts: dict[str, Any] = {"name": spec.name, **code_facts(kernel.machine_code)}
            if what != "mix":
                facts["sass"] = kernel.sass
            typer.echo(json.dumps(facts, indent=2))
        elif what == "mix":
            print_mix(kernel)
        else:
            print_sass(kernel.machine_code, loops_alone=what == "loop")
    else:
        text = emit(spec).text if what == "source" else build(spec).ptx
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
        **occupancy_facts(kernel),
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


def occupancy_facts(kernel: Kernel) -> dict[str, Any]:
    """What an SM holds of a kernel, and the bytes of K and V on their way to it."""
    found, in_flight = kernel.occupancy, kernel.bytes_in_flight
    return {
        "blocks_per_sm": found.blocks,
        "warps_per_sm": found.warps,
        "warp_limit": found.warp_limit,
        "limited_by": list(found.limited_by),
        "bytes_in_flight_per_block": in_flight,
        "bytes_in_flight_per_sm": None if in_flight is None else in_flight * found.blocks,
    }


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
