"""Where databases are, and how several processes write one without losing what others found.

The user's: in `CUTE_ATTN_TUNE_DB`, else in the configuration directory. Those that come with the
package: cute_attn/tuning/data. Of entries for the same steps the user's are taken. A file is named
after its GPU; others are not looked into.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from filelock import FileLock

from cute_attn.runtime import cost_files, env
from cute_attn.tuning.database import Database, DatabaseError, Entry

logger = logging.getLogger("cute_attn")

SHIPPED = Path(__file__).parent / "data"
"""The databases that come with the package."""


def default_path(name: str, sms: int) -> Path:
    """The user's database of a GPU; it need not exist.

    Args:
        name, sms: of the GPU, as CUDA names it.
    """
    return _user_directory() / cost_files.file_name(name, sms)


def _user_directory() -> Path:
    directory = env.TUNE_DB.get()
    if directory is not None:
        return directory
    import platformdirs  # not needed where a directory is named

    return Path(platformdirs.user_config_dir("cute_attn", appauthor=False)) / "tuning"


def read(path: Path) -> Database:
    """A database, of whatever GPU it is.

    Raises:
        DatabaseError: it cannot be read, or it is none; the message names the file.
    """
    try:
        return Database.of_text(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DatabaseError(f"{path}: cannot be read: {error}") from error
    except DatabaseError as error:
        raise DatabaseError(f"{path}: {error}") from error


def read_for_gpu(path: Path, name: str, sms: int) -> Database:
    """The database of a GPU.

    Raises:
        DatabaseError: see `read`; or it is of another GPU.
    """
    found = read(path)
    if (found.name, found.sms) != (name, sms):
        raise DatabaseError(
            f"{path}: measured on {found.name!r} with {found.sms} SMs, but the GPU is {name!r} with"
            f" {sms}"
        )
    return found


def known_of(name: str, sms: int) -> Database | None:
    """What plans on a GPU look into: the shipped database, and the user's laid over it. One that
    cannot be used is ignored, and said so once.

    Args:
        name, sms: of the GPU.
    """
    found: Database | None = None
    for place in (SHIPPED / cost_files.file_name(name, sms), default_path(name, sms)):
        one = _usable(place, _changed(place), name, sms)
        if one is not None:
            found = one if found is None else found.with_entries(one.entries.values())
    return found


def places() -> list[Path]:
    """Files of the package, then the user's."""
    return [
        path
        for directory in (SHIPPED, _user_directory())
        for path in sorted(directory.glob("*.json"))
    ]


def is_named_after_its_gpu(path: Path, database: Database) -> bool:
    """Whether plans look into a file, as far as its name is concerned."""
    return path.name == cost_files.file_name(database.name, database.sms)


def known_of_arch(arch: str) -> list[Database]:
    """What plans on GPUs of an architecture look into, one database a kind of GPU."""
    gpus = set()
    for path in places():
        with suppress(DatabaseError):  # which plans ignore, and say so
            one = read(path)
            if one.arch == arch and is_named_after_its_gpu(path, one):
                gpus.add((one.name, one.sms))
    return [found for gpu in sorted(gpus) if (found := known_of(*gpu)) is not None]


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@lru_cache(maxsize=32)
def _usable(path: Path, changed: int | None, name: str, sms: int) -> Database | None:
    if changed is None:
        return None
    try:
        return read_for_gpu(path, name, sms)
    except DatabaseError as error:
        logger.warning("tune database ignored: %s", error)
        return None


def store(path: Path, entries: Iterable[Entry], *, name: str, sms: int, arch: str) -> Database:
    """Adds entries to a database, which others may write at the same time.

    Args:
        path: the file; made if there is none.
        entries: what is new.
        name, sms, arch: of the GPU.

    Returns:
        what the file holds now.

    Raises:
        DatabaseError: there is a file that is no database of this GPU and version: it is left
            alone.
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        start = Database(name, sms, arch, {})
        known = read_for_gpu(path, name, sms) if path.exists() else start
        known = known.with_entries(entries)
        cost_files.write(path, known.text())
    return known
