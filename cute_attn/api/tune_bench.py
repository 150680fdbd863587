"""Times the kernels of a step on a GPU: the `Bench` of the tuner.

A time is that of a call in a replayed CUDA graph over rotating caches, so that a call finds nothing
of the last round in L2. Bursts are short and the card rests before each, so that none pays for the
heat of another.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping

import torch

from cute_attn.api import dispatch
from cute_attn.api.batch import BatchAttention
from cute_attn.api.step import Step
from cute_attn.api.tune_tensors import step_tensors
from cute_attn.api.tuned import Tuned, TunedProblem
from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime.device import DeviceInfo
from cute_attn.runtime.errors import DriverError
from cute_attn.tuning import Candidate, Database, TuneStep

logger = logging.getLogger("cute_attn")

REST_S = 0.05
"""Before a burst: as long as twice the burst, the card stays clear of its power limit."""
_BURST_US = 15_000.0
_GRAPH_RUNS = 8  # at least, in one graph
_ROTATION = 4  # K and V that a rotation of caches holds at least, in sizes of L2
_MAX_CACHES = 48

MOST_ERROR = {"bf16": 5e-3, "fp16": 8e-4}
"""Relative to the default's output (Frobenius): both are rounded, once in P and once at the end."""


class OneKernel(Tuned):
    """Gives one kernel for whatever step: that of a candidate."""

    def __init__(self, spec: KernelSpec, toolchain: str | None, info: DeviceInfo) -> None:
        super().__init__(Database(info.name, info.num_sms, info.arch, {}))
        self._spec = spec
        self.prefer(spec, toolchain)

    def of_problem(
        self, problem: dispatch.Problem, num_kv_heads: int, num_sms: int
    ) -> TunedProblem | None:
        """Of any problem."""
        return _OneKernelOf(self, self._spec, problem, num_kv_heads, num_sms)


class _OneKernelOf(TunedProblem):
    def __init__(
        self,
        tuned: OneKernel,
        spec: KernelSpec,
        problem: dispatch.Problem,
        num_kv_heads: int,
        num_sms: int,
    ) -> None:
        super().__init__(tuned, problem, num_kv_heads, num_sms)
        self._spec_of_all = spec

    def spec_of(self, step: Step) -> KernelSpec | None:
        return self._spec_of_all

    def all_specs(self) -> list[KernelSpec]:
        return [self._spec_of_all]


class CudaBench:
    """Measures on one GPU, which has nothing else to do meanwhile.

    Args:
        info: the GPU; it must be the current device of torch while sessions are used.
    """

    def __init__(self, info: DeviceInfo) -> None:
        self._info = info
        self.num_sms = info.num_sms

    def open(self, step: TuneStep, specs: Mapping[Candidate, KernelSpec]) -> CudaSession:
        """Makes the tensors of a step and plans it with each candidate.

        Raises:
            torch.cuda.OutOfMemoryError: the GPU has too little memory for it.
        """
        return CudaSession(step, specs, self._info)


class CudaSession:
    """One step on the GPU, planned and captured with each candidate.

    Attributes:
        candidates: those that the driver takes.
    """

    def __init__(
        self, step: TuneStep, specs: Mapping[Candidate, KernelSpec], info: DeviceInfo
    ) -> None:
        count = min(_MAX_CACHES, 1 + _ROTATION * info.l2_bytes // max(step.kv_bytes, 1))
        self._tensors = step_tensors(step, torch.device("cuda", info.index), count=count)
        self._q, self._caches = self._tensors.q, self._tensors.caches
        self._out = self._q.new_empty(*self._q.shape[:2], step.head_dim_vo)
        self._runs = count * -(-_GRAPH_RUNS // count)
        self._batches: dict[Candidate, BatchAttention] = {}
        self._graphs: dict[Candidate, torch.cuda.CUDAGraph] = {}
        for candidate, spec in specs.items():
            try:
                self._add(candidate, spec, step, info)
            except DriverError as error:
                if not self._graphs:  # the default
                    raise
                logger.warning("tune: %s is left out: %s", candidate.label, error)
        self.candidates = list(self._graphs)
        self._wanted = self._output(self.candidates[0])

    def _add(
        self, candidate: Candidate, spec: KernelSpec, step: TuneStep, info: DeviceInfo
    ) -> None:
        batch = BatchAttention(
            step.num_qo_heads,
            step.num_kv_heads,
            step.head_dim,
            head_dim_vo=step.head_dim_vo,
            dtype=self._q.dtype,
            variant=step.variant,
            device=self._q.device,
            tuning=OneKernel(spec, candidate.toolchain, info),
        )
        tensors = self._tensors
        batch.plan(tensors.qo_indptr, tensors.kv_format, scalars=dict(step.scalars))
        self._graphs[candidate] = self._captured(batch)
        self._batches[candidate] = batch

    def burst(self, candidate: Candidate) -> float:
        """Microseconds of a call: the median of a short burst, the card rested before."""
        graph = self._graphs[candidate]
        torch.cuda.synchronize()
        time.sleep(REST_S)
        graph.replay()
        first = _replay_us(graph)
        replays = int(min(max(_BURST_US / first, 3), 30))
        return statistics.median(_replay_us(graph) for _ in range(replays)) / self._runs

    def error(self, candidate: Candidate) -> float:
        """Of its output relative to that of the default; NaN if rows are missing."""
        got = self._output(candidate)
        return float((got - self._wanted).norm() / self._wanted.norm())

    def close(self) -> None:
        """Lets go of the memory."""
        self._graphs.clear()
        self._batches.clear()
        self._caches.clear()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _output(self, candidate: Candidate) -> torch.Tensor:
        self._out.fill_(torch.nan)
        self._run(self._batches[candidate], 0)
        return self._out.float()

    def _run(self, batch: BatchAttention, index: int) -> None:
        batch.run(self._q, *self._caches[index % len(self._caches)], out=self._out)

    def _captured(self, batch: BatchAttention) -> torch.cuda.CUDAGraph:
        for index in range(len(self._caches)):  # argument blocks and tensor maps of all caches
            self._run(batch, index)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(self._runs):
                self._run(batch, index)
        return graph


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's stub
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's stub
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end))
