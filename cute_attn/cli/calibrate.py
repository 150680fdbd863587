"""`cute-attn calibrate`: measures this GPU and writes its constants for planning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from cute_attn.api.calibrate import Calibration, calibrate
from cute_attn.cli.terminal import output, table
from cute_attn.runtime import cost_files
from cute_attn.scheduler import KernelTimes
from cute_attn.scheduler.constants_file import constants_text

_SHOWN = ("start_us", "item_us", "masked_us", "efficiency", "read_share", "sm_share")


def run(
    *, device: int | None, quick: bool, dry_run: bool, path: Path | None, as_json: bool
) -> None:
    """Measures, fits, writes and prints.

    Args:
        device: ordinal; None: the current GPU.
        quick: fewer cases.
        dry_run: write nothing.
        path: file to write; None: the user's for this kind of GPU.
    """
    found = calibrate(device, quick=quick, progress=_show_progress)
    gpu = found.constants.gpu
    target = path or cost_files.default_path(gpu.name, gpu.sms)
    text = constants_text(found.constants, found.made)
    if not dry_run:
        try:
            cost_files.write(target, text)
        except OSError as error:
            raise ValueError(f"{target}: cannot be written: {error}") from error
    if as_json:
        cases = [
            {"name": name, "us": round(us, 2), "predicted_us": round(predicted, 2)}
            for name, us, predicted in _cases(found)
        ]
        facts: dict[str, Any] = {
            "file": None if dry_run else str(target),
            "skipped": list(found.skipped),
            "cases": cases,
            **json.loads(text),
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    _print(found)
    typer.echo(f"{'not written (--dry-run)' if dry_run else 'written'}: {target}")


def _show_progress(done: int, total: int, name: str, us: float) -> None:
    typer.echo(f"{done}/{total}  {name}: {us:.1f} us", err=True)


def _cases(found: Calibration) -> list[tuple[str, float, float]]:
    """(name, measured, predicted) of every case."""
    return [(m.name, m.us, m.predicted_us(found.constants)) for m in found.measurements]


def _print(found: Calibration) -> None:
    gpu = found.constants.gpu
    cases = table("case", "measured us", "predicted us", "ratio")
    for name, us, predicted in _cases(found):
        cases.add_row(escape(name), f"{us:.1f}", f"{predicted:.1f}", f"{predicted / us:.3f}")
    output().print(cases)
    for name in found.skipped:
        typer.echo(f"skipped, too little memory: {name}")
    rows = table("kernel", "head_dim", *_SHOWN)
    for schedule, of_family in found.constants.times.items():
        for dim, times in of_family.items():
            rows.add_row(schedule, str(dim), *_values(times))
    output().print(rows)
    typer.echo(
        f"{gpu.name}, {gpu.sms} SMs: {gpu.tflops:.0f} TFLOP/s, {gpu.read_gbps:.0f} GB/s; of"
        f" {found.made['cases']} cases the predictions are off by {_percent(found, 'mean_error')}"
        f" in the mean, {_percent(found, 'worst_error')} at most"
    )


def _values(times: KernelTimes) -> list[str]:
    return [f"{getattr(times, name):.3g}" for name in _SHOWN]


def _percent(found: Calibration, name: str) -> str:
    return f"{100 * float(found.made[name]):.1f} %"
