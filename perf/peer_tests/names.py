"""`import flashinfer` as `cute_attn.flashinfer`: modules that are made of ours.

Modules of FlashInfer that are not served exist, so that test files can be imported; what they hold
raises `Absent` when it is called.
"""

from __future__ import annotations

import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

import cute_attn.flashinfer

NAME = "flashinfer"


class Absent(NotImplementedError):
    """Something of FlashInfer was called that is not served."""


class _AbsentType(type):
    """Of classes that are not served: they can be named and annotated with, not made."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise Absent(f"{cls.__name__} is not served")


class AbsentModule(ModuleType):
    """A module in which every name is a class that raises `Absent` when it is called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AbsentType(f"{self.__name__}.{name}", (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules below `flashinfer`: ours where there is one, else an empty one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(NAME + "."):
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        own = f"cute_attn.{spec.name}"
        try:
            found = importlib.util.find_spec(own) is not None
        except ModuleNotFoundError:
            found = False
        return _like(spec.name, importlib.import_module(own)) if found else AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do."""


class _Like(AbsentModule):
    """A module with the names of another, and absent ones."""

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__["_own"]
        try:
            return getattr(own, name)
        except AttributeError:
            return super().__getattr__(name)


def _like(name: str, own: ModuleType) -> ModuleType:
    module = _Like(name)
    module.__dict__["_own"] = own
    return module


class MaskMode(enum.Enum):
    """Kinds of masks, by FlashInfer's numbers."""

    NON_CAUSAL = 0
    CAUSAL = 1
    CUSTOM = 2
    MULTIITEMSCORING = 3


class GPUArchitectureError(Exception):
    """What tests look for to skip themselves; never raised."""


def _utils() -> ModuleType:
    module = AbsentModule(f"{NAME}.utils")

    def get_compute_capability(device: Any) -> tuple[int, int]:
        return torch.cuda.get_device_capability(device)

    module.__dict__.update(
        MaskMode=MaskMode,
        GPUArchitectureError=GPUArchitectureError,
        get_compute_capability=get_compute_capability,
        has_flashinfer_jit_cache=lambda: True,  # nothing is to be compiled beforehand
        is_sm90a_supported=lambda device: get_compute_capability(device)[0] == 9,
        is_sm100a_supported=lambda device: get_compute_capability(device) == (10, 0),
        is_sm110a_supported=lambda device: get_compute_capability(device) == (11, 0),
    )
    return module


def _jit() -> dict[str, ModuleType]:
    names = ("jit", "jit.utils", "jit.attention", "jit.attention.variants")
    modules = {name: AbsentModule(f"{NAME}.{name}") for name in names}
    for name in names[1:]:
        parent, _, child = name.rpartition(".")
        modules[parent].__dict__[child] = modules[name]
    dtypes = {torch.float16: "f16", torch.bfloat16: "bf16"}
    modules["jit.utils"].__dict__["filename_safe_dtype_map"] = dtypes
    # The variant is known by its name; what stands here is not read.
    decl = {"fa2": "AttentionSink", "fa3": "AttentionSink"}
    modules["jit.attention.variants"].__dict__["attention_sink_decl"] = decl
    return modules


def install() -> ModuleType:
    """Puts the modules in place of whatever `flashinfer` is; the first of them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]
    top = _like(NAME, cute_attn.flashinfer)
    own = {"utils": _utils(), **_jit()}
    sys.modules[NAME] = top
    for name, module in own.items():
        sys.modules[f"{NAME}.{name}"] = module
        if "." not in name:
            top.__dict__[name] = module
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    return top
