"""`cute-attn info`: devices, driver, versions, compilers (best first), kernel cache, constants for
planning, tune databases, environment.

`collect` gathers plain JSON values and never fails: where something is absent (no driver, no torch,
no compiler) the value says why. Nothing here imports torch or creates a CUDA context.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import cute_attn
from cute_attn.cli import tune_databases
from cute_attn.cli.terminal import output, table
from cute_attn.runtime import (
    DiskCache,
    DriverError,
    ToolchainError,
    available_toolchains,
    cost_files,
    default_toolchain,
    device_count,
    device_info,
    env,
)
from cute_attn.runtime.cache import default_directory
from cute_attn.scheduler import BUILT_IN, Constants
from cute_attn.scheduler.constants_file import ConstantsFileError, read_constants, read_file

# Packages whose versions decide what compiles and how fast; the CUDA ones come per major version.
_ALWAYS = ("torch", "numpy", "nvidia-cutlass")
_CUDA = re.compile(r"nvidia-cuda-(nvrtc|runtime|crt|cccl|nvcc|nvdisasm)(-cu12)?")


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show devices, versions, compilers, kernel cache and environment variables.

    \b
    Examples:
      cute-attn info
      cute-attn info --json
    """
    facts = collect()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        render(facts, output())


def collect() -> dict[str, Any]:
    """All facts, as JSON values."""
    return {
        "cute_attn": {
            "version": cute_attn.__version__,
            "path": str(Path(cute_attn.__file__).parent),
        },
        "python": platform.python_version(),
        "platform": platform.platform(),
        "driver": _driver(),
        "packages": _packages(),
        "toolchains": _toolchains(),
        "cache": _cache(),
        "costs": _costs(),
        "tuning": _tuning(),
        "environment": _environment(),
    }


def _driver() -> dict[str, Any]:
    """Driver release ("580.159.03"), the CUDA version it speaks and the visible devices."""
    facts: dict[str, Any] = {"release": None, "cuda": None, "devices": [], "problem": None}
    with suppress(OSError):  # no NVIDIA kernel module, or a container that hides it
        facts["release"] = Path("/sys/module/nvidia/version").read_text().strip()
    try:
        facts["devices"] = [asdict(device_info(index)) for index in range(device_count())]
    except DriverError as error:
        facts["problem"] = str(error)
    if facts["devices"]:
        facts["cuda"] = facts["devices"][0]["driver"]
    else:
        facts["problem"] = facts["problem"] or "no CUDA device is visible"
    return facts


def _packages() -> dict[str, str | None]:
    """Installed versions by package name; None for one that is needed and missing."""
    versions: dict[str, str | None] = dict.fromkeys(_ALWAYS)
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower()
        if name in versions or _CUDA.fullmatch(name):
            versions[name] = versions.get(name) or dist.version
    return dict(sorted(versions.items()))


def _toolchains() -> dict[str, Any]:
    """Compilers that work here, best first, and the one that would be used or why there is none."""
    facts: dict[str, Any] = {
        "available": [t.to_json() | {"name": t.name} for t in available_toolchains()],
        "default": None,
        "problem": None,
    }
    try:
        facts["default"] = default_toolchain().name
    except (ToolchainError, ValueError) as error:
        facts["problem"] = str(error)
    return facts


def _cache() -> dict[str, Any]:
    """The kernel cache: directory, stored kernels and their size, and the read-only ones."""

    def usage(directory: Path) -> dict[str, Any]:
        entries, num_bytes = DiskCache(directory, read_only=True).usage()
        return {"directory": str(directory), "entries": entries, "bytes": num_bytes}

    own = usage(default_directory())
    own["enabled"] = env.CACHE.get()
    own["read_only"] = [usage(path) for path in env.CACHE_PATH.get()]
    return own


def _costs() -> list[dict[str, Any]]:
    """Per device, or of no device where there is none: which constants plans are made with, from
    which file, how that came about, or why it cannot be used."""
    with suppress(DriverError):
        infos = [device_info(index) for index in range(device_count())]
        if infos:
            return [_costs_of(info.index, info.name, info.num_sms) for info in infos]
    named = env.COST_FILE.get()
    if named is None:
        return [_built_in(None)]
    return [_costs_in(named, None, lambda: read_file(named)[0])]


def _costs_of(index: int, name: str, sms: int) -> dict[str, Any]:
    path = cost_files.find(name, sms)
    if path is None:
        return _built_in(index)
    return _costs_in(path, index, lambda: read_constants(path, name=name, sms=sms))


def _built_in(index: int | None) -> dict[str, Any]:
    return {"device": index, "source": BUILT_IN.source, "made": {}, "problem": None}


def _costs_in(path: Path, index: int | None, read: Callable[[], Constants]) -> dict[str, Any]:
    facts: dict[str, Any] = _built_in(index) | {"source": str(path)}
    try:
        read()
        facts["made"] = read_file(path)[1]
    except ConstantsFileError as error:
        facts["problem"] = str(error)
    return facts


def _tuning() -> list[dict[str, Any]]:
    gpus = []
    with suppress(DriverError):
        infos = [device_info(index) for index in range(device_count())]
        gpus = [(info.index, info.name, info.num_sms) for info in infos]
    return tune_databases.collect(gpus)


def _environment() -> list[dict[str, str | None]]:
    return [{"name": name, "value": value, "help": text} for name, value, text in env.table()]


def render(facts: dict[str, Any], console: Console) -> None:
    """Print the facts as tables."""
    own = facts["cute_attn"]
    console.print(f"[bold]cute_attn {own['version']}[/bold]  {escape(own['path'])}")
    console.print(f"Python {facts['python']}, {facts['platform']}\n")
    _render_driver(facts["driver"], console)
    _render_toolchains(facts["toolchains"], console)

    _render_cache(facts["cache"], console)
    _render_costs(facts["costs"], console)
    tune_databases.render(facts["tuning"], console)

    packages = table("package", "version")
    for name, version in facts["packages"].items():
        packages.add_row(name, version or "[red]not installed[/red]")
    console.print(packages)

    variables = table("environment variable", "value", "meaning")
    for variable in facts["environment"]:
        variables.add_row(
            variable["name"], escape(variable["value"] or "-"), escape(variable["help"])
        )
    console.print(variables)


def _render_driver(facts: dict[str, Any], console: Console) -> None:
    if facts["devices"]:
        rows = table("device", "compile for", "SMs", "smem per block", "L2", "memory")
        for device in facts["devices"]:
            rows.add_row(
                f"{device['index']}: {escape(device['name'])}",
                device["arch"],
                str(device["num_sms"]),
                f"{device['smem_per_block_optin'] / 1024:.0f} KiB",
                f"{device['l2_bytes'] / 2**20:.0f} MiB",
                f"{device['memory_bytes'] / 2**30:.0f} GiB",
            )
        console.print(f"driver {facts['release'] or '?'}, CUDA {facts['cuda']}")
        console.print(rows)
    if facts["problem"]:
        console.print(
            f"[yellow]no GPU:[/yellow] {escape(facts['problem'])}; CPU tensors still work"
        )


def _render_toolchains(facts: dict[str, Any], console: Console) -> None:
    if facts["available"]:
        rows = table("compiler, best first", "headers")
        for toolchain in facts["available"]:
            used = "  [green](used)[/green]" if toolchain["name"] == facts["default"] else ""
            headers = (f"{name} {version}" for name, version in toolchain["packages"].items())
            rows.add_row(toolchain["name"] + used, ", ".join(headers))
        console.print(rows)
    if facts["problem"]:
        console.print(f"[red]no compiler:[/red] {escape(facts['problem'])}\n")


def _render_cache(facts: dict[str, Any], console: Console) -> None:
    rows = table("kernel cache", "kernels", "size")
    notes = ["" if facts["enabled"] else "  (off: CUTE_ATTN_CACHE=0)"]
    notes += ["  (read only)"] * len(facts["read_only"])
    for cache, note in zip([facts, *facts["read_only"]], notes, strict=True):
        size = f"{cache['bytes'] / 2**20:.1f} MiB"
        rows.add_row(escape(cache["directory"]) + note, str(cache["entries"]), size)
    console.print(rows)


def _render_costs(facts: list[dict[str, Any]], console: Console) -> None:
    rows = table("constants for planning", "device", "made")
    for of_device in facts:
        made = of_device["made"]
        how = ", ".join(f"{made[key]}" for key in ("date", "driver", "toolchain") if made.get(key))
        device = "-" if of_device["device"] is None else str(of_device["device"])
        rows.add_row(escape(of_device["source"]), device, escape(how) or "-")
    console.print(rows)
    for of_device in facts:
        if of_device["problem"]:
            console.print(f"[red]constants:[/red] {escape(of_device['problem'])}\n")
