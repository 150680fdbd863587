"""Where the files of constants are that `cute-attn calibrate` writes: one per kind of GPU."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

from cute_attn.runtime import env


def default_path(name: str, sms: int) -> Path:
    """The file of a GPU in the user's configuration directory, e.g.
    ``~/.config/cute_attn/costs/nvidia-h200-132-sms.json``; it need not exist.

    Args:
        name, sms: of the GPU, as CUDA names it.
    """
    import platformdirs  # not needed where a file is named

    directory = Path(platformdirs.user_config_dir("cute_attn", appauthor=False))
    return directory / "costs" / file_name(name, sms)


def file_name(name: str, sms: int) -> str:
    """Of a file about a kind of GPU, e.g. "nvidia-h200-132-sms.json"."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{slug}-{sms}-sms.json"


def find(name: str, sms: int, given: str | Path | None = None) -> Path | None:
    """The file for a GPU: the given one, else that of ``CUTE_ATTN_COST_FILE``, else the user's, if
    there is one. What is named is not looked for.

    Args:
        name, sms: of the GPU.
        given: a path, or None.
    """
    named = Path(given) if given is not None else env.COST_FILE.get()
    if named is not None:
        return named
    path = default_path(name, sms)
    return path if path.is_file() else None


def write(path: Path, text: str) -> None:
    """Writes a file so that readers see the old one or the new one, never a part.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with work.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)
