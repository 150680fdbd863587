"""Options of the commands `compile`, `export`, `show`, `diff`, `trace`, `demo` and `calibrate`.

Bodies import what they need: `cute-attn --help` and `cute-attn info` start without torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from cute_attn.cli.choices import Arch, Device, Dtype, Schedule, View
from cute_attn.cli.terminal import errors_for_people

_VARIANT = (
    "full, causal, sliding_window, soft_cap, 'alibi(32)', rope, ... or FILE.py:NAME; '+' combines:"
    " causal+sliding_window."
)
_PAGES = "Tokens per page; 0 = ragged KV."
_GROUP = "Query heads per KV head."

_JSON = typer.Option("--json", help="Print JSON.")

# What to compile or export: lists of each, all combinations.
Preset = Annotated[
    str | None, typer.Option(help="demo, core or llama; further options replace its values.")
]
Archs = Annotated[
    list[Arch] | None,
    typer.Option(help="Architecture of the GPU to serve. All lists: repeat the option."),
]
Dtypes = Annotated[list[Dtype] | None, typer.Option()]
HeadDims = Annotated[list[int] | None, typer.Option(min=1)]
Groups = Annotated[list[int] | None, typer.Option(min=1, help=_GROUP)]
PageSizes = Annotated[list[int] | None, typer.Option(min=0, help=_PAGES)]
Variants = Annotated[list[str] | None, typer.Option(help=_VARIANT)]
Schedules = Annotated[
    list[Schedule] | None,
    typer.Option(help="Kernel family; default: those that a batch on that GPU takes."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Compile processes.")]


def _plain(values: Sequence[Any] | None) -> tuple[Any, ...]:
    """Values of a repeated option; words as plain strings."""
    return tuple(value.value if isinstance(value, Enum) else value for value in values or ())


def compile_command(
    preset: Preset = None,
    arch: Archs = None,
    dtype: Dtypes = None,
    head_dim: HeadDims = None,
    group: Groups = None,
    page_size: PageSizes = None,
    variant: Variants = None,
    schedule: Schedules = None,
    jobs: Jobs = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Compile kernels into the cache: attention, the merge that follows it, cache append.

    \b
    Examples:
      cute-attn compile --preset llama --arch sm_90a
      cute-attn compile --arch sm_80 --head-dim 128 --page-size 16 --variant causal --variant full
    """
    from cute_attn.cli import compile

    given = {
        "arch": arch, "dtype": dtype, "head_dim": head_dim, "group": group,
        "page_size": page_size, "variant": variant, "schedule": schedule,
    }  # fmt: skip
    with errors_for_people():
        axes = compile.axes_of(preset, {name: _plain(values) for name, values in given.items()})
        succeeded = compile.run(axes, jobs=jobs, as_json=as_json)
    raise typer.Exit(0 if succeeded else 1)


EXPORT_EXAMPLES = """Examples:

cute-attn export llama.bundle --preset llama --arch sm_90a

cute-attn export small.bundle --arch sm_80 --arch sm_90a --head-dim 64

cute-attn export --schema > manifest.schema.json
"""


def export_command(
    path: Annotated[
        Path | None, typer.Argument(help="Folder to be made, with manifest and cubins.")
    ] = None,
    preset: Preset = None,
    arch: Archs = None,
    dtype: Dtypes = None,
    head_dim: HeadDims = None,
    group: Groups = None,
    page_size: PageSizes = None,
    variant: Variants = None,
    schedule: Schedules = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="Constants for planning, of `cute-attn calibrate`; default: an H200's."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a bundle that is there already.")
    ] = False,
    print_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of manifests, and no more.")
    ] = False,
    jobs: Jobs = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Write a bundle: cubins, manifest, C header and planner, to run kernels without Python."""
    from cute_attn.cli import compile, export

    if print_schema:
        export.print_schema()
        return
    if path is None:
        raise typer.BadParameter("say where: cute-attn export FOLDER", param_hint="PATH")
    given = {
        "arch": arch, "dtype": dtype, "head_dim": head_dim, "group": group,
        "page_size": page_size, "variant": variant, "schedule": schedule,
    }  # fmt: skip
    with errors_for_people():
        axes = compile.axes_of(preset, {name: _plain(values) for name, values in given.items()})
        export.run(path, axes, costs=costs, jobs=jobs, replace=replace, as_json=as_json)


def show_command(
    arch: Annotated[
        Arch | None,
        typer.Option(help="Of the GPU; default: the one here."),
    ] = None,
    dtype: Annotated[Dtype, typer.Option()] = Dtype.BF16,
    head_dim: Annotated[int, typer.Option(min=1)] = 128,
    head_dim_vo: Annotated[
        int | None, typer.Option(min=1, help="Of values and output; default: head_dim.")
    ] = None,
    group: Annotated[int, typer.Option(min=1, help=_GROUP)] = 4,
    page_size: Annotated[int, typer.Option(min=0, help=_PAGES)] = 0,
    variant: Annotated[str, typer.Option(help=_VARIANT)] = "causal",
    schedule: Annotated[
        Schedule | None,
        typer.Option(
            help="Kernel family; default: the one that prefill (or --decode) takes.",
        ),
    ] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="The kernel of batches of decodes alone.")
    ] = False,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Query rows (tokens x group) of the longest request."),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="The kernel of batches whose rows see many keys.")
    ] = False,
    per_head: Annotated[
        bool, typer.Option("--per-head", help="A page table for each KV head of a request.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="The kernel that keeps time of its items.")
    ] = False,
    tile: Annotated[
        list[str] | None,
        typer.Option(help="Override a field of the tile, e.g. kv=64; may be repeated."),
    ] = None,
    what: Annotated[
        View,
        typer.Option(
            help="source; resources (with occupancy and bytes in flight); mix: instructions of the"
            " main loops by kind; loop: their machine code; sass: all of it, main loops marked;"
            " ptx; plan: of a real step."
        ),
    ] = View.SOURCE,
    step: Annotated[
        str, typer.Option(help="With --what plan: the real step that is planned.")
    ] = "azure-code-300",
    blocks: Annotated[
        int | None, typer.Option(min=1, help="With --what plan: thread blocks of the grid.")
    ] = None,
    beside: Annotated[
        bool,
        typer.Option(
            "--beside",
            help="With --what plan: the kernels that a batch takes for the step, on Hopper maybe"
            " two: decode beside prefill.",
        ),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="With --what plan: what every thread block does.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="With --what plan: write the timeline to a .png, .svg, ... (needs matplotlib)."
        ),
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Show one kernel: its source, resources, machine code, the plan of a real step for it, or what
    became of its variant.

    \b
    Examples:
      cute-attn show --arch sm_90a --page-size 16
      cute-attn show --arch sm_80 --variant 'causal+alibi(32)' --what resources
      cute-attn show --arch sm_90a --variant causal+rope --what mix
      cute-attn show --arch sm_90a --decode --what loop
      cute-attn show --arch sm_90a --what plan --step mooncake-2600 --beside --explain
    """
    from cute_attn.cli import show, show_plan
    from cute_attn.cli.spec_options import SpecOptions

    for name, given in (("beside", beside), ("explain", explain), ("picture", picture)):
        if given and what is not View.PLAN:
            raise typer.BadParameter("it takes --what plan", param_hint=f"--{name}")
    if decode and rows:
        raise typer.BadParameter("it goes without --decode", param_hint="--rows")
    if per_head and what is View.PLAN:
        raise typer.BadParameter("steps of --what plan have one table", param_hint="--per-head")
    if beside and (schedule or decode or tile or blocks):
        raise typer.BadParameter(
            "kernels and grids are those of a batch; it takes none of --schedule, --decode, --tile"
            " and --blocks",
            param_hint="--beside",
        )
    with errors_for_people():
        options = SpecOptions(
            arch=arch.value if arch else None,
            dtype=dtype.value,
            head_dim=head_dim,
            head_dim_vo=head_dim_vo,
            group=group,
            page_size=page_size,
            variant=variant,
            schedule=schedule.value if schedule else None,
            decode=decode,
            rows=rows,
            long=long,
            per_head=per_head,
            trace=trace,
            tile=tuple(tile or ()),
        )
        spec = options.spec()
        if what is View.PLAN:
            view = show_plan.PlanView(step, blocks, beside, explain, picture)
            show_plan.run(spec, options.problem(), view, as_json=as_json)
        else:
            show.run(spec, what.value, as_json=as_json)


def diff_command(
    first: Annotated[
        str, typer.Argument(metavar="SPEC_A", help="'arch=sm_90a page-size=16 variant=causal'")
    ],
    second: Annotated[
        str, typer.Argument(metavar="SPEC_B", help="What differs from SPEC_A: 'variant=soft_cap'")
    ],
    source: Annotated[
        bool, typer.Option("--source/--no-source", help="Print the source as a unified diff.")
    ] = True,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile", help="Compile both: resources and main loops side by side."
        ),
    ] = True,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Hold two kernels side by side: spec, tile, resources, main loops, source.

    A spec is words apart by blanks, named as the options of `show`: arch, dtype, head-dim,
    head-dim-vo, group, page-size, variant, schedule, decode, rows, long, per-head, trace,
    tile.FIELD.

    \b
    Examples:
      cute-attn diff 'arch=sm_90a page-size=16' 'variant=soft_cap'
      cute-attn diff 'arch=sm_90a' 'tile.kv=96 tile.stages=2' --no-source
      cute-attn diff 'arch=sm_90a decode' 'head-dim=64' --json
    """
    from cute_attn.cli import diff
    from cute_attn.cli.spec_options import SpecOptions, with_words

    with errors_for_people():
        options = with_words(SpecOptions(), first, "SPEC_A")
        specs = options.spec(), with_words(options, second, "SPEC_B").spec()
        diff.run(*specs, source=source, compiled=compiled, as_json=as_json)


def trace_command(
    step: Annotated[str, typer.Option(help="The real step that runs.")] = "mooncake-2600",
    variant: Annotated[str, typer.Option(help=_VARIANT)] = "causal",
    out: Annotated[
        Path, typer.Option(help="File to write; https://ui.perfetto.dev opens it.")
    ] = Path("trace.json"),
    predicted: Annotated[
        bool,
        typer.Option("--predicted", help="What the simulator predicts; needs no GPU."),
    ] = False,
    arch: Annotated[
        Arch | None, typer.Option(help="With --predicted: of the GPU; default: the one here.")
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Run a real step with kernels that keep time: which thread block did what, and when.

    The file holds what was measured and, below it, what was predicted: items with their waits for
    keys, products, writes and merges. 32/8 heads, head_dim 128, pages of 16 tokens, bf16.

    \b
    Examples:
      cute-attn trace --step azure-code-300 --out step.json
      cute-attn trace --predicted --arch sm_90a
    """
    from cute_attn.cli import trace

    if arch and not predicted:
        raise typer.BadParameter("it takes --predicted", param_hint="--arch")
    with errors_for_people():
        if predicted:
            trace.predict(step, variant, out, arch.value if arch else None, as_json=as_json)
        else:
            trace.measure(step, variant, out, as_json=as_json)


def demo_command(
    steps: Annotated[int, typer.Option(min=1, max=16, help="How many of the sixteen steps.")] = 4,
    device: Annotated[
        Device | None,
        typer.Option(help="Default: cuda where there is a GPU."),
    ] = None,
    jobs: Jobs = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Attention of real serving steps: generate, compile, plan, run, check against a dense softmax.

    Without a GPU the kernels are compiled and the steps, scaled down, run on the CPU executor.

    \b
    Examples:
      cute-attn demo --steps 16
      cute-attn demo --device cpu --json
    """
    # On few, busy cores the threads of a BLAS spin against each other: the executor's small
    # products take ten times as long. Read when NumPy is loaded.
    if (os.cpu_count() or 1) <= 4:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from cute_attn.cli import demo

    with errors_for_people():
        correct = demo.run(
            steps, device=device.value if device else None, jobs=jobs, as_json=as_json
        )
    raise typer.Exit(0 if correct else 1)


def calibrate_command(
    device: Annotated[
        int | None, typer.Option(min=0, help="Which GPU; default: the current one.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and shorter measurements, of head_dim 128 alone.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure and print; write nothing.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; default: the one in the user's configuration directory that"
            " planning looks for on this kind of GPU."
        ),
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Measure this GPU, and write the constants that planning then uses on it.

    \b
    Examples:
      cute-attn calibrate
      cute-attn calibrate --quick --dry-run
    """
    from cute_attn.cli import calibrate

    with errors_for_people():
        calibrate.run(device=device, quick=quick, dry_run=dry_run, path=out, as_json=as_json)
