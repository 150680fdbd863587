"""A pytest plugin that runs tests without a GPU, and notes the kernels that an H200 would need.

Floating-point tensors have no contents (torch's "meta" device), index tensors are on the host, and
comparisons hold. Plans choose their kernels as they do on the GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from cute_attn import KernelSpec, UnsupportedSpecError, warmup
from cute_attn.api import dispatch, one_shot
from cute_attn.api.kernel import launched_with
from cute_attn.api.kernel_choice import KernelChoice
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import make_step
from cute_attn.codegen.kernels import (
    emit_append,
    emit_copy_rows,
    emit_merge_rows,
    emit_merge_states,
)
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.flashinfer import engines, page
from cute_attn.flashinfer import states as own_states
from cute_attn.runtime.device import DeviceInfo
from cute_attn.scheduler import BUILT_IN
from perf.peer_tests import plugin
from perf.peer_tests.kernels import COMPILE, FOUND
from perf.peer_tests.pretend import pretend

pytest_configure = plugin.pytest_configure
pytest_collection_modifyitems = plugin.pytest_collection_modifyitems

_H200 = DeviceInfo(
    index=0,
    name="NVIDIA H200",
    arch="sm_90a",
    num_sms=132,
    smem_per_block_optin=232448,
    smem_per_sm=233472,
    registers_per_sm=65536,
    l2_bytes=60 << 20,
    memory_bytes=140 << 30,
    driver="13.0",
)
_SMALL_ARCH = dispatch.emitter_arch(_H200.arch, dispatch.AMPERE_DECODE)
_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}

found: dict[str, KernelSpec | GeneratedKernel] = {}
cases: Counter[str] = Counter()
untraced: Counter[str] = Counter()


def note(kernel: KernelSpec | GeneratedKernel) -> None:
    """A kernel that is needed, and those that are launched with it."""
    if kernel.name not in found:
        found[kernel.name] = kernel
        if isinstance(kernel, KernelSpec):
            for small in launched_with(kernel):
                found.setdefault(small.name, small)


class DryBatch:
    """`BatchAttention` that chooses kernels and launches none."""

    def __init__(self, *sizes: Any, **options: Any) -> None:
        for name in ("max_requests", "max_pages", "workspace", "costs", "bundle", "tuning"):
            options.pop(name, None)
        self._fixed = bool(options.pop("cuda_graph", False))
        schedule = options.pop("schedule", None)
        invariant = options.pop("batch_invariant", False)
        options["device"] = "cpu"
        defaults: dict[str, Any] = {
            "head_dim_vo": None, "dtype": torch.bfloat16, "variant": "causal", "sm_scale": None,
            "kv_layout": "NHD",
        }  # fmt: skip
        self._shape = BatchShape.checked(*sizes, **{**defaults, **options})
        self._backend = SimpleNamespace(constants=BUILT_IN)
        make = {"batch_invariant": invariant, "tuned": None}
        self._choice = KernelChoice(self._shape, _H200, BUILT_IN, schedule=schedule, **make)
        decodes = dispatch.AMPERE_DECODE
        self._decodes = KernelChoice(self._shape, _H200, BUILT_IN, schedule=decodes, **make)
        self._kept: Any = None

    @property
    def device(self) -> torch.device:
        """As a GPU's object has it."""
        return self._shape.device

    def workspace_size(self, page_size: int | None = None) -> int:
        """Some."""
        return 1 << 20

    def plan(self, qo_indptr: Any, kv: Any, *, scalars: Any = None, **rest: Any) -> DryBatch:
        """Notes the kernels of a step."""
        if self._fixed and self._kept is not None:
            return self  # graphs keep their kernels
        step = make_step(qo_indptr, kv, self._shape.variant, scalars, self._shape.device)
        split = None if self._fixed else self._choice.split(step)
        if split is None:
            note(self._choice.spec_of(step, _H200.num_sms))
        else:
            note(self._choice.spec_of(split.prefill, split.prefill_sms))
            left = _H200.num_sms - split.prefill_sms or _H200.num_sms
            note(self._decodes.spec_of(split.decode, left))
        self._kept = step
        return self

    def run(self, q: Any, k: Any, v: Any = None, *, out: Any = None, lse: Any = None,
            return_lse: bool = False, **rest: Any) -> Any:  # fmt: skip
        """Results without contents."""
        size = (q.shape[0], self._shape.num_qo_heads)
        dim = self._shape.head_dim_vo
        out = torch.empty((*size, dim), dtype=q.dtype, device="meta") if out is None else out
        if not return_lse and lse is None:
            return out
        return out, torch.empty(size, device="meta") if lse is None else lse


class DryComposite(DryBatch):
    """`CompositeAttention`, as one batch of ranges."""

    def plan(self, qo_indptr: Any, kv: Any, *, scalars: Any = None, **rest: Any) -> DryBatch:
        """Notes the kernels of a step in levels."""
        from cute_attn.api.step import band_of
        from cute_attn.formats.errors import indptr
        from cute_attn.formats.stack import stack

        _, band = band_of(self._shape.variant, scalars)
        steps = stack(kv, indptr("qo_indptr", qo_indptr), band)
        note(emit_copy_rows(_SMALL_ARCH, self._shape.head_dim_qk))
        note(emit_merge_rows(_SMALL_ARCH, _NAMES[self._shape.dtype], self._shape.head_dim_vo))
        return super().plan(None, steps.kv, scalars=scalars)


def _merge_states(v: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    note(emit_merge_states(_SMALL_ARCH, _NAMES[v.dtype], int(v.shape[-1])))
    return v[0], torch.empty(v.shape[1:3], device="meta")


def _append(key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any) -> None:
    dims = int(key.shape[-1]), int(value.shape[-1])
    note(emit_append(_SMALL_ARCH, _NAMES[key.dtype], *dims))


_BIG, _SMALL = 1 << 22, 1 << 14
_FLOATS = ("randn", "empty", "zeros", "ones", "full", "randn_like", "empty_like", "rand")
_FLOATING = (None, torch.float16, torch.bfloat16, torch.float32, torch.float64)
_GPU = ("cuda", "meta")


class OnNothing(TorchFunctionMode):
    """Sends floating-point tensors to "meta", and all others to the host."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("equal", "allclose") or (name == "__bool__" and args[0].is_meta):
            return True
        if name == "any" and args[0].is_meta:
            return torch.tensor(False)
        if name in ("cpu", "pin_memory") and args[0].is_meta:
            return args[0]
        if name == "item" and args[0].is_meta:
            return 1.0
        if name in ("nonzero", "numpy") and args[0].is_meta:
            empty = torch.zeros(args[0].shape if name == "numpy" else (0, args[0].dim()))
            return empty.numpy() if name == "numpy" else empty.long()
        if name in ("to", "cuda") and args and isinstance(args[0], torch.Tensor):
            return self._moved(func, name, args, kwargs)
        if name == "pin_memory":
            return args[0]
        device = kwargs.get("device")
        kwargs.pop("pin_memory", None)
        if name in _FLOATS and not name.endswith("_like"):
            dtype = kwargs.get("dtype")
            floating = dtype in _FLOATING or (dtype is not bool and dtype.itemsize == 1)
            small = _elements(args) < (_BIG if name == "rand" else _SMALL) and name != "randn"
            if name == "full" and len(args) > 1 and isinstance(args[1], (int, bool)):
                floating = kwargs.get("dtype") in _FLOATING[1:]
            if kwargs.get("dtype") in (bool, torch.bool, torch.uint8, torch.int8):
                floating = False
            kwargs["device"] = "meta" if floating and not small else "cpu"
        elif device is not None and "device" in kwargs:
            kwargs["device"] = "cpu" if name != "empty_like" else None
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            if not any(x.device.type == "meta" for x in _tensors(args)):
                raise
            args, kwargs = (tree_map(_emptied, x) for x in (args, kwargs))
            return func(*args, **kwargs)

    @staticmethod
    def _moved(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, rest = args[0], list(args[1:])
        target = "meta" if x.is_floating_point() and x.numel() >= 1 else "cpu"
        if x.device.type == "meta":
            target = "meta"
        if name == "cuda":
            return x.to(target)
        kwargs.pop("non_blocking", None)
        dtype = kwargs.get("dtype")
        for value in rest:
            if isinstance(value, torch.dtype):
                dtype = value
            elif isinstance(value, torch.Tensor):
                dtype = value.dtype
        if dtype is not None:
            x = x.type(dtype)
            if x.is_floating_point():
                target = "meta"
        return torch.empty_like(x, device="meta") if target != x.device.type == "cpu" else x


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]


def _emptied(x: Any) -> Any:
    return torch.empty_like(x, device="meta") if isinstance(x, torch.Tensor) else x


def _elements(args: tuple[Any, ...]) -> int:
    total = 1
    for value in args:
        for size in value if isinstance(value, (tuple, list, torch.Size)) else (value,):
            total *= int(size) if isinstance(size, int) else 1
    return total


@contextlib.contextmanager
def _dry() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for module in (engines, one_shot):
        patch.setattr(module, "BatchAttention", DryBatch)
    patch.setattr("cute_attn.flashinfer.cascade.CompositeAttention", DryComposite)
    patch.setattr(torch.testing, "assert_close", lambda *args, **kwargs: None)
    patch.setattr(own_states, "merge_natural", _merge_states)
    patch.setattr(page, "append_paged_kv", _append)
    try:
        with OnNothing():
            yield
    finally:
        patch.undo()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Runs a case on nothing."""
    with _dry():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Counts what became of a case."""
    report = yield
    if report.when == "call":
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, (NotImplementedError, UnsupportedSpecError)):
            cases["unsupported"] += 1
            untraced[f"unsupported: {str(error)[:160]}"] += 1
        elif report.outcome == "failed":
            cases["untraced"] += 1
            test = item.nodeid.partition("[")[0].rpartition("::")[2]
            untraced[f"{test}: {type(error).__name__}: {str(error)[:160]}"] += 1
        else:
            cases["traced" if report.outcome == "passed" else report.outcome] += 1
    return report


def pytest_sessionfinish() -> None:
    """Writes what was found."""
    report = {"kernels": sorted(found), "cases": cases, "untraced": dict(untraced.most_common())}
    with open(os.environ[FOUND], "w") as file:
        json.dump(report, file)
    if os.environ.get(COMPILE):
        warmup(list(found.values()))


pretend()
