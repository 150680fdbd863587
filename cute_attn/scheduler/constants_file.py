"""Constants of a GPU as a JSON file: written by `cute-attn calibrate`, read when plans are made.

    {"schema": 1,
     "gpu": {"name": "NVIDIA H200", "sms": 132, "tflops": 796.0, ...},
     "kernels": {"hopper_tile": {"128": {"start_us": 3.5, ...}, ...}, ...},
     "made": {"date": "...", "driver": "...", ...}}

Every field is checked; an error names file and field. `made` says how the file came about, as
strings and numbers, and is only shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeAlias

from cute_attn.scheduler.constants import BUILT_IN, Constants, Gpu, KernelTimes

SCHEMA = 1
_AGAIN = "measure again with `cute-attn calibrate`"
_POSITIVE = (0.0, math.inf)
_RANGES: dict[str, tuple[float, float]] = {
    "tflops": _POSITIVE,
    "read_gbps": _POSITIVE,
    "sm_read_gbps": _POSITIVE,
    "item_us": _POSITIVE,
    "efficiency": (0.0, 2.0),  # of a matrix product, which may be the slower one
    "paged": (0.0, 1.0),
    "gather": (0.0, 1.0),
    "read_share": (0.0, 1.0),
    "sm_share": (0.0, 1.0),
}
"""More than the first number, and at most the second; others may be 0."""

Facts: TypeAlias = Mapping[str, str | int | float]


class ConstantsFileError(ValueError):
    """A file of constants that cannot be used: which file, which field, and why."""


def constants_text(constants: Constants, made: Facts) -> str:
    """The file of constants.

    Args:
        constants: of the GPU that `constants.gpu` names as CUDA does.
        made: how they came about.
    """
    kernels = {
        schedule: {str(dim): _rounded(asdict(times)) for dim, times in rows.items()}
        for schedule, rows in constants.times.items()
    }
    whole = {
        "schema": SCHEMA,
        "gpu": _rounded(asdict(constants.gpu)),
        "kernels": kernels,
        "made": dict(made),
    }
    return json.dumps(whole, indent=2) + "\n"


def read_constants(path: Path, *, name: str, sms: int) -> Constants:
    """The constants in a file, which must be those of a given GPU.

    Args:
        path: the file.
        name, sms: of the GPU, as CUDA names it.

    Raises:
        ConstantsFileError: there is no such file, a field is missing, unknown or out of range, or
            they are of another GPU.
    """
    constants, _ = read_file(path)
    gpu = constants.gpu
    if (gpu.name, gpu.sms) != (name, sms):
        raise ConstantsFileError(
            f"{path}: gpu.name and gpu.sms are {gpu.name!r} and {gpu.sms}, but the GPU is {name!r}"
            f" with {sms} SMs; {_AGAIN}"
        )
    return constants


def read_file(path: Path) -> tuple[Constants, dict[str, Any]]:
    """The constants in a file and how they came about.

    Raises:
        ConstantsFileError: as `read_constants`, of whatever GPU they are.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConstantsFileError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise ConstantsFileError(f"{path}: not JSON: {error}") from error
    reader = _Reader(path)
    reader.keys(whole, "the file", ("schema", "gpu", "kernels", "made"))
    if whole["schema"] != SCHEMA or isinstance(whole["schema"], bool):
        raise ConstantsFileError(
            f"{path}: schema is {whole['schema']!r}; this version reads {SCHEMA}; {_AGAIN}"
        )
    gpu = reader.gpu(whole["gpu"])
    families = tuple(BUILT_IN.times)
    reader.keys(whole["kernels"], "kernels", families)
    times = {name: reader.rows(whole["kernels"][name], f"kernels.{name}") for name in families}
    if not isinstance(whole["made"], dict):
        raise reader.error("made", whole["made"], "an object")
    return Constants(gpu, times, str(path)), whole["made"]


class _Reader:
    """Checks the values of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, field: str, value: object, takes: str) -> ConstantsFileError:
        return ConstantsFileError(f"{self.path}: {field} is {value!r}; it takes {takes}")

    def keys(self, value: object, field: str, wanted: tuple[str, ...]) -> None:
        """Exactly these fields."""
        if not isinstance(value, dict):
            raise self.error(field, value, "an object")
        prefix = "" if field == "the file" else f"{field}."
        for name in wanted:
            if name not in value:
                raise ConstantsFileError(f"{self.path}: {prefix}{name} is missing; {_AGAIN}")
        for name in value:
            if name not in wanted:
                known = ", ".join(wanted)
                raise ConstantsFileError(
                    f"{self.path}: {prefix}{name} is not known; {field} takes {known}"
                )

    def number(self, value: object, field: str) -> float:
        """A finite number within its range."""
        above, most = _RANGES.get(field.rpartition(".")[2], (-math.inf, math.inf))
        least = "more than 0" if above == 0 else "at least 0"
        limit = "" if most == math.inf else f" and at most {most:g}"
        takes = f"a number of {least}{limit}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(field, value, takes)
        if not (math.isfinite(value) and max(above, 0.0) <= value <= most) or value == above:
            raise self.error(field, value, takes)
        return float(value)

    def gpu(self, value: Any) -> Gpu:
        """The device."""
        self.keys(value, "gpu", tuple(field.name for field in fields(Gpu)))
        name, sms = value["name"], value["sms"]
        if not isinstance(name, str) or not name:
            raise self.error("gpu.name", name, "the name of a GPU")
        if isinstance(sms, bool) or not isinstance(sms, int) or sms < 1:
            raise self.error("gpu.sms", sms, "a whole number of at least 1")
        rates = ("tflops", "read_gbps", "sm_read_gbps")
        return Gpu(name, sms, *(self.number(value[rate], f"gpu.{rate}") for rate in rates))

    def rows(self, value: Any, field: str) -> dict[int, KernelTimes]:
        """Rows of a kernel family by head_dim, ascending."""
        if not isinstance(value, dict) or not value:
            raise self.error(field, value, "an object with a row for at least one head_dim")
        names = tuple(own.name for own in fields(KernelTimes))
        found = {}
        for dim, row in value.items():
            if not (dim.isascii() and dim.isdigit() and int(dim) > 0):
                raise ConstantsFileError(
                    f"{self.path}: {field}.{dim} is not known; its fields are head dims"
                )
            self.keys(row, f"{field}.{dim}", names)
            numbers = (self.number(row[name], f"{field}.{dim}.{name}") for name in names)
            found[int(dim)] = KernelTimes(*numbers)
        return dict(sorted(found.items()))


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Floats with five significant digits: what is measured is not known better."""
    return {
        name: float(f"{value:.5g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
