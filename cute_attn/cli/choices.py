"""Values of options that take one of a few words."""

from __future__ import annotations

from enum import Enum


class Arch(str, Enum):
    """Architecture of a GPU."""

    SM_80 = "sm_80"
    SM_86 = "sm_86"
    SM_89 = "sm_89"
    SM_90 = "sm_90"
    SM_90A = "sm_90a"


class Dtype(str, Enum):
    """Element type of q, k and v; and of out, which is bf16 for e4m3."""

    BF16 = "bf16"
    FP16 = "fp16"
    E4M3 = "e4m3"


class Schedule(str, Enum):
    """Kernel family."""

    HOPPER_TILE = "hopper_tile"
    HOPPER_MLA = "hopper_mla"
    AMPERE_TILE = "ampere_tile"
    AMPERE_DECODE = "ampere_decode"


class View(str, Enum):
    """What `show` prints."""

    SOURCE = "source"
    RESOURCES = "resources"
    MIX = "mix"
    LOOP = "loop"
    SASS = "sass"
    PTX = "ptx"
    PLAN = "plan"
    VARIANT = "variant"


class Device(str, Enum):
    """Where the demo runs."""

    CUDA = "cuda"
    CPU = "cpu"
