"""Every environment variable of the project, in one table, read when used (never at import).

``table()`` lists them with their current values for ``cute-attn info``.
A flag counts as set when its value is anything but empty, ``0``, ``false``, ``no`` or ``off``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class EnvVar(Generic[T_co]):
    """One variable: ``get()`` reads and parses it now, ``default`` when it is unset or empty."""

    name: str
    default: T_co
    parse: Callable[[str], T_co]
    help: str

    def get(self) -> T_co:
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.name}={text!r}: {error}") from error


def _flag(text: str) -> bool:
    return text.strip().lower() not in ("0", "false", "no", "off")


def _path(text: str) -> Path | None:
    return Path(text).expanduser()


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(part).expanduser() for part in text.split(os.pathsep) if part)


def _positive(text: str) -> int | None:
    value = int(text)
    if value < 1:
        raise ValueError("takes a whole number >= 1")
    return value


CACHE_DIR: EnvVar[Path | None] = EnvVar(
    "CUTE_ATTN_CACHE_DIR", None, _path, "directory of the kernel cache (default: the user's cache)"
)
CACHE_PATH: EnvVar[tuple[Path, ...]] = EnvVar(
    "CUTE_ATTN_CACHE_PATH", (), _paths, "read-only cache directories searched first (':' between)"
)
CACHE: EnvVar[bool] = EnvVar("CUTE_ATTN_CACHE", True, _flag, "0: no disk cache, memory only")
NO_COMPILE: EnvVar[bool] = EnvVar(
    "CUTE_ATTN_NO_COMPILE", False, _flag, "1: a kernel that is in no cache is an error"
)
FORCE_COMPILE: EnvVar[bool] = EnvVar(
    "CUTE_ATTN_FORCE_COMPILE", False, _flag, "1: compile even when the cache has the kernel"
)
DUMP_DIR: EnvVar[Path | None] = EnvVar(
    "CUTE_ATTN_DUMP_DIR", None, _path, "write source, PTX, cubin and log of every compile here"
)
LINEINFO: EnvVar[bool] = EnvVar(
    "CUTE_ATTN_LINEINFO", False, _flag, "1: line numbers in cubins, for profilers"
)
COMPILE_JOBS: EnvVar[int | None] = EnvVar(
    "CUTE_ATTN_COMPILE_JOBS", None, _positive, "compile processes (default: by CPUs and free RAM)"
)
TOOLCHAIN: EnvVar[str | None] = EnvVar(
    "CUTE_ATTN_TOOLCHAIN",
    None,
    str,
    "compiler: a name as `info` shows it or its beginning, nvrtc or ptxas, or a recorded *.json",
)
WHEELS: EnvVar[tuple[Path, ...]] = EnvVar(
    "CUTE_ATTN_WHEELS", (), _paths, "take CUDA wheels from these directories, not from sys.path"
)
ARCH: EnvVar[str | None] = EnvVar(
    "CUTE_ATTN_ARCH", None, str, "architecture to assume where there is no GPU, e.g. sm_90a"
)
COST_FILE: EnvVar[Path | None] = EnvVar(
    "CUTE_ATTN_COST_FILE",
    None,
    _path,
    "constants for planning, from `cute-attn calibrate` (default: the user's for this GPU, if any)",
)
TUNE_DB: EnvVar[Path | None] = EnvVar(
    "CUTE_ATTN_TUNE_DB", None, _path, "directory of the user's own tuning records"
)

ALL: tuple[EnvVar[object], ...] = (
    CACHE_DIR,
    CACHE_PATH,
    CACHE,
    NO_COMPILE,
    FORCE_COMPILE,
    DUMP_DIR,
    LINEINFO,
    COMPILE_JOBS,
    TOOLCHAIN,
    WHEELS,
    ARCH,
    COST_FILE,
    TUNE_DB,
)


def table() -> list[tuple[str, str | None, str]]:
    """``(name, text set now or None, help)`` of every variable."""
    return [(var.name, os.environ.get(var.name), var.help) for var in ALL]
