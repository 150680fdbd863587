"""`export_bundle`: problems in, a folder with cubins, manifest and headers out.

Equal inputs (problems, this package, compiler) give equal bytes: nothing of the machine, the time
or the cache gets in.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

from cute_attn import __version__
from cute_attn.api.dispatch import Problem, emit
from cute_attn.api.kernel import in_users_lines, merge_of, request_of
from cute_attn.codegen.source import INCLUDE_DIR as KERNEL_HEADERS
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import KernelSpec
from cute_attn.export.c_header import bundle_header
from cute_attn.export.describe import PLAN_FORMAT, WORKSPACE, attention_entry, merge_entry
from cute_attn.export.errors import BundleError
from cute_attn.export.manifest import ABI_VERSION, FORMAT, File, Kernel, Manifest, dump
from cute_attn.export.problems import cells_of, problem_entry
from cute_attn.export.recipes import DTYPES
from cute_attn.runtime import CompiledKernel, CompileError, compile_many
from cute_attn.scheduler import BUILT_IN, Constants
from cute_attn.scheduler.constants_file import read_file

MANIFEST = "manifest.json"
SCHEMA = Path(__file__).parent / "manifest.schema.json"
INCLUDE_DIR = Path(__file__).parent / "include"
SHARED_HEADER = "cute_attn/plan_lengths.hpp"
"""Of the device planner and the one in bundles."""
_LEAST_CUDA = 12  # cuLibraryLoadData and cuTensorMapEncodeTiled

Progress = Callable[[int, int, CompiledKernel | Exception], None]


def export_bundle(
    path: str | os.PathLike[str],
    problems: Iterable[Problem],
    *,
    schedules: Sequence[str | None] = (None,),
    costs: str | os.PathLike[str] | Constants | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    replace: bool = False,
) -> Manifest:
    """Compiles all kernels that steps of some problems take, and writes them as a bundle.

    Args:
        path: folder to be made. It appears when it is complete.
        problems: what kernels are wanted for.
        schedules: kernel families, each of which every problem gets; None: those that a batch
            takes.
        costs: constants that plans are made with: a file of `cute-attn calibrate`, or `Constants`;
            default: those of an H200.
        jobs: compile processes; None takes as many as CPUs and free memory allow.
        progress: called as progress(done, total, result) after each kernel.
        replace: `path` may be a bundle, which is replaced.

    Returns:
        the manifest.

    Raises:
        BundleError: `path` is there, there are no problems, or a variant cannot be in a bundle.
        ConstantsFileError: the file of constants cannot be used.
        UnsupportedSpecError: a problem has no kernel.
        CompileError, ToolchainError: a kernel does not compile, or nothing here can compile.
    """
    target = Path(path)
    _check_target(target, replace)
    constants = _constants(costs)
    asked = list(dict.fromkeys(product(problems, schedules)))
    if not asked:
        raise BundleError("problems is empty; a bundle takes at least one")
    for problem, _ in asked:
        if problem.dtype not in DTYPES:
            raise BundleError(
                f"a problem has dtype {problem.dtype!r}; bundles take {', '.join(DTYPES)}"
            )
    cells = {pair: cells_of(*pair) for pair in asked}
    entries = tuple(problem_entry(*pair, found) for pair, found in cells.items())
    specs = list(dict.fromkeys(cell.spec for found in cells.values() for cell in found))
    kernels, contents = _compile(specs, constants, jobs, progress)
    required_cuda = _required_cuda(kernels)
    files = {name: _file(name, data) for name, data in contents.items()}
    header = bundle_header(kernels, entries, WORKSPACE, required_cuda, files)
    contents["bundle.h"] = header.encode()
    contents[SCHEMA.name] = SCHEMA.read_bytes()
    headers = {file.relative_to(INCLUDE_DIR): file for file in INCLUDE_DIR.rglob("*.h*")}
    headers[Path(SHARED_HEADER)] = KERNEL_HEADERS / SHARED_HEADER
    for place, file in sorted(headers.items()):
        contents[f"include/{place.as_posix()}"] = file.read_bytes()
    manifest = Manifest(
        format=FORMAT,
        abi_version=ABI_VERSION,
        made_by=f"cute-attn {__version__}",
        costs_of=constants.gpu.name,
        required_cuda=required_cuda,
        plan=PLAN_FORMAT,
        workspace=WORKSPACE,
        problems=entries,
        kernels=kernels,
        files=tuple(_file(name, contents[name]) for name in sorted(contents)),
    )
    _write(target, {**contents, MANIFEST: dump(manifest)})
    return manifest


def _check_target(target: Path, replace: bool) -> None:
    if not target.parent.is_dir():
        raise BundleError(f"path is {target}; there is no folder {target.parent}")
    if not target.exists():
        return
    if not replace:
        raise BundleError(f"path is {target}, which is there already; it takes a new name")
    if not (target / MANIFEST).is_file():
        raise BundleError(f"path is {target}, which is no bundle, and so is not replaced")


def _compile(
    specs: list[KernelSpec], constants: Constants, jobs: int | None, progress: Progress | None
) -> tuple[tuple[Kernel, ...], dict[str, bytes]]:
    """Entries, merges first, and the files of all kernels."""
    merging = {merge_of(spec).name: spec for spec in specs if not spec.fuses_merge}
    wanted: list[tuple[KernelSpec, GeneratedKernel]] = [
        (spec, merge_of(spec)) for spec in merging.values()
    ]
    wanted += [(spec, emit(spec)) for spec in specs]
    results = compile_many([request_of(generated) for _, generated in wanted], jobs, progress)
    kernels: list[Kernel] = []
    contents: dict[str, bytes] = {}
    for (spec, generated), result in zip(wanted, results, strict=True):
        if isinstance(result, CompileError):
            raise in_users_lines(result, spec)
        if isinstance(result, Exception):
            raise result
        if generated.name in merging:
            kernel = merge_entry(spec, generated, result)
        else:
            kernel = attention_entry(spec, generated, result, constants)
        kernels.append(kernel)
        contents[kernel.cubin] = result.cubin
        contents[kernel.source] = generated.text.encode()
    return tuple(kernels), contents


def _constants(costs: str | os.PathLike[str] | Constants | None) -> Constants:
    if costs is None or isinstance(costs, Constants):
        return costs or BUILT_IN
    constants, _ = read_file(Path(costs))
    return constants


def _required_cuda(kernels: Iterable[Kernel]) -> str:
    """Drivers take cubins of compilers up to their own major version."""
    majors = (int(kernel.compiler.nvrtc.partition(".")[0]) for kernel in kernels)
    return f"{max(_LEAST_CUDA, *majors)}.0"


def _file(name: str, data: bytes) -> File:
    return File(name, len(data), hashlib.sha256(data).hexdigest())


def _write(target: Path, contents: Mapping[str, bytes]) -> None:
    """Writes beside the target and renames, so that a bundle is complete or absent."""
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        new = work / "new"
        for name, data in contents.items():
            file = new / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        if target.exists():
            target.rename(work / "old")
        new.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
