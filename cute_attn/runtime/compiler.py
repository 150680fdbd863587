"""One source text to one cubin, deterministically; no cache, no GPU.

Equal requests give byte-identical cubins on every machine with an equal `Toolchain`: the program
name is constant, ``--frandom-seed`` is fixed, and paths appear nowhere in the output (unless line
information is asked for). Map errors to a user's own lines with ordinary ``#line`` directives in
the source.
"""

from __future__ import annotations

import logging
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from cute_attn.runtime import env
from cute_attn.runtime.errors import CompileError, ToolchainError
from cute_attn.runtime.log import Resources, entries, first_errors, parse_log
from cute_attn.runtime.nvrtc import NvrtcOutput, load_nvrtc
from cute_attn.runtime.toolchain import INSTALL_HINT, Toolchain, Tools, default_toolchain

logger = logging.getLogger("cute_attn")

BASE_OPTIONS = (
    "--std=c++17",
    "-default-device",  # CUTLASS has functions without an execution space
    "--frandom-seed=1",
    "--ptxas-options=-v",  # the resource report that `log` reads
    # How far libcu++ unrolls its type lists: what it takes with nvcc. The 16 it takes with NVRTC
    # cost every compile one second.
    "-D_CCCL_META_UNROLL_LIMIT=10",
)
_ARCH = re.compile(r"sm_\d{2,3}[af]?")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PTXAS = "--ptxas-options="
_ALSO_PTXAS = ("--maxrregcount=", "--generate-line-info")

_HINTS = (
    (
        "cannot open source file",
        "a header is missing: check include_dirs, and `cute-attn info` for wheels",
    ),
    (
        "could not open source file",
        "a header is missing: check include_dirs, and `cute-attn info` for wheels",
    ),
    (
        "tuple_element",
        "CUTLASS and CCCL versions may not fit together: use nvidia-cuda-cccl >= 13.0, < 13.2",
    ),
    (
        "unsupported gpu architecture",
        "this NVRTC does not know the architecture: install a newer one",
    ),
    (
        "invalid value for --gpu-architecture",
        "this NVRTC does not know the architecture; take e.g. sm_90a",
    ),
    (
        "Unsupported .version",
        "ptxas is older than NVRTC: install an nvidia-cuda-nvcc wheel at least as new",
    ),
    (
        "not supported on .target",
        "an instruction is not of this architecture; wgmma and setmaxnreg need sm_90a",
    ),
)


@dataclass(frozen=True)
class CompileRequest:
    """A kernel to compile.

    Attributes:
        source: CUDA C++ text of one translation unit.
        name: the kernel's symbol; declared ``extern "C" __global__`` in the source.
        arch: real architecture, e.g. "sm_90a", "sm_80".
        include_dirs: own header directories; their contents (never their paths) enter the cache
        key. options: further NVRTC options without paths, as ``("--ftz=true",
        "--ptxas-options=-O2")``. toolchain: the compiler; None takes `default_toolchain`.
    """

    source: str
    name: str
    arch: str
    include_dirs: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    toolchain: Toolchain | None = field(default=None)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f'name={self.name!r}: takes a C identifier (an extern "C" symbol)')
        if not _ARCH.fullmatch(self.arch):
            raise ValueError(
                f"arch={self.arch!r}: takes a real architecture such as 'sm_90a' or 'sm_80'"
            )
        for option in self.options:
            if re.match(
                r"-I|--include-path|--gpu-architecture|-arch|--pch|--create-pch|--use-pch", option
            ):
                raise ValueError(
                    f"options has {option!r}: paths go into include_dirs, the architecture into "
                    "arch; precompiled headers are the pool's business"
                )

    def all_options(self) -> tuple[str, ...]:
        """Every option that shapes the cubin, in order, without paths and architecture."""
        lineinfo = ("--generate-line-info",) if env.LINEINFO.get() else ()
        return (*BASE_OPTIONS, *lineinfo, *self.options)

    def with_toolchain(self, toolchain: Toolchain) -> CompileRequest:
        """This request, bound to ``toolchain``."""
        return replace(self, toolchain=toolchain)


@dataclass(frozen=True)
class Compiled:
    """A finished compile; ``ptx`` is None when NVRTC assembled, ``seconds`` of wall time."""

    request: CompileRequest
    toolchain: Toolchain
    cubin: bytes = field(repr=False)
    log: str = field(repr=False)
    resources: Resources
    seconds: float
    ptx: bytes | None = field(default=None, repr=False)

    def lint(self) -> list[str]:
        """Reasons against shipping this kernel (see `Resources.lint`); empty when clean."""
        return self.resources.lint()


def compile_source(request: CompileRequest, *, pch_dir: Path | None = None) -> Compiled:
    """Compile ``request`` now.

    Args:
        request: what to compile.
        pch_dir: directory for precompiled headers of this process (see `pool`); the output does not
        depend on it.

    Raises:
        CompileError: the source, an option or the architecture was refused, or no kernel has the
        name asked for. ToolchainError: nothing here can compile, or the request names a toolchain
        that is not installed here.
    """
    toolchain = request.toolchain or default_toolchain()
    tools = toolchain.tools
    if tools is None:
        raise ToolchainError(
            f"toolchain {toolchain} is only recorded, not installed here; install it "
            f"({INSTALL_HINT}) or take one of available_toolchains()"
        )
    start = time.perf_counter()
    output = _run_nvrtc(request, tools, pch_dir, to_ptx=tools.ptxas is not None)
    log, cubin, ptx = output.log, output.cubin, None
    if output.ok and tools.ptxas is not None:
        ptx = output.ptx
        cubin, ptxas_log = _run_ptxas(request, tools.ptxas, ptx)
        log += ptxas_log
    seconds = time.perf_counter() - start
    if not cubin:
        raise _failure(request, toolchain, log)
    resources = parse_log(log, request.name)
    if resources is None:
        names = ", ".join(entries(log)) or "none"
        raise _failure(
            request, toolchain, log, f"no kernel is named {request.name!r} (kernels: {names})"
        )
    compiled = Compiled(request, toolchain, cubin, log, resources, seconds, ptx)
    _dump(compiled)
    return compiled


def compile_ptx(request: CompileRequest) -> str:
    """PTX of ``request``, whichever assembler makes its cubin; raises as `compile_source` does."""
    toolchain = request.toolchain if request.toolchain and request.toolchain.tools else None
    toolchain = toolchain or default_toolchain()
    tools = toolchain.tools
    assert tools is not None  # default_toolchain returns installed ones only
    output = _run_nvrtc(request, tools, None, to_ptx=True)
    if not output.ok:
        raise _failure(request, toolchain, output.log)
    return output.ptx.decode()


def _run_nvrtc(
    request: CompileRequest, tools: Tools, pch_dir: Path | None, *, to_ptx: bool
) -> NvrtcOutput:
    arch = request.arch.replace("sm_", "compute_") if to_ptx else request.arch
    options = [
        f"--gpu-architecture={arch}",
        *(o for o in request.all_options() if not (to_ptx and o.startswith(_PTXAS))),
        *(f"-I{folder}" for folder in (*request.include_dirs, *tools.include_dirs)),
    ]
    if pch_dir is not None:
        options += ["--pch", f"--pch-dir={pch_dir}", "--pch-messages=false"]
    nvrtc = load_nvrtc(tools.nvrtc)
    return nvrtc.compile(request.source, options, headers=tools.overlay(), to_ptx=to_ptx)


def _run_ptxas(request: CompileRequest, ptxas: Path, ptx: bytes) -> tuple[bytes, str]:
    options = request.all_options()
    flags = [option.removeprefix(_PTXAS) for option in options if option.startswith(_PTXAS)]
    # NVRTC leaves these to the assembler, and PTX does not carry them.
    flags += [option for option in options if option.startswith(_ALSO_PTXAS)]
    with tempfile.TemporaryDirectory(prefix="cute_attn-") as folder:
        (Path(folder) / "kernel.ptx").write_bytes(ptx)
        command = [str(ptxas), f"-arch={request.arch}", *flags, "kernel.ptx", "-o", "kernel.cubin"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        cubin = Path(folder) / "kernel.cubin"
        log = done.stdout + done.stderr
        if done.returncode != 0 or not cubin.is_file():
            return b"", log or f"ptxas fatal: exit status {done.returncode}"
        return cubin.read_bytes(), log


def _failure(
    request: CompileRequest, toolchain: Toolchain, log: str, reason: str | None = None
) -> CompileError:
    errors = (reason,) if reason else first_errors(log) or (log.strip()[:2000],)
    path = _write_dump(request.name, {"cu": request.source.encode(), "log": log.encode()})
    hints = [hint for text, hint in _HINTS if text in log]
    message = "\n".join(
        [
            f"kernel {request.name} ({request.arch}, {toolchain}) does not compile:",
            *errors,
            *(f"hint: {hint}" for hint in dict.fromkeys(hints)),
            f"source: {path or 'could not be written anywhere'}",
            f"options: {' '.join(request.all_options())}",
        ]
    )
    return CompileError(message, log=log, source_path=path, errors=errors)


def _dump(compiled: Compiled) -> None:
    """Honour ``CUTE_ATTN_DUMP_DIR``."""
    if env.DUMP_DIR.get() is None:
        return
    request = compiled.request
    parts = {"cu": request.source.encode(), "cubin": compiled.cubin, "log": compiled.log.encode()}
    if compiled.ptx is not None:
        parts["ptx"] = compiled.ptx
    path = _write_dump(f"{request.name}.{request.arch}", parts)
    logger.info("dumped %s", path)


def _write_dump(stem: str, parts: dict[str, bytes]) -> Path | None:
    """Write ``stem.<suffix>`` files to the dump directory (a fresh temporary one by default); the
    .cu's path.
    """
    try:
        folder = env.DUMP_DIR.get()
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="cute_attn-failed-"))
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, content in parts.items():
            (folder / f"{stem}.{suffix}").write_bytes(content)
    except OSError as error:
        logger.warning("cannot dump %s: %s", stem, error)
        return None
    return folder / f"{stem}.cu"
