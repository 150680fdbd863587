"""From a request to a kernel: memory, read-only caches, the disk cache, and only then a compiler.

Callers need `build_kernel` only. One process compiles a key at a time (a lock per key, looked up
again once held); a line is logged before every compile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from cute_attn.runtime import env
from cute_attn.runtime.cache import DiskCache, RequestDigest, default_directory
from cute_attn.runtime.compiler import CompileRequest, compile_source
from cute_attn.runtime.errors import CacheMissError, ToolchainError
from cute_attn.runtime.kernel import CompiledKernel
from cute_attn.runtime.toolchain import (
    Toolchain,
    available_toolchains,
    default_toolchain,
    rank,
    read_toolchain,
    wanted_toolchain,
)

logger = logging.getLogger("cute_attn")

_memory: dict[str, CompiledKernel] = {}
_memory_lock = threading.Lock()
_caches: dict[tuple[Path, bool], DiskCache] = {}


def build_kernel(request: CompileRequest, *, pch_dir: Path | None = None) -> CompiledKernel:
    """The kernel of ``request``: from memory, from disk, or compiled now and stored.

    Equal requests give the same object within a process. ``pch_dir`` is for compile workers (see
    `pool`).

    Raises:
        CacheMissError: it would have to be compiled, and ``CUTE_ATTN_NO_COMPILE=1``.
        CompileError: it does not compile.
        ToolchainError: it is in no cache and nothing here can compile.
    """
    digest = RequestDigest.of(request)
    found = _find(request, digest)
    if found is None:
        found = _compile(request, digest, pch_dir)
    with _memory_lock:
        return _memory.setdefault(digest.key(found.toolchain), found)


def find_kernel(request: CompileRequest) -> CompiledKernel | None:
    """The kernel of ``request`` if memory or a cache has it; never compiles."""
    return _find(request, RequestDigest.of(request))


def toolchain_in_use() -> Toolchain | None:
    """The one that compiles what names none; None if nothing here can compile."""
    record = read_toolchain()
    if record is not None:
        return next((t for t in available_toolchains() if t == record), record)
    try:
        return default_toolchain()
    except ToolchainError:
        return None


def known_toolchains() -> tuple[Toolchain, ...]:
    """Toolchains that are installed, best first, then those that are recorded in the caches, which
    may hold kernels of them."""
    caches = [cache for cache in (*search_path(), disk_cache()) if cache is not None]
    recorded = [t for cache in caches for t in cache.recorded_toolchains()]
    return tuple(dict.fromkeys([*available_toolchains(), *sorted(recorded, key=rank)]))


def toolchain_named(name: str) -> Toolchain | None:
    """The known toolchain of this name, or None."""
    return next((t for t in known_toolchains() if t.name == name), None)


def remember(kernel: CompiledKernel) -> CompiledKernel:
    """Keep a kernel that another process built, so that `build_kernel` finds it in memory."""
    key = RequestDigest.of(kernel.request).key(kernel.toolchain)
    with _memory_lock:
        return _memory.setdefault(key, kernel)


def forget_kernels() -> None:
    """Empty the memory of this process; disk caches stay."""
    with _memory_lock:
        _memory.clear()


def disk_cache() -> DiskCache | None:
    """The cache that kernels are stored in; None with ``CUTE_ATTN_CACHE=0``."""
    return _cache(default_directory(), read_only=False) if env.CACHE.get() else None


def search_path() -> tuple[DiskCache, ...]:
    """The read-only caches of ``CUTE_ATTN_CACHE_PATH``, looked into first."""
    return tuple(_cache(path, read_only=True) for path in env.CACHE_PATH.get())


def _cache(directory: Path, *, read_only: bool) -> DiskCache:
    # Kept, so that an unwritable directory is warned about once.
    return _caches.setdefault((directory, read_only), DiskCache(directory, read_only=read_only))


def _find(request: CompileRequest, digest: RequestDigest) -> CompiledKernel | None:
    for cache, toolchain in _places(request):
        key = digest.key(toolchain)
        found = _memory.get(key)
        if found is None and cache is not None and not env.FORCE_COMPILE.get():
            found = cache.lookup(request, toolchain, key)
        if found is not None:
            logger.debug("kernel %s (%s, %s): cached", request.name, request.arch, toolchain)
            return found
    return None


def _places(request: CompileRequest) -> Iterator[tuple[DiskCache | None, Toolchain]]:
    """Where to look for ``request``, and for which toolchain's cubin there, in order."""
    installed = _installed(request)
    own = [installed] if installed else []
    for cache in search_path():
        for toolchain in [*own, *_recorded(cache, request)]:
            yield cache, toolchain
    cache_dir = disk_cache()
    for toolchain in own:
        yield cache_dir, toolchain
    if cache_dir is not None and (not own or env.NO_COMPILE.get()):
        for toolchain in _recorded(cache_dir, request):
            yield cache_dir, toolchain


def _installed(request: CompileRequest) -> Toolchain | None:
    """The toolchain that would compile ``request`` here; None if nothing can."""
    return toolchain_in_use() if request.toolchain is None else request.toolchain


def _recorded(cache: DiskCache, request: CompileRequest) -> list[Toolchain]:
    """Toolchains recorded in ``cache`` that the request and the environment allow, best first."""
    if request.toolchain is not None or read_toolchain() is not None:
        return []
    return sorted((t for t in cache.recorded_toolchains() if wanted_toolchain(t)), key=rank)


def _compile(
    request: CompileRequest, digest: RequestDigest, pch_dir: Path | None
) -> CompiledKernel:
    what = f"kernel {request.name} for {request.arch}"
    if env.NO_COMPILE.get():
        places = [str(c.directory) for c in (*search_path(), disk_cache()) if c is not None]
        raise CacheMissError(
            f"{what} is in no cache ({', '.join(places) or 'none in use'}) and "
            "CUTE_ATTN_NO_COMPILE=1 forbids compiling it: warm the cache up with the same version "
            "of this package"
        )
    toolchain = _installed(request) or default_toolchain()
    key = digest.key(toolchain)
    cache = disk_cache()
    lock = cache.lock(key) if cache is not None else None
    try:
        if cache is not None and not env.FORCE_COMPILE.get():
            found = cache.lookup(request, toolchain, key)  # another process may have been faster
            if found is not None:
                return found
        where = cache.entry(request.arch, key) if cache is not None else "memory"
        logger.info("compiling %s with %s (in no cache) -> %s", what, toolchain, where)
        compiled = compile_source(request.with_toolchain(toolchain), pch_dir=pch_dir)
        kernel = CompiledKernel.of(compiled)
        logger.info("compiled %s in %.2f s", what, kernel.compile_seconds)
        for reason in kernel.lint():
            logger.warning("%s: %s", what, reason)
        if cache is not None:
            cache.store(kernel, key)
        return kernel
    finally:
        if lock is not None:
            lock.release()
