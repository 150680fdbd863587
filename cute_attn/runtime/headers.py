"""Digests of the headers that a kernel sees, and a repair for one pair of versions.

Third-party headers are identified by the RECORD files of their wheels, which hold a sha256 per file
(a few milliseconds, no header is read). Our own headers are identified by content, and only those
that a source really includes: an edit recompiles the kernels that see it and no others. No absolute
path enters any digest, so a cache moved to another machine still hits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|(\w+))', re.MULTILINE)

# CUTLASS 4.2 declares std::tuple_size and std::tuple_element as variadic templates for NVRTC;
# libcudacxx since CCCL 13.2 declares them otherwise and the two clash. CUTLASS 4.7 dropped its
# declarations (NVIDIA/cutlass#3386).
_TUPLE_HEADERS = (
    "cute/container/array.hpp",
    "cute/container/array_subbyte.hpp",
    "cute/container/tuple.hpp",
    "cute/container/type_list.hpp",
    "cute/numeric/arithmetic_tuple.hpp",
)
_TUPLE_BLOCK = re.compile(
    r"#if defined\(__CUDACC_RTC__\)(?=\s*\ntemplate *<class\.\.\. _Tp>\s*\nstruct tuple_size;)"
)


def wheel_version(root: Path, package: str) -> str | None:
    """Version of the wheel ``package`` installed in the site directory ``root``, from its
    dist-info's name.
    """
    found = _dist_info(root, package)
    return found.name.removesuffix(".dist-info").rsplit("-", 1)[1] if found else None


def wheel_digest(root: Path, packages: Iterable[str], prefix: str = "") -> str:
    """sha256 over the header entries in the RECORDs of ``packages`` (paths below ``prefix``).

    A package without a RECORD (not installed as a wheel) contributes nothing.
    """
    lines: list[str] = []
    for package in packages:
        info = _dist_info(root, package)
        if info is None or not (info / "RECORD").is_file():
            continue
        text = (info / "RECORD").read_text()
        lines += [
            line
            for line in text.splitlines()
            if "/include/" in line and line.startswith(prefix) and ".pyc" not in line
        ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _dist_info(root: Path, package: str) -> Path | None:
    return next(iter(sorted(root.glob(f"{package.replace('-', '_')}-[0-9]*.dist-info"))), None)


def own_headers(source: str, include_dirs: Iterable[Path]) -> dict[str, bytes]:
    """Headers in ``include_dirs`` that ``source`` includes, directly or not: name -> content.

    Conditional includes count as taken. An include that none of the directories has belongs to a
    wheel and is left out. ``#include MACRO`` cannot be followed: then every file of the directories
    is in the result.
    """
    dirs = tuple(include_dirs)
    if not dirs:
        return {}
    found: dict[str, bytes] = {}
    pending: list[tuple[str, str]] = [
        ("", source)
    ]  # (directory part of the includer's name, its text)
    while pending:
        folder, text = pending.pop()
        for quoted, angled, macro in _INCLUDE.findall(text):
            if macro:
                return _all_files(dirs)
            names = [angled] if angled else [f"{folder}{quoted}", quoted]
            for name in names:
                path = next((d / name for d in dirs if (d / name).is_file()), None)
                if path is None:
                    continue
                if name not in found:
                    found[name] = path.read_bytes()
                    head, slash, _ = name.rpartition("/")
                    pending.append((head + slash, found[name].decode(errors="replace")))
                break
    return found


def _all_files(dirs: tuple[Path, ...]) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for folder in reversed(
            dirs
        )  # so that the first directory wins, as it does for the compiler
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def own_digest(source: str, include_dirs: Iterable[Path]) -> str:
    """sha256 over names and contents of `own_headers`."""
    return contents_digest(own_headers(source, include_dirs))


def contents_digest(found: dict[str, bytes]) -> str:
    """sha256 over names and contents."""
    digest = hashlib.sha256()
    for name, content in sorted(found.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@cache
def tuple_overlay(cutlass_include: Path) -> dict[str, str]:
    """CuTe headers without their clashing ``std::tuple_*`` declarations: name -> text.

    They are handed to NVRTC as in-memory headers, which go before every include directory; nothing
    is written. Empty when the installed CUTLASS has no such block any more.
    """
    overlay: dict[str, str] = {}
    for name in _TUPLE_HEADERS:
        path = cutlass_include / name
        if path.is_file():
            text, hits = _TUPLE_BLOCK.subn(
                "#if 0  // libcudacxx declares these itself", path.read_text()
            )
            if hits:
                overlay[name] = text
    return overlay


def text_digest(text: str) -> str:
    """16 hexadecimal digits of the sha256 of ``text``: enough to tell header sets apart and short
    to print.
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]
