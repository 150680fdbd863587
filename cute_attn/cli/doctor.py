"""`cute-attn doctor`: whether everything here fits together, what is missing, and a self-test.

Each check gives a `Finding`: what was found, whether that will do, and, if not, the line that mends
it. torch is imported by the checks that are about it, last.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cute_attn.cli import quantities
from cute_attn.cli.terminal import first_line, output, table
from cute_attn.runtime import (
    DiskCache,
    DriverError,
    ToolchainError,
    cost_files,
    default_toolchain,
    device_count,
    device_info,
    env,
)
from cute_attn.runtime.cache import default_directory
from cute_attn.runtime.disassemble import find_nvdisasm
from cute_attn.runtime.toolchain import SLOWEST, rank, version_key

OK, NOTE, BAD = "ok", "note", "bad"
_MARKS = {OK: "[green]ok[/green]", NOTE: "[yellow]note[/yellow]", BAD: "[red]bad[/red]"}
_LEAST_FREE = 1 << 30
_LEAST_PYTHON = (3, 10)


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        name: of the check.
        status: "ok", "note" (works, could be better) or "bad".
        found: in words.
        hint: what to do, or "".
    """

    name: str
    status: str
    found: str
    hint: str = ""


def command(
    test: Annotated[
        bool,
        typer.Option("--test/--no-test", help="Compile a kernel and run a small batch (10 s)."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the installation: wheels, compiler, driver, GPU, cache, and a self-test.

    The exit code is 1 if something is bad; notes are no faults.

    \b
    Examples:
      cute-attn doctor
      cute-attn doctor --no-test --json
    """
    findings = []
    rows = table("", "check", "found", left=3)
    for finding in check_all(test=test):
        findings.append(finding)
        rows.add_row(_MARKS[finding.status], finding.name, escape(finding.found))
        if finding.hint:
            rows.add_row("", "", escape(f"-> {finding.hint}"))
    healthy = all(finding.status != BAD for finding in findings)
    if as_json:
        facts = {"healthy": healthy, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(facts, indent=2))
    else:
        output().print(rows)
        bad = sum(finding.status == BAD for finding in findings)
        typer.echo("everything fits" if healthy else f"{bad} of {len(findings)} checks are bad")
    raise typer.Exit(0 if healthy else 1)


def check_all(*, test: bool) -> Iterator[Finding]:
    """Every check in turn; the self-test last, where nothing that it needs is bad."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _environment, _packages, _compiler, _disassembler, _driver, _cache, _torch, _kernels,
        _constants,
    )  # fmt: skip
    healthy = True
    for check in checks:
        for finding in check():
            healthy &= finding.status != BAD
            yield finding
    if test and healthy:
        from cute_attn.cli.self_test import self_test

        start = time.perf_counter()
        found, problem = self_test()
        seconds = time.perf_counter() - start
        yield Finding("self-test", BAD if problem else OK, f"{found} ({seconds:.1f} s)", problem)
    elif test:
        yield Finding("self-test", NOTE, "left out: what is bad comes first")


def pip_line(extra: str) -> str:
    """The command that installs what an extra of this package asks for."""
    try:
        asked = metadata.requires("cute-attn") or []
    except metadata.PackageNotFoundError:
        return f'pip install "cute-attn[{extra}]"'
    wanted = [
        requirement.split(";")[0].strip()
        for requirement in asked
        if f"extra == '{extra}'" in requirement.replace('"', "'")
    ]
    quoted = (f'"{requirement}"' for requirement in wanted)
    return f"pip install {' '.join(quoted)}" if wanted else f'pip install "cute-attn[{extra}]"'


def _environment() -> Iterator[Finding]:
    version = sys.version.split()[0]
    fits = sys.version_info >= _LEAST_PYTHON
    yield Finding(
        "Python", OK if fits else BAD, version, "" if fits else "install Python 3.10 or newer"
    )
    for variable in env.ALL:
        try:
            variable.get()
        except ValueError as error:
            yield Finding("environment", BAD, str(error), f"unset {variable.name}")


def _packages() -> Iterator[Finding]:
    """What this package asks for without an extra, by the minimum that it asks for."""
    least = {"numpy": (1, 26), "nvidia-cutlass": (4, 2), "torch": (2, 4), "typer": (0, 12)}
    for name, minimum in least.items():
        wanted = ".".join(map(str, minimum))
        install = f'pip install "{name}>={wanted}"'
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, BAD, "not installed", install)
            continue
        fits = version_key(version)[:2] >= minimum
        note = "" if fits else f"; {wanted} or newer is needed"
        yield Finding(name, OK if fits else BAD, version + note, "" if fits else install)


def _compiler() -> Iterator[Finding]:
    try:
        toolchain = default_toolchain()
    except (ToolchainError, ValueError) as error:
        if env.NO_COMPILE.get():
            found = "none, and none is wanted (CUTE_ATTN_NO_COMPILE=1): kernels come from caches"
            yield Finding("compiler", NOTE, found)
        else:
            yield Finding("compiler", BAD, first_line(error), pip_line("cu13"))
        return
    headers = ", ".join(f"{name} {version}" for name, version in toolchain.packages)
    yield Finding("compiler", OK, f"{toolchain} with {headers}")
    if env.NO_COMPILE.get():
        yield Finding("compiler", NOTE, "not used: CUTE_ATTN_NO_COMPILE=1")
    if toolchain.tools is not None and toolchain.tools.needs_tuple_overlay:
        yield Finding(
            "headers",
            NOTE,
            "CCCL 13.2 or newer beside CUTLASS 4.2: patched at every compile",
            'pip install "nvidia-cuda-cccl>=13.0,<13.2"',
        )
    if rank(toolchain)[0] == SLOWEST:
        found = f"the assembler of {toolchain} makes kernels that are 10 to 15 % slower"
        newer = version_key(toolchain.nvrtc) >= (13,)
        yield Finding("assembler", NOTE, found, pip_line("ptxas" if newer else "cu13"))


def _disassembler() -> Iterator[Finding]:
    tool = find_nvdisasm()
    if tool is None:
        yield Finding("nvdisasm", NOTE, "none: no `--what sass`, `mix`, `loop`", pip_line("sass"))
    else:
        yield Finding("nvdisasm", OK, str(tool))


def _driver() -> Iterator[Finding]:
    try:
        infos = [device_info(index) for index in range(device_count())]
    except DriverError as error:
        yield Finding("GPU", BAD, str(error), "nvidia-smi says whether the driver runs")
        return
    if not infos:
        yield Finding("GPU", NOTE, "none is visible: CPU tensors, and compiling, still work")
        return
    for info in infos:
        yield Finding("GPU", OK, f"{info.index}: {info.name}, compile for {info.arch}")
    speaks = infos[0].driver
    try:
        nvrtc = version_key(default_toolchain().nvrtc)
    except (ToolchainError, ValueError):
        nvrtc = ()
    if nvrtc and version_key(speaks)[0] < nvrtc[0]:
        yield Finding(
            "driver",
            BAD,
            f"speaks CUDA {speaks} and loads no kernels of NVRTC {nvrtc[0]}.{nvrtc[1]}",
            f"{pip_line('cu12')}, or a newer driver",
        )
    else:
        yield Finding("driver", OK, f"speaks CUDA {speaks}")


def _cache() -> Iterator[Finding]:
    place = default_directory()
    if not env.CACHE.get():
        yield Finding("kernel cache", NOTE, "off (CUTE_ATTN_CACHE=0): every process compiles")
        return
    entries, num_bytes = DiskCache(place, read_only=True).usage()
    found = f"{place}: {entries} kernels, {quantities.in_words(num_bytes)}"
    problem = _cannot_write(place)
    if problem is not None:
        hint = "set CUTE_ATTN_CACHE_DIR to a writable directory"
        yield Finding("kernel cache", BAD, f"{place} cannot be written: {problem}", hint)
        return
    free = shutil.disk_usage(_existing_parent(place)).free
    if free < _LEAST_FREE:
        found += f"; {quantities.in_words(free)} free"
        yield Finding("kernel cache", NOTE, found, "cute-attn cache prune --max-size 500M")
    else:
        yield Finding("kernel cache", OK, found)
    for carried in env.CACHE_PATH.get():
        number = DiskCache(carried, read_only=True).usage()[0]
        status = OK if number else NOTE
        yield Finding("carried cache", status, f"{carried}: {number} kernels")


def _existing_parent(place: Path) -> Path:
    return next(path for path in (place, *place.parents) if path.exists())


def _cannot_write(place: Path) -> str | None:
    """Why no file can be made there; makes and removes one, and no directory that was not there."""
    target = _existing_parent(place)
    try:
        with tempfile.TemporaryFile(dir=target):
            return None
    except OSError as error:
        return str(error)


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", BAD, f"cannot be imported: {error}", 'pip install "torch>=2.4"')
        return
    cuda = torch.version.cuda
    try:
        gpus = device_count()
    except DriverError:
        gpus = 0
    if gpus and not torch.cuda.is_available():
        build = f"is built for CUDA {cuda}" if cuda else "is a build for CPUs"
        hint = "https://pytorch.org/get-started/locally/ has the line for this driver"
        yield Finding("torch on CUDA", BAD, f"{build} and sees none of {gpus} GPUs", hint)
    elif gpus:
        yield Finding("torch on CUDA", OK, f"built for CUDA {cuda}")


def _kernels() -> Iterator[Finding]:
    """What a batch of common shape would take on the GPU here, and how much of it is compiled."""
    try:
        from cute_attn.cli.self_test import arch_to_test, usual_kernels
        from cute_attn.codegen.spec import ARCHS
    except ImportError:
        return  # torch is missing, which has been said
    arch, why = arch_to_test()
    if arch not in ARCHS:
        yield Finding("kernels", BAD, f"none for {arch} ({why}), only for {', '.join(ARCHS)}")
        return
    kernels, cached = usual_kernels(arch)
    names = sorted({f"{kernel.split('_bf16')[0]} ({built_for})" for kernel, built_for in kernels})
    found = (
        f"for {arch} ({why}): {', '.join(names)}; head_dim 128 with pages of 16 takes"
        f" {len(kernels)}, {cached} cached"
    )
    hint = "" if cached == len(kernels) else f"cute-attn compile --preset llama --arch {arch}"
    yield Finding("kernels", OK, found, hint)


def _constants() -> Iterator[Finding]:
    try:
        infos = [device_info(index) for index in range(device_count())]
    except DriverError:
        return
    for info in infos:
        path = cost_files.find(info.name, info.num_sms)
        if path is not None:
            yield Finding("constants for planning", OK, f"{info.name}: {path}")
        elif "H200" in info.name:
            yield Finding("constants for planning", OK, f"{info.name}: built in")
        else:
            found = f"{info.name}: those of an H200"
            yield Finding("constants for planning", NOTE, found, "cute-attn calibrate")
