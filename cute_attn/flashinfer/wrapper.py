"""What the wrappers have in common: a step is planned once, and run for every layer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from cute_attn.api import BatchAttention, BlockSparseKV, PagedKV, PerHeadKV, RaggedKV
from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.engines import EngineKey, Engines
from cute_attn.flashinfer.options import Options

LOG2_E = math.log2(math.e)

_SINK_VARIANT = "AttentionSink"


@dataclass(frozen=True)
class PlannedStep:
    """One step, on the host.

    Attributes:
        qo_indptr: (num_requests + 1,) query rows; None: the format has its own.
        kv: where the keys are.
        num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo: sizes.
        dtype, o_dtype: of queries, keys and values, and of outputs.
        options: what is computed.
        tensors: that masks read.
        batch_invariant: results do not depend on what else is in the batch.
    """

    qo_indptr: torch.Tensor | None
    kv: PagedKV | RaggedKV | BlockSparseKV | PerHeadKV
    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    dtype: torch.dtype
    o_dtype: torch.dtype
    options: Options
    tensors: Mapping[str, torch.Tensor] | None = None
    batch_invariant: bool = False

    @property
    def key(self) -> EngineKey:
        """Of the object that plans it."""
        return EngineKey(
            self.num_qo_heads,
            self.num_kv_heads,
            self.head_dim_qk,
            self.head_dim_vo,
            self.dtype,
            self.options.variant(self.num_qo_heads),
            self.kv.page_size or None,
            self.batch_invariant,
        )


class Wrapper:
    """Base of the wrappers around `cute_attn.BatchAttention`.

    The workspace holds partial results from plan() to the last run(): wrappers that run on one
    stream may share it, other libraries may not.

    Args:
        float_workspace_buffer: any dtype, 16-byte aligned; its device is where everything lives.
        kv_layout: "NHD" or "HND".
        use_cuda_graph: for capture; the batch size is then fixed.
        fixed_batch_size: that one.
        backend: "auto", "fa2" or "fa3"; the kernel is chosen by device and lengths all the same.
        jit_args: of a variant that is known by name ("AttentionSink"), or None.

    Raises:
        TypeError, ValueError, NotImplementedError: naming the argument.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        *,
        use_cuda_graph: bool = False,
        fixed_batch_size: int = 0,
        backend: str = "auto",
        jit_args: Any = None,
    ) -> None:
        arguments.workspace("float_workspace_buffer", float_workspace_buffer)
        self._kv_layout = arguments.kv_layout(kv_layout)
        self._backend = arguments.backend(backend)
        self._use_cuda_graph, self._fixed_batch_size = bool(use_cuda_graph), fixed_batch_size
        self._float_workspace_buffer = float_workspace_buffer
        self._engines = Engines(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph=self._use_cuda_graph,
            max_requests=fixed_batch_size if use_cuda_graph else None,
        )
        self.device = self._engines.device
        self._takes_sink = _names_sinks(jit_args)
        self._sinks = self._takes_sink  # whether runs have given sinks
        self._step: PlannedStep | None = None
        self._engine: BatchAttention | None = None

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether it was made for CUDA graphs."""
        return self._use_cuda_graph

    @property
    def _plan_info(self) -> BatchAttention | None:
        """What plan() has left behind; engines look whether it is there."""
        return self._engine

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor
    ) -> None:
        """Takes another workspace; plan() has to follow.

        Args:
            float_workspace_buffer: as for the constructor, on the same device.
            int_workspace_buffer: not used: plans have memory of their own.

        Raises:
            TypeError, ValueError: a buffer is not a tensor, not aligned, or on another device.
        """
        arguments.workspace("float_workspace_buffer", float_workspace_buffer)
        arguments.workspace("int_workspace_buffer", int_workspace_buffer)
        if float_workspace_buffer.device != self.device:
            raise ValueError(
                f"float_workspace_buffer is on {float_workspace_buffer.device}; it takes"
                f" {self.device}"
            )
        self._float_workspace_buffer = float_workspace_buffer
        self._engines.use_workspace(float_workspace_buffer)
        self._engine = None

    def end_forward(self) -> None:
        """Does nothing; there for callers of begin_forward()."""

    def _plan_step(self, step: PlannedStep) -> None:
        """Plans a step; run() serves it from then on."""
        if self._sinks:
            step = replace(step, options=replace(step.options, sinks=True))
        engine = self._engines.get(step.key)
        tensors = None if step.options.sinks else step.tensors  # sinks come with each run
        engine.plan(step.qo_indptr, step.kv, scalars=step.options.scalars or None, tensors=tensors)
        self._step, self._engine = step, engine
        options = step.options
        self._causal, self._window_left = options.causal, options.window_left
        self._logits_soft_cap, self._sm_scale = options.logits_soft_cap, options.sm_scale
        self._pos_encoding_mode = options.pos_encoding_mode
        self._rope_scale, self._rope_theta = options.rope_scale, options.rope_theta

    def _sizes(self, step: PlannedStep) -> tuple[int, int]:
        """(bytes of the float workspace, of the int workspace) for any step like this."""
        return max(self._engines.workspace_size(step.key), 16), 16

    def _planned(self) -> PlannedStep:
        if self._step is None:
            raise RuntimeError("run() before plan(): plan the step first")
        return self._step

    def _with_options(self, **changed: Any) -> None:
        """Plans the step again if options are others than planned."""
        step = self._planned()
        options = Options.checked(
            **changed, masked=step.options.masked, items=step.options.items, sinks=self._sinks
        )
        if options != step.options:
            self._plan_step(replace(step, options=options))

    def _take_sinks(self, sinks: torch.Tensor | None) -> None:
        """Plans the step again if sinks are given and were not planned, or the other way round."""
        given = sinks is not None
        if given != self._sinks:
            step = self._planned()
            self._sinks = given
            self._plan_step(replace(step, options=replace(step.options, sinks=given)))

    def _check_window(self, window_left: int) -> None:
        """Raises unless a window given to run() is the planned one."""
        planned = self._planned().options.window_left
        if max(window_left, -1) != planned:
            raise ValueError(
                f"window_left is {window_left}, but {planned} was planned; give it to plan()"
            )

    def _sink_arguments(
        self, args: tuple[Any, ...], sinks: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, float | None]:
        """(sinks, sm_scale) of a run, which a variant of attention sinks takes by position."""
        if not self._takes_sink:
            if args:
                raise TypeError(
                    f"run() is given {len(args)} further arguments; without jit_args it takes none"
                )
            return sinks, None
        if len(args) != 2:
            raise TypeError(
                f"run() is given {len(args)} further arguments; it takes sink, sm_scale"
            )
        return arguments.tensor("sink", args[0]), float(args[1])

    def _run(
        self,
        q: torch.Tensor,
        k: Any,
        v: torch.Tensor | None,
        *,
        out: torch.Tensor | None,
        lse: torch.Tensor | None,
        return_lse: bool,
        scale: float = 1.0,
        v_scale: float | torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        sm_scale: float | None = None,
    ) -> Any:
        """Attention of the planned step.

        Args:
            lse: written, whether it is returned or not.
            scale: factor of the softmax scale.
            v_scale: factor of the output.
            sinks: (num_qo_heads,) logits.
            sm_scale: in the place of the planned one.

        Returns:
            out, or (out, lse) with lse to base 2.
        """
        if sinks is not None or self._sinks:
            self._take_sinks(sinks)
        step = self._planned()
        if self._engine is None:
            self._plan_step(step)  # the workspace was changed
        assert self._engine is not None
        if sm_scale is None:
            sm_scale = step.options.sm_scale
        if scale != 1.0:
            sm_scale = scale * (step.head_dim_qk**-0.5 if sm_scale is None else sm_scale)
        tensors = None
        if sinks is not None:
            tensors = {**(step.tensors or {}), "sink": sinks.float()}
        if out is not None and out.dtype != step.o_dtype:
            raise TypeError(f"out has dtype {out.dtype}; planned for {step.o_dtype}")
        own = out if step.o_dtype == step.dtype else None
        written = return_lse or lse is not None  # one that is given is written in any case
        result = self._engine.run(
            q,
            k,
            v,
            out=own,
            lse=lse,
            return_lse=written,
            sm_scale=sm_scale,
            tensors=tensors,
        )
        found, logs = result if written else (result, None)
        result = finish(found, logs, out, step.o_dtype, v_scale)
        return result if return_lse or not written else result[0]


def finish(
    found: torch.Tensor,
    logs: torch.Tensor | None,
    out: torch.Tensor | None = None,
    o_dtype: torch.dtype | None = None,
    v_scale: float | torch.Tensor | None = None,
) -> Any:
    """What is done with the engine's result.

    Args:
        found: outputs; scaled in place.
        logs: log-sum-exps, natural; become those to base 2 in place.
        out: where outputs are wanted, or None.
        o_dtype: of outputs, or None: as they are.
        v_scale: factor of outputs.

    Returns:
        out, or (out, lse) if `logs` is given.
    """
    if v_scale is not None and not (isinstance(v_scale, float) and v_scale == 1.0):
        found.mul_(v_scale)
    if out is not None and out is not found:
        found = out.copy_(found)
    elif o_dtype is not None:
        found = found.to(o_dtype)
    return found if logs is None else (found, logs.mul_(LOG2_E))


def invariant(fixed_split_size: int | None, disable_split_kv: bool) -> bool:
    """Whether results are not to depend on what a request is batched with."""
    given = fixed_split_size is not None and fixed_split_size > 0
    return given or bool(disable_split_kv)


def named_arguments(plan: Callable[..., None], args: tuple[Any, ...]) -> dict[str, Any]:
    """Arguments of `workspace_size` by the names that plan() has for them."""
    names = [name for name in inspect.signature(plan).parameters if name != "non_blocking"]
    if len(args) > len(names):
        raise TypeError(f"workspace_size() takes {len(names)} arguments; it is given {len(args)}")
    return dict(zip(names, args, strict=False))


def _names_sinks(jit_args: Any) -> bool:
    """Whether arguments of a variant in C++ are those of attention sinks.

    Raises:
        NotImplementedError: of another one.
    """
    if jit_args is None:
        return False
    name = jit_args[11] if len(jit_args) > 11 else None
    if name != _SINK_VARIANT or list(jit_args[7]) != ["sink"] or list(jit_args[9]) != ["sm_scale"]:
        raise NotImplementedError(
            f"jit_args name variant {name!r}; cute_attn knows {_SINK_VARIANT!r} with tensor 'sink'"
            " and scalar 'sm_scale': write others as a cute_attn.Variant (docs/variants.md), for"
            " cute_attn.BatchAttention(variant=)"
        )
    return True
