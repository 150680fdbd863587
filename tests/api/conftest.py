"""`fake_gpu`: a stand-in for a GPU. The CUDA back end runs on CPU tensors, launches are recorded.

What the host does is real (checks, planning, argument blocks); kernels are generated but neither
compiled nor run, tensor maps are those of `fake_map`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from cute_attn import BatchAttention, hopper
from cute_attn.api import cuda_batch, launch_set, live_scalars, plan_buffer, plan_store
from cute_attn.api.arguments import Arguments
from cute_attn.api.run_parameters import RunParameters
from cute_attn.codegen.attention_params import attention_params
from cute_attn.codegen.registered import REGISTERED
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime.device import DeviceInfo
from cute_attn.runtime.tensor_map import TensorMapEncoder, TensorMapSpec


@dataclass
class Launch:
    """One recorded launch: the kernel's name, grid, and its parameters by name."""

    name: str
    grid: Any
    stream: int
    params: dict[str, Any]
    overlap: bool  # with its predecessor in the stream


@dataclass
class FakeGpu:
    """State that tests set and read."""

    launches: list[Launch] = field(default_factory=list)
    uploads: int = 0
    capturing: bool = False
    stream: int = 7
    record: bool = True

    def batch(self, *sizes: int, **options: Any) -> BatchAttention:
        """A `BatchAttention` on this GPU; its tensors are CPU tensors."""
        flags, capacities = ("cuda_graph", "batch_invariant"), ("max_requests", "max_pages")
        own = (*flags, *capacities, "workspace", "schedule", "costs", "source")
        made = BatchAttention(
            *sizes, device="cpu", **{k: v for k, v in options.items() if k not in own}
        )
        backend_options: dict[str, Any] = {name: options.get(name) for name in own}
        for name in flags:
            backend_options[name] = bool(options.get(name))
        backend_options["source"] = options.get("source") or FakeSource(self)
        made._backend = cuda_batch.CudaBatch(made._shape, **backend_options)
        made._parameters = RunParameters(made._shape, made._backend.take_parameters)
        made._cuda_graph = backend_options["cuda_graph"]
        made._batch_invariant = backend_options["batch_invariant"]
        return made


class _FakeLauncher:
    def __init__(self, gpu: FakeGpu, generated: Any, overlap: bool) -> None:
        self._gpu = gpu
        self._generated = generated
        self._overlap = overlap

    def launch(self, grid: Any, stream: int, address: int) -> None:
        if not self._gpu.record:
            return
        generated = self._generated
        raw = ctypes.string_at(address, generated.params.size)
        fields = generated.params.structure.from_buffer_copy(raw)
        params = {f.name: getattr(fields, f.name) for f in generated.params.fields}
        params |= {name: bytes(params[name]) for name in params if name.endswith("_map")}
        self._gpu.launches.append(Launch(generated.name, grid, stream, params, self._overlap))


class _FakeKernel:
    def __init__(self, gpu: FakeGpu, generated: Any, spec: Any = None) -> None:
        self._gpu = gpu
        self.generated = generated
        self.spec = spec
        self.name = generated.name

    def launcher(self, index: int, *, overlap: bool = True) -> _FakeLauncher:
        return _FakeLauncher(self._gpu, self.generated, overlap)

    def arguments(self) -> Arguments:
        return Arguments(self.generated.params)


class FakeSource:
    """Kernels that are neither generated nor compiled."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def check_device(self, arch: str, name: str) -> None: ...

    def attention(self, spec: KernelSpec) -> _FakeKernel:
        return _FakeKernel(self._gpu, _not_generated(spec), spec)

    def small(self, generated: GeneratedKernel) -> _FakeKernel:
        return _FakeKernel(self._gpu, generated)


def _not_generated(spec: KernelSpec) -> GeneratedKernel:
    """Name and parameters of the spec's kernel, without its text."""
    if spec.schedule == hopper.SCHEDULE:
        params = hopper.params_of(spec)
    elif spec.schedule in REGISTERED:
        params = REGISTERED[spec.schedule].params_of(spec)
    else:
        params = attention_params(
            tma=False,
            paged=spec.loader != "ragged",
            variant=spec.variant,
            fused_merge=spec.fuses_merge,
            beside=spec.runs_beside,
            trace=spec.trace,
        )
    return GeneratedKernel(spec.name, "", spec.arch, spec.tile.threads, 0, 1, params, ())


class _FakeEvent:
    def synchronize(self) -> None: ...
    def record(self) -> None: ...


class _FakeBuffer(plan_buffer.PlanBuffer):
    gpu: FakeGpu

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.memory = torch.zeros(capacity, dtype=torch.int32)
        self.address = self.memory.data_ptr()
        self._pinned = [torch.full((capacity,), -1, dtype=torch.int32)]
        self._views = [self._pinned[0].numpy()]
        self._events = [_FakeEvent()]  # type: ignore[list-item]  # a stand-in
        self._next = 0

    def mark(self) -> Any:
        return self._events[0]

    def upload(self, length: int) -> Any:
        self.gpu.uploads += 1
        self.memory[:length] = self._pinned[0][:length]
        return self._events[0]


class _FakeOrder:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.plan_stream = -1

    def before_plan(self) -> None:
        self.plan_stream = self._gpu.stream

    def before_run(self, uploaded: Any) -> None: ...
    def after_run(self) -> None: ...


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Replaces devices, streams, compiles and launches for the time of a test."""
    gpu = FakeGpu()
    info = DeviceInfo(-1, "fake", "sm_90a", 4, 232448, 233472, 65536, 1 << 20, 1 << 30, "13.0")
    monkeypatch.setattr(_FakeBuffer, "gpu", gpu, raising=False)
    for module, name, value in (
        (cuda_batch, "device_info", lambda index: info),
        (cuda_batch, "StreamOrder", lambda device: _FakeOrder(gpu)),
        (plan_store, "PlanBuffer", _FakeBuffer),
        (live_scalars, "PlanBuffer", _FakeBuffer),
        (launch_set, "TensorMapEncoder", FakeEncoder),
        (launch_set, "replace_address", _fake_replace),
        (torch._C, "_cuda_getCurrentRawStream", lambda index: gpu.stream),
        (torch._C, "_cuda_getDevice", lambda: -1),
        (torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing),
        (torch.cuda, "device", _no_device),
    ):
        monkeypatch.setattr(module, name, value, raising=False)
    return gpu


class FakeEncoder(TensorMapEncoder):
    def encode(self, pointer: int) -> bytes:
        return fake_map(self.spec, pointer)


def fake_map(spec: TensorMapSpec, pointer: int) -> bytes:
    """Like the driver's, it holds the address (in the first eight bytes) and what the spec says."""
    return pointer.to_bytes(8, "little") + hashlib.sha256(repr(spec).encode()).digest() + bytes(88)


def _fake_replace(target: int, pointer: int) -> None:
    ctypes.memmove(target, pointer.to_bytes(8, "little"), 8)


@contextlib.contextmanager
def _no_device(index: int) -> Iterator[None]:
    yield
