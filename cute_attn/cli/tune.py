"""`cute-attn tune`: finds faster kernels for this GPU, and stores them where plans look."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cute_attn.cli.choices import Arch
from cute_attn.cli.terminal import errors_for_people, progress_bar, table

_JSON = typer.Option("--json", help="Print JSON.")


def command(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="Time it may take; the next run goes on. Default: all it takes."),
    ] = None,
    match: Annotated[
        str, typer.Option(help="Only steps whose name contains this; --list shows them.")
    ] = "",
    candidates: Annotated[
        int | None,
        typer.Option(min=1, help="Kernels of a class of steps that are tried. Default: 16."),
    ] = None,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="Fill the cache, measure nothing; needs --arch.")
    ] = False,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Measure what the cache holds, compile nothing.")
    ] = False,
    arch: Annotated[
        Arch | None, typer.Option(help="With --compile-only: of the GPU that will be tuned.")
    ] = None,
    sms: Annotated[
        int | None,
        typer.Option(min=1, help="With --compile-only: its SMs; default: an H200's, A100's, ..."),
    ] = None,
    device: Annotated[
        int | None, typer.Option(min=0, help="Which GPU; default: the current one.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Database to add to; default: the user's, which planning looks into."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure also what the database has already.")
    ] = False,
    list_steps: Annotated[
        bool, typer.Option("--list", help="Print the steps that are tuned, and no more.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Then write heat maps of the database, and why winners won, to this .html (needs"
            " matplotlib)."
        ),
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option(help="With --report: report this database, measure nothing; needs no GPU."),
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1)] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Find faster kernels than those of the tile tables for this GPU; planning then takes them.

    Every kernel is one that can run by the equations of shared memory and registers. A winner must
    beat the table's by more than the spread of the measurement, with the same output. After an
    interrupt the next run goes on.

    \b
    Examples:
      cute-attn tune --seconds 300
      cute-attn tune --match decode --again
      cute-attn tune --compile-only --arch sm_90a     # on a machine without a GPU
      cute-attn tune --no-compile                     # with its cache, on the GPU
      cute-attn tune --report landscape.html
      cute-attn tune --report landscape.html --database nvidia-h200-132-sms.json
    """
    if compile_only and no_compile:
        raise typer.BadParameter("it goes without --no-compile", param_hint="--compile-only")
    if (arch or sms) and not compile_only:
        raise typer.BadParameter("it takes --compile-only", param_hint="--arch, --sms")
    if database is not None and report is None:
        raise typer.BadParameter("it takes --report", param_hint="--database")
    if report is not None and (compile_only or list_steps):
        raise typer.BadParameter("nothing is measured", param_hint="--report")
    if no_compile:
        os.environ["CUTE_ATTN_NO_COMPILE"] = "1"
    with errors_for_people():
        if report is not None:
            _check_report(report)
        if list_steps:
            _list(match)
        elif database is not None and report is not None:
            _report(database, report)
        elif compile_only:
            _compile(match, arch.value if arch else None, sms, candidates, jobs, as_json=as_json)
        else:
            _measure(
                match, seconds, candidates, device, out, jobs, report, again=again, as_json=as_json
            )


def _list(match: str) -> None:
    from cute_attn.tuning import default_steps

    for step in default_steps():
        if match in step.name:
            typer.echo(step.name)


def _check_report(path: Path) -> None:
    """Before anything is measured."""
    from cute_attn.api.tune_report import check_report

    with _one_line():
        check_report(path)


def _report(database: Path, path: Path) -> None:
    from cute_attn.api.tune_report import write_report
    from cute_attn.tuning.files import read

    with _one_line():
        typer.echo(f"report: {write_report(read(database), path)}")


@contextmanager
def _one_line() -> Iterator[None]:
    """What is wrong with a report's path is said in one line."""
    try:
        yield
    except (ModuleNotFoundError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="--report") from error


class _CompileBar:
    """A bar with the time that is left, as a compile progress."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = None
        self._advance: Any = None

    def __enter__(self) -> _CompileBar:
        return self

    def __call__(self, done: int, total: int, result: object) -> None:
        if self._bar is None:
            self._bar = progress_bar("kernels", total, shown=self._shown)
            self._advance = self._bar.__enter__()
        self._advance(done)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)


def _compile(
    match: str,
    arch: str | None,
    sms: int | None,
    candidates: int | None,
    jobs: int | None,
    *,
    as_json: bool,
) -> None:
    from cute_attn.api.tuner import compile_candidates
    from cute_attn.cli.compile import arch_here

    with _CompileBar(not as_json) as bar:
        found = compile_candidates(
            arch or arch_here(),
            sms=sms,
            match=match,
            candidates=candidates,
            jobs=jobs,
            progress=bar,
        )
    if as_json:
        typer.echo(json.dumps(_compiled_facts(found), indent=2))
    else:
        typer.echo(_compiled_line(found))


def _compiled_facts(found: Any) -> dict[str, Any]:
    return {
        "steps": len(found.contests),
        "configurations": found.configurations,
        "unfit": found.unfit,
        "missing": found.missing,
        "failed": list(found.failed),
    }


def _compiled_line(found: Any) -> str:
    dropped = [
        f"{count} {what}"
        for count, what in (
            (found.unfit, "spill"),
            (found.missing, "are in no cache"),
            (len(found.failed), "do not compile"),
        )
        if count
    ]
    rest = f", dropped: {', '.join(dropped)}" if dropped else ""
    return f"{found.configurations} kernels of {len(found.contests)} steps{rest}"


def _measure(
    match: str,
    seconds: float | None,
    candidates: int | None,
    device: int | None,
    out: Path | None,
    jobs: int | None,
    report: Path | None,
    *,
    again: bool,
    as_json: bool,
) -> None:
    from cute_attn.api.tuner import tune

    def progress(done: int, total: int, name: str, entry: Any) -> None:
        typer.echo(f"{done}/{total}  {name}: {_outcome(entry)}", err=True)

    try:
        with _CompileBar(not as_json) as bar:
            found = tune(
                device=device,
                seconds=seconds,
                match=match,
                candidates=candidates,
                path=out,
                again=again,
                jobs=jobs,
                compile_progress=bar,
                progress=progress,
            )
    except KeyboardInterrupt:
        typer.echo("interrupted: what was measured is stored, the next run goes on", err=True)
        raise typer.Exit(130) from None
    if report is not None and found.path.exists():
        with _one_line():
            found.write_report(report)
    if as_json:
        facts = {
            "file": str(found.path),
            "entries": [entry.to_json() for entry in found.entries],
            "known": found.known,
            "left": found.left,
            "too_large": found.too_large,
            "compiled": _compiled_facts(found.compiled),
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    _print(found)
    if report is not None:
        typer.echo(f"report: {report}")


def _outcome(entry: Any) -> str:
    if entry is None:
        return "not measured"
    default = entry.measured[0]
    if entry.taken is None:
        return f"{default.us:.1f} us, the default stays"
    return f"{default.us:.1f} us, {entry.gain:.3f} x with {entry.taken.candidate.label}"


def _print(found: Any) -> None:
    from cute_attn.cli.terminal import output

    rows = table("step", "default us", "tuned us", "gain", "spread us", "kernel")
    for entry in found.entries:
        if entry.taken is not None:
            default, taken = entry.measured[0], entry.taken
            rows.add_row(
                entry.step,
                f"{default.us:.1f}",
                f"{taken.us:.1f}",
                f"{entry.gain:.3f}",
                f"{default.spread_us:.2f} + {taken.spread_us:.2f}",
                taken.candidate.label,
            )
    output().print(rows)
    won = sum(entry.winner is not None for entry in found.entries)
    words = [f"{won} of {len(found.entries)} steps take another kernel"]
    words += [f"{found.known} were known"] if found.known else []
    words += [f"{found.left} left for the next run"] if found.left else []
    words += [f"{found.too_large} too large for this GPU"] if found.too_large else []
    typer.echo("; ".join(words))
    typer.echo(_compiled_line(found.compiled))
    typer.echo(f"database: {found.path}")
