"""A cache directory looked after: what is in it, what is damaged, what nobody will look up again.

Everything here may run beside processes that use the cache: entries appear and go as a whole (see
`cache`), and one that goes while it is looked at is left out.
"""

from __future__ import annotations

import calendar
import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cute_attn.runtime import headers
from cute_attn.runtime.cache import SCHEMA, DiskCache, RequestDigest
from cute_attn.runtime.toolchain import Toolchain

_KEY = re.compile(r"[0-9a-f]{64}")
_WORK_SECONDS = 3600.0  # the longest that writing an entry can take
_LOCK_SECONDS = 24 * 3600.0  # a lock older than this is nobody's


@dataclass(frozen=True)
class Entry:
    """One kernel of a cache.

    Attributes:
        path: its directory.
        arch: what it was compiled for.
        name: the kernel's symbol; "?" if its meta.json cannot be read.
        num_bytes: of its files.
        created, used: seconds since the epoch; of the compile and of the last look-up.
        toolchain: what made it; None if its meta.json cannot be read.
        problem: why its meta.json cannot be read, or None.
    """

    path: Path
    arch: str
    name: str
    num_bytes: int
    created: float
    used: float
    toolchain: Toolchain | None
    problem: str | None = None

    @property
    def key(self) -> str:
        return self.path.name


def entries(directory: Path) -> list[Entry]:
    """All kernels of a cache directory, least recently used first; none where it is absent."""
    found = []
    for path in (directory / SCHEMA).glob("sm_*/*"):
        with suppress(FileNotFoundError, NotADirectoryError):  # removed meanwhile; no entry
            found.append(_entry(path))
    return sorted(found, key=lambda entry: (entry.used, entry.key))


def _entry(path: Path) -> Entry:
    files = [file.stat() for file in path.iterdir()]
    num_bytes = sum(file.st_size for file in files)
    used = path.stat().st_mtime
    try:
        used = (path / "meta.json").stat().st_mtime
        meta = json.loads((path / "meta.json").read_bytes())
        toolchain = Toolchain.from_json(meta["toolchain"])
        name, created = str(meta["name"]), _seconds(meta["created"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        path.stat()  # gone as a whole: no entry
        problem = f"meta.json: {error!r}"
        return Entry(path, path.parent.name, "?", num_bytes, used, used, None, problem)
    return Entry(path, path.parent.name, name, num_bytes, created, used, toolchain)


def _seconds(text: str) -> float:
    """Seconds since the epoch of the time stamp in a meta.json."""
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))


def damage(entry: Entry) -> str | None:
    """What is wrong with an entry, all of it read and compared with its checksums; None: nothing.

    One that has gone meanwhile is not damaged.
    """
    if entry.problem is not None:
        return entry.problem
    try:
        meta = json.loads((entry.path / "meta.json").read_bytes())
        return _damage(entry, meta)
    except (OSError, KeyError, TypeError, ValueError) as error:
        text = str(error) if isinstance(error, OSError) else repr(error)
        return text if entry.path.exists() else None


def _damage(entry: Entry, meta: dict[str, Any]) -> str | None:
    if not _KEY.fullmatch(entry.key) or meta["key"] != entry.key:
        return f"meta.json is of key {meta['key']}"
    if meta["arch"] != entry.arch:
        return f"meta.json is of {meta['arch']}, in the folder of {entry.arch}"
    cubin = (entry.path / "kernel.cubin").read_bytes()
    if len(cubin) != meta["cubin"]["size"]:
        return f"kernel.cubin has {len(cubin)} bytes, {meta['cubin']['size']} were stored"
    if hashlib.sha256(cubin).hexdigest() != meta["cubin"]["sha256"]:
        return "kernel.cubin: other bytes than were stored (sha256)"
    source = (entry.path / "kernel.cu").read_bytes()
    recorded = meta.get("source")  # since entries record it
    if recorded is not None and hashlib.sha256(source).hexdigest() != recorded["sha256"]:
        return "kernel.cu: other text than was stored (sha256)"
    return None


def outdated(
    entry: Entry, include_dirs: Sequence[Path], toolchains: Sequence[Toolchain]
) -> str | None:
    """Why no process with these headers and compilers looks an entry up; None: one may.

    A source that the generator would write otherwise today cannot be told from one that it would
    write again: such entries only grow old.

    Args:
        entry: of `entries`; damaged ones are not outdated.
        include_dirs: our own header directories.
        toolchains: what can compile here; empty: any compiler's kernels are taken.
    """
    if entry.toolchain is None:
        return None
    if toolchains and entry.toolchain not in toolchains:
        return f"compiler {entry.toolchain} is not installed, or its headers are others"
    try:
        meta = json.loads((entry.path / "meta.json").read_bytes())
        source = (entry.path / "kernel.cu").read_text()
        own = headers.own_headers(source, include_dirs)
        if not set(meta.get("own_headers", ())) <= own.keys():
            return None  # it includes headers from elsewhere
        digest = headers.contents_digest(own)
        content = RequestDigest.of_parts(source, entry.arch, entry.name, meta["options"], digest)
    except (OSError, KeyError, TypeError, ValueError):
        return None
    if content.key(entry.toolchain) != entry.key:
        return "headers that it includes are others now"
    return None


@dataclass(frozen=True)
class Leftover:
    """Something in a cache directory that is no entry and that nobody needs.

    Attributes:
        path: file or directory.
        what: "damaged, moved away", "broken off while it was written" or "old lock".
        num_bytes: of it and all in it.
    """

    path: Path
    what: str
    num_bytes: int


def leftovers(directory: Path, *, now: float | None = None) -> list[Leftover]:
    """What `remove_leftover` may remove: quarantined entries, and work and locks so old that no
    process can be at it."""
    now = time.time() if now is None else now
    places = (
        ("quarantine", "damaged, moved away", 0.0),
        ("tmp", "broken off while it was written", _WORK_SECONDS),
        ("locks", "old lock", _LOCK_SECONDS),
    )
    found = []
    for folder, what, least_age in places:
        for path in sorted((directory / SCHEMA / folder).glob("*")):
            with suppress(FileNotFoundError):
                if now - path.stat().st_mtime >= least_age:
                    found.append(Leftover(path, what, _tree_bytes(path)))
    return found


def _tree_bytes(path: Path) -> int:
    files: Iterable[Path] = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())


def remove_leftover(leftover: Leftover) -> bool:
    """Removes a leftover.

    Returns:
        False if it is gone already, or a lock that somebody holds.

    Raises:
        OSError: it cannot be removed.
    """
    path = leftover.path
    if not path.exists():
        return False
    try:
        if path.is_dir():
            shutil.rmtree(path)
            return True
        with FileLock(path, timeout=0):
            path.unlink()
        return True
    except (FileNotFoundError, Timeout):
        return False


def beyond(found: Sequence[Entry], max_bytes: int) -> list[Entry]:
    """Of entries in the order of `entries`: the least recently used ones without which the rest
    has at most `max_bytes`."""
    total = sum(entry.num_bytes for entry in found)
    chosen = []
    for entry in found:
        if total <= max_bytes:
            break
        chosen.append(entry)
        total -= entry.num_bytes
    return chosen


def remove(directory: Path, chosen: Iterable[Entry]) -> list[Entry]:
    """Removes entries; those that a process is compiling at this moment stay.

    Returns:
        what was removed.

    Raises:
        OSError: the directory cannot be written.
    """
    cache = DiskCache(directory)
    return [entry for entry in chosen if cache.remove(entry.path)]
