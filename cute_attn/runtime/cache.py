"""The disk cache of kernels: content-addressed, safe under many processes, portable.

Layout of one cache directory::

    v1/<arch>/<key>/{kernel.cu, kernel.cubin, meta.json}   an entry, complete or absent
    v1/toolchains/<digest>.json                            every toolchain that made an entry here
    v1/locks, v1/tmp, v1/quarantine                        work in progress; damaged entries

An entry's meta.json is as old as its last use. `cache_upkeep` lists, checks and removes entries.

The key is a sha256 over source, architecture, options, entry name, toolchain and the contents of
our own headers that the source includes: no path, no time, no version of this package. Entries
appear by one atomic rename of a directory.

Carrying a cache: copy the directory and point ``CUTE_ATTN_CACHE_DIR`` or ``CUTE_ATTN_CACHE_PATH``
at it. Keys contain a toolchain, which the other machine need not have: it is read from
``v1/toolchains``. A directory in ``CUTE_ATTN_CACHE_PATH`` is trusted with any toolchain; the cache
directory itself only where nothing can compile or ``CUTE_ATTN_NO_COMPILE=1`` (else a developer's
new NVRTC would be masked by old cubins). See `build`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from cute_attn.runtime import env, headers
from cute_attn.runtime.compiler import CompileRequest
from cute_attn.runtime.kernel import CompiledKernel
from cute_attn.runtime.log import Resources
from cute_attn.runtime.toolchain import Toolchain

logger = logging.getLogger("cute_attn")

SCHEMA = "v1"
_LOCK_SECONDS = 120.0


@dataclass(frozen=True)
class RequestDigest:
    """The toolchain-independent part of a request's key, computed once per look-up."""

    content: str

    @classmethod
    def of(cls, request: CompileRequest) -> RequestDigest:
        options = request.all_options()
        own = headers.own_digest(request.source, request.include_dirs)
        return cls.of_parts(request.source, request.arch, request.name, options, own)

    @classmethod
    def of_parts(
        cls, source: str, arch: str, name: str, options: Iterable[str], own_headers: str
    ) -> RequestDigest:
        """The same from what an entry holds; `own_headers`: `headers.own_digest`."""
        return cls(_digest((SCHEMA, source, arch, name, *options, own_headers)))

    def key(self, toolchain: Toolchain) -> str:
        return _digest((self.content, toolchain.identity))


def _digest(parts: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cache_key(request: CompileRequest, toolchain: Toolchain) -> str:
    """Key of ``request`` compiled by ``toolchain``: 64 hexadecimal digits."""
    return RequestDigest.of(request).key(toolchain)


def default_directory() -> Path:
    """``CUTE_ATTN_CACHE_DIR``, else the user's cache directory (``~/.cache/cute_attn``)."""
    named = env.CACHE_DIR.get()
    if named is not None:
        return named
    import platformdirs  # not needed where a carried cache is named

    return Path(platformdirs.user_cache_dir("cute_attn", appauthor=False))


class DiskCache:
    """One cache directory. Failing to write is never fatal: one warning, kernels stay in memory.

    Args:
        directory: need not exist; made at the first `store`.
        read_only: never write: no locks, no quarantine.
    """

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        self.directory = directory
        self.read_only = read_only
        self._root = directory / SCHEMA
        self._warned = False

    def entry(self, arch: str, key: str) -> Path:
        """Where the entry is, or would be."""
        return self._root / arch / key

    def usage(self) -> tuple[int, int]:
        """(entries, bytes) of the kernels stored here; (0, 0) where there is no directory."""
        entries = num_bytes = 0
        for meta in self._root.glob("sm_*/*/meta.json"):
            with suppress(OSError):  # another process may be moving a damaged entry away
                num_bytes += sum(file.stat().st_size for file in meta.parent.iterdir())
                entries += 1
        return entries, num_bytes

    def lookup(
        self, request: CompileRequest, toolchain: Toolchain, key: str
    ) -> CompiledKernel | None:
        """The stored kernel, checked by size and sha256; None if absent. A damaged entry is moved
        away and None.
        """
        entry = self.entry(request.arch, key)
        if not entry.exists():
            return None
        try:
            found = self._read(entry, request, toolchain)
        except (OSError, KeyError, TypeError, ValueError) as error:
            if not entry.exists():  # removed while it was read
                return None
            logger.warning("damaged cache entry %s (%r): treated as absent", entry, error)
            self._quarantine(entry)
            return None
        if not self.read_only:
            with suppress(OSError):
                os.utime(entry / "meta.json")
        return found

    def _read(self, entry: Path, request: CompileRequest, toolchain: Toolchain) -> CompiledKernel:
        meta = json.loads((entry / "meta.json").read_bytes())
        cubin = (entry / "kernel.cubin").read_bytes()
        size, sha256 = meta["cubin"]["size"], meta["cubin"]["sha256"]
        if len(cubin) != size or hashlib.sha256(cubin).hexdigest() != sha256:
            raise ValueError(f"kernel.cubin ({len(cubin)} bytes) is not the one stored ({size})")
        return CompiledKernel(
            request=request,
            toolchain=toolchain,
            cubin=cubin,
            log=str(meta["log"]),
            resources=Resources.from_json(meta["resources"]),
            compile_seconds=float(meta["seconds"]),
            from_cache=True,
        )

    def _quarantine(self, entry: Path) -> None:
        if self.read_only:
            return
        try:
            quarantine = self._root / "quarantine"
            quarantine.mkdir(exist_ok=True)
            entry.rename(quarantine / f"{entry.name}-{uuid.uuid4().hex[:8]}")
        except OSError as error:  # another process was faster, or the directory cannot be written
            logger.debug("cannot move %s away: %s", entry, error)

    def store(self, kernel: CompiledKernel, key: str) -> None:
        """Publish ``kernel`` under ``key``; losing a race against an equal entry is success."""
        if self.read_only:
            return
        entry = self.entry(kernel.arch, key)
        work = self._root / "tmp" / uuid.uuid4().hex
        request = kernel.request
        meta = {
            "key": key,
            "name": kernel.name,
            "arch": kernel.arch,
            "source": {"sha256": hashlib.sha256(kernel.source.encode()).hexdigest()},
            "own_headers": sorted(headers.own_headers(request.source, request.include_dirs)),
            "options": list(request.all_options()),
            "toolchain": kernel.toolchain.to_json(),
            "resources": kernel.resources.to_json(),
            "seconds": round(kernel.compile_seconds, 4),
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "cubin": {
                "size": len(kernel.cubin),
                "sha256": hashlib.sha256(kernel.cubin).hexdigest(),
            },
            "log": kernel.log,
        }
        try:
            work.mkdir(parents=True)
            try:
                _write(work / "kernel.cu", kernel.source.encode())
                _write(work / "kernel.cubin", kernel.cubin)
                _write(work / "meta.json", json.dumps(meta, indent=1).encode())
                self._record(kernel.toolchain)
                entry.parent.mkdir(parents=True, exist_ok=True)
                work.rename(entry)
                _sync_directory(entry.parent)
            finally:
                shutil.rmtree(work, ignore_errors=True)  # gone already unless something failed
        except OSError as error:
            if not (entry / "meta.json").is_file():
                self._warn(error)

    def _record(self, toolchain: Toolchain) -> None:
        path = self._root / "toolchains" / f"{headers.text_digest(toolchain.identity)}.json"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            work = path.with_suffix(f".{uuid.uuid4().hex[:8]}.tmp")
            _write(work, json.dumps(toolchain.to_json(), indent=1).encode())
            work.replace(path)

    def recorded_toolchains(self) -> tuple[Toolchain, ...]:
        """Toolchains that made entries here, without `tools`; damaged records are skipped with a
        warning.
        """
        found = []
        for path in sorted(self._root.glob("toolchains/*.json")):
            try:
                found.append(Toolchain.from_json(json.loads(path.read_bytes())))
            except (OSError, ValueError) as error:
                logger.warning("unreadable toolchain record %s: %s", path, error)
        return tuple(found)

    def remove(self, entry: Path) -> bool:
        """Removes an entry (of `entry`) as one step, beside processes that read or compile it.

        Returns:
            False if a process is compiling it now, or it is gone already.

        Raises:
            OSError: it cannot be removed.
        """
        path = self._root / "locks" / f"{entry.name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return False
        grave = self._root / "tmp" / uuid.uuid4().hex
        try:
            grave.parent.mkdir(exist_ok=True)
            entry.rename(grave)
            # Whoever waits for this very file compiles beside one who makes a new one: both store
            # the same.
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return False
        finally:
            lock.release()
        shutil.rmtree(grave, ignore_errors=True)  # what stays is a leftover
        return True

    def lock(self, key: str) -> FileLock | None:
        """An acquired lock for compiling ``key``, to be released; None if none is to be had
        (compile anyway).
        """
        if self.read_only:
            return None
        path = self._root / "locks" / f"{key}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path, timeout=_LOCK_SECONDS)
            lock.acquire()
        except Timeout:
            logger.warning("waited %.0f s for %s: compiling without it", _LOCK_SECONDS, path)
            return None
        except OSError as error:
            self._warn(error)
            return None
        return lock

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "cannot write the kernel cache %s (%s): kernels stay in memory; "
                "set CUTE_ATTN_CACHE_DIR to a writable directory",
                self.directory,
                error,
            )


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
