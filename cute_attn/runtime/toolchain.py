"""Which compiler makes a cubin: NVRTC, its assembler and the headers, found in wheels.

A `Toolchain` is a value: it prints, goes into cache keys and records, and travels as JSON.
``assembler`` is "nvrtc" (NVRTC's own) or "ptxas" (NVRTC to PTX, then the ``ptxas`` of the
``nvidia-cuda-nvcc`` wheel). No toolkit, nvcc or GPU is looked for. A toolchain that was read from a
record, not found on this machine, has no `tools`: it can name cached kernels but compiles nothing.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cute_attn.runtime import env, headers
from cute_attn.runtime.errors import ToolchainError

INSTALL_HINT = 'pip install "cute-attn[cu13]" (or "cute-attn[cu12]")'


@dataclass(frozen=True)
class Tools:
    """Where the parts of a toolchain are on this machine."""

    nvrtc: Path
    ptxas: Path | None
    include_dirs: tuple[Path, ...]
    cutlass_include: Path
    needs_tuple_overlay: bool

    def overlay(self) -> dict[str, str]:
        """In-memory headers to hand to NVRTC (see `headers.tuple_overlay`)."""
        return headers.tuple_overlay(self.cutlass_include) if self.needs_tuple_overlay else {}


@dataclass(frozen=True)
class Toolchain:
    """The identity of a compiler: equal toolchains make byte-identical cubins of equal sources.

    ``nvrtc`` and ``ptxas`` are wheel versions ("13.5.37"); ``ptxas`` is None with the assembler
    "nvrtc". ``headers`` is a digest of the CUTLASS, CCCL and CUDA headers; ``packages`` says in
    words what it covers.
    """

    nvrtc: str
    ptxas: str | None
    headers: str
    packages: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    tools: Tools | None = field(default=None, compare=False, repr=False)

    @property
    def assembler(self) -> str:
        """ "nvrtc" or "ptxas"."""
        return "nvrtc" if self.ptxas is None else "ptxas"

    @property
    def name(self) -> str:
        """Short name, also taken by ``CUTE_ATTN_TOOLCHAIN``: "nvrtc-13.5.37",
        "nvrtc-13.0.88+ptxas-13.1.115".
        """
        return f"nvrtc-{self.nvrtc}" + (f"+ptxas-{self.ptxas}" if self.ptxas else "")

    def __str__(self) -> str:
        return self.name

    @property
    def identity(self) -> str:
        """The part that enters cache keys."""
        return f"{self.name} headers-{self.headers}"

    def to_json(self) -> dict[str, object]:
        return {
            "nvrtc": self.nvrtc,
            "ptxas": self.ptxas,
            "headers": self.headers,
            "packages": dict(self.packages),
        }

    @classmethod
    def from_json(cls, data: object) -> Toolchain:
        """A recorded toolchain (no `tools`); raises ValueError when ``data`` is not one."""
        if not isinstance(data, dict):
            raise ValueError(f"a recorded toolchain is an object, got {data!r}")
        nvrtc, ptxas, digest = data.get("nvrtc"), data.get("ptxas"), data.get("headers")
        packages = data.get("packages", {})
        if not (
            isinstance(nvrtc, str)
            and isinstance(digest, str)
            and (ptxas is None or isinstance(ptxas, str))
            and isinstance(packages, dict)
        ):
            raise ValueError(f"a recorded toolchain has nvrtc, ptxas, headers; got {data!r}")
        return cls(nvrtc, ptxas, digest, tuple((str(k), str(v)) for k, v in packages.items()))


@dataclass(frozen=True)
class _Layout:
    """How one CUDA major version spreads over wheels; paths relative to the site directory."""

    nvrtc: str
    nvrtc_package: str
    include_dirs: tuple[str, ...]
    header_packages: tuple[str, ...]
    ptxas: str
    ptxas_package: str


_LAYOUTS = (
    _Layout(
        nvrtc="nvidia/cu13/lib/libnvrtc.so.13",
        nvrtc_package="nvidia-cuda-nvrtc",
        include_dirs=("nvidia/cu13/include", "nvidia/cu13/include/cccl"),
        header_packages=("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl"),
        ptxas="nvidia/cu13/bin/ptxas",
        ptxas_package="nvidia-cuda-nvcc",
    ),
    _Layout(
        nvrtc="nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        nvrtc_package="nvidia-cuda-nvrtc-cu12",
        include_dirs=(
            "nvidia/cuda_runtime/include",
            "nvidia/cuda_cccl/include",
            "nvidia/cuda_nvcc/include",
        ),
        header_packages=(
            "nvidia-cuda-runtime-cu12",
            "nvidia-cuda-cccl-cu12",
            "nvidia-cuda-nvcc-cu12",
        ),
        ptxas="nvidia/cuda_nvcc/bin/ptxas",
        ptxas_package="nvidia-cuda-nvcc-cu12",
    ),
)

# One header per wheel that a CuTe kernel cannot do without.
_NEEDED_HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h", "cuda/std/utility")


def site_dirs() -> tuple[Path, ...]:
    """Directories to look for wheels in: ``CUTE_ATTN_WHEELS``, else sys.path."""
    return tuple(Path(entry).absolute() for entry in env.WHEELS.get() or sys.path if entry)


def _cutlass(roots: tuple[Path, ...]) -> tuple[Path, Path] | None:
    """(site directory, include directory) of the nvidia-cutlass wheel."""
    spec = importlib.util.find_spec("cutlass_library")  # finds it without importing it
    locations = (spec.submodule_search_locations or ()) if spec else ()
    for root in (*roots, *(Path(location).parent for location in locations)):
        include = root / "cutlass_library/source/include"
        if include.is_dir() and headers.wheel_version(root, "nvidia-cutlass"):
            return root, include
    return None


def _in_layout(layout: _Layout, root: Path, missing: list[str]) -> Iterator[Toolchain]:
    nvrtc = root / layout.nvrtc
    if not nvrtc.is_file():
        return
    version = headers.wheel_version(root, layout.nvrtc_package)
    include_dirs = tuple(root / part for part in layout.include_dirs if (root / part).is_dir())
    absent = [
        name
        for name in _NEEDED_HEADERS
        if not any((folder / name).is_file() for folder in include_dirs)
    ]
    cutlass = _cutlass((root, *site_dirs()))
    if cutlass is None:
        absent.append("cutlass/cutlass.h (wheel nvidia-cutlass)")
    if absent or cutlass is None or version is None:
        what = f"headers {', '.join(absent)}" if absent else "its wheel's dist-info"
        missing.append(
            f"NVRTC {version or nvrtc} in {root} lacks {what} "
            f"(wheels {', '.join(layout.header_packages)})"
        )
        return
    cutlass_root, cutlass_include = cutlass
    cccl = headers.wheel_version(root, next(p for p in layout.header_packages if "cccl" in p))
    overlay = cccl is not None and version_key(cccl) >= (13, 2)
    digest = (
        headers.wheel_digest(cutlass_root, ["nvidia-cutlass"], "cutlass_library/source/include/")
        + headers.wheel_digest(root, layout.header_packages, "nvidia/")
        + ("+tuple-overlay" if overlay else "")
    )
    packages = tuple(
        (package, found)
        for where, package in [
            (cutlass_root, "nvidia-cutlass"),
            *((root, package) for package in layout.header_packages),
        ]
        if (found := headers.wheel_version(where, package))
    )
    include = (cutlass_include, *include_dirs)
    short = headers.text_digest(digest)
    own = Toolchain(
        version, None, short, packages, Tools(nvrtc, None, include, cutlass_include, overlay)
    )
    yield own
    ptxas = root / layout.ptxas
    ptxas_version = headers.wheel_version(root, layout.ptxas_package)
    # PTX of a newer NVRTC is refused by an older ptxas.
    if (
        ptxas.is_file()
        and ptxas_version
        and version_key(ptxas_version)[:2] >= version_key(version)[:2]
    ):
        tools = Tools(nvrtc, ptxas, include, cutlass_include, overlay)
        yield Toolchain(version, ptxas_version, short, packages, tools)


def version_key(version: str) -> tuple[int, ...]:
    """Version text as numbers, for comparing: "13.1.115" -> (13, 1, 115)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


SLOWEST = 3
"""First part of the `rank` of toolchains with the slowest assemblers."""


def rank(toolchain: Toolchain) -> tuple[int, tuple[int, ...]]:
    """Sort key, best first: an attention prototype ran at 608, 583, 576-582, 521 TFLOP/s (H200)."""
    assembler = version_key(toolchain.ptxas or toolchain.nvrtc)
    if toolchain.ptxas is None and assembler >= (13, 5):
        place = 0
    elif (13, 1) <= assembler < (13, 2):
        place = 1
    elif assembler >= (13, 2):
        place = 2
    else:
        place = SLOWEST
    return place, tuple(-part for part in assembler)


@lru_cache(maxsize=8)
def _scan(roots: tuple[Path, ...]) -> tuple[tuple[Toolchain, ...], tuple[str, ...]]:
    found: list[Toolchain] = []
    missing: list[str] = []
    for root in roots:
        for layout in _LAYOUTS:
            for toolchain in _in_layout(layout, root, missing):
                if toolchain not in found:
                    found.append(toolchain)
    return tuple(sorted(found, key=rank)), tuple(missing)


def available_toolchains() -> tuple[Toolchain, ...]:
    """Toolchains that can compile here, best first (order measured, see `rank`); may be empty."""
    return _scan(site_dirs())[0]


def read_toolchain() -> Toolchain | None:
    """The recorded toolchain in the file ``CUTE_ATTN_TOOLCHAIN``, if that is a ``*.json``.

    Raises:
        ToolchainError: the file cannot be read or holds something else.
    """
    wanted = env.TOOLCHAIN.get()
    if wanted is None or not wanted.endswith(".json"):
        return None
    try:
        return Toolchain.from_json(json.loads(Path(wanted).read_bytes()))
    except (OSError, ValueError) as error:
        raise ToolchainError(f"CUTE_ATTN_TOOLCHAIN={wanted!r}: {error}") from error


def wanted_toolchain(toolchain: Toolchain) -> bool:
    """Whether ``CUTE_ATTN_TOOLCHAIN`` fits: a name or its beginning, or an assembler."""
    wanted = env.TOOLCHAIN.get()
    if wanted is None or wanted.endswith(".json"):
        return True
    if wanted in ("nvrtc", "ptxas"):
        return toolchain.assembler == wanted
    return toolchain.name.startswith(wanted)


def default_toolchain() -> Toolchain:
    """The best available toolchain, of those that ``CUTE_ATTN_TOOLCHAIN`` allows.

    Raises:
        ToolchainError: nothing can compile here, or the variable names nothing that is installed.
    """
    found, missing = _scan(site_dirs())
    if not found:
        reasons = "; ".join(missing) or "no NVRTC wheel (nvidia-cuda-nvrtc) on sys.path"
        raise ToolchainError(
            f"nothing here can compile kernels: {reasons}. Install: {INSTALL_HINT}"
        )
    record = read_toolchain()
    wanted = env.TOOLCHAIN.get()
    fitting = [t for t in found if (t == record if record else wanted_toolchain(t))]
    if not fitting:
        names = ", ".join(t.name for t in found)
        raise ToolchainError(f"CUTE_ATTN_TOOLCHAIN={wanted!r} matches none of: {names}")
    # "nvrtc-13.5" also begins the names with ptxas: the whole name is the better match.
    return next((t for t in fitting if t.name == wanted), fitting[0])
