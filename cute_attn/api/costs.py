"""Which constants plans on a GPU are made with: those of a file, or the built-in ones."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from cute_attn.runtime import cost_files
from cute_attn.runtime.device import DeviceInfo
from cute_attn.scheduler import BUILT_IN, Constants
from cute_attn.scheduler.constants_file import read_constants


def constants_of(info: DeviceInfo, given: str | Path | Constants | None = None) -> Constants:
    """The constants of a device.

    Args:
        info: the device.
        given: these, or those in this file; default: the file of CUTE_ATTN_COST_FILE, else the one
            that `cute-attn calibrate` has written for GPUs of this name and number of SMs, else
            none: the built-in ones.

    Raises:
        ConstantsFileError: the file cannot be used.
    """
    if isinstance(given, Constants):
        return given
    path = cost_files.find(info.name, info.num_sms, given)
    if path is None:
        return BUILT_IN
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0  # to be refused
    return _read(path, changed, info.name, info.num_sms)


@lru_cache(maxsize=16)
def _read(path: Path, changed: int, name: str, sms: int) -> Constants:
    return read_constants(path, name=name, sms=sms)
