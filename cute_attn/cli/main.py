"""The `cute-attn` application: its options, its commands.

Commands import what they need when they run, so that `cute-attn --help` and `cute-attn info` work
without a GPU and without torch.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cute_attn import __version__
from cute_attn.cli import cache, commands, doctor, info, tune

app = typer.Typer(
    name="cute-attn",
    help="Generated CuTe attention kernels: look at the installation, generate, compile, show.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors in one line rather than in a box
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cute-attn {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options that stand before the command."""


app.command("info")(info.command)
app.command("doctor")(doctor.command)
app.command("compile")(commands.compile_command)
app.command("export", epilog=commands.EXPORT_EXAMPLES)(commands.export_command)
app.command("show")(commands.show_command)
app.command("diff")(commands.diff_command)
app.command("trace")(commands.trace_command)
app.add_typer(cache.app, name="cache")
app.command("demo")(commands.demo_command)
app.command("calibrate")(commands.calibrate_command)
app.command("tune")(tune.command)
