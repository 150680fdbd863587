"""`cute-attn export`: kernels of given axes as a bundle."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from cute_attn.cli.presets import Axes, problems
from cute_attn.cli.terminal import progress_bar
from cute_attn.export import BundleError, Manifest, export_bundle
from cute_attn.export.manifest import schema
from cute_attn.runtime import CompiledKernel


def print_schema() -> None:
    """The JSON Schema of manifests."""
    typer.echo(json.dumps(schema(), indent=1))


def run(
    path: Path,
    axes: Axes,
    *,
    costs: Path | None,
    jobs: int | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Writes the bundle and prints what is in it.

    Raises:
        BundleError, CompileError, ToolchainError, UnsupportedSpecError: see `export_bundle`.
    """
    start = time.perf_counter()
    with ExitStack() as stack:
        advance: Any = None

        def each(done: int, total: int, result: CompiledKernel | Exception) -> None:
            nonlocal advance
            if advance is None:
                bar = progress_bar("compiling", total, shown=not as_json)
                advance = stack.enter_context(bar)
            advance(done)

        try:
            manifest = export_bundle(
                path,
                problems(axes),
                schedules=axes.schedule or (None,),
                costs=costs,
                jobs=jobs,
                progress=each,
                replace=replace,
            )
        except OSError as error:
            raise BundleError(f"cannot write {path}: {error}") from error
    if as_json:
        typer.echo(json.dumps(_facts(path, manifest), indent=2))
        return
    for kernel in manifest.kernels:
        size = next(file.bytes for file in manifest.files if file.path == kernel.cubin)
        typer.echo(f"{kernel.role:10}{size:>9,} bytes  {kernel.name}")
    typer.echo(
        f"{path}: {len(manifest.kernels)} kernels for {', '.join(manifest.archs)},"
        f" {_bytes(manifest):,} bytes, drivers from CUDA {manifest.required_cuda} on:"
        f" {time.perf_counter() - start:.1f} s"
    )


def _facts(path: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "path": str(path),
        "abi_version": manifest.abi_version,
        "costs_of": manifest.costs_of,
        "required_cuda": manifest.required_cuda,
        "archs": list(manifest.archs),
        "bytes": _bytes(manifest),
        "kernels": [kernel.name for kernel in manifest.kernels],
    }


def _bytes(manifest: Manifest) -> int:
    return sum(file.bytes for file in manifest.files)
