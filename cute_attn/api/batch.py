"""`BatchAttention`: attention of a batch of requests, planned once and run for every layer.

    batch = BatchAttention(32, 8, 128, dtype=torch.bfloat16)
    batch.plan(qo_indptr, PagedKV(kv_indptr, kv_indices, kv_last_page_len, page_size=16))
    for layer in layers:
        layer.out = batch.run(layer.q, layer.kv_cache)

Where lengths and page tables live on the GPU, decode steps are planned there (`plan_on_device`):
one CUDA graph then holds plan and attention, and is replayed with whatever the tensors hold.

Prefill, append, decode and batches that mix them are one call: one attention kernel, and one merge
if the scheduler has split the KV of some tile and the kernel does not merge itself. On CPU tensors
the same plan runs on the reference executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cute_attn.api import checks, torch_ops
from cute_attn.api.backend import make_backend
from cute_attn.api.dispatch import known_schedules
from cute_attn.api.element_masks import with_mask
from cute_attn.api.kernel import Kernel
from cute_attn.api.kernel_source import KernelSource
from cute_attn.api.run_parameters import RunParameters
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import AnyStep, make_device_step, make_step
from cute_attn.api.trace import Trace
from cute_attn.api.tracing import trace_step
from cute_attn.api.tuned import Tuned
from cute_attn.formats import DeviceKV, KVFormat
from cute_attn.scheduler import Constants, Explanation, Plan
from cute_attn.variants import Variant

_grad_mode = torch.is_grad_enabled


class BatchAttention:
    """Attention over a batch of requests with ragged or paged KV.

    Args:
        num_qo_heads: query heads.
        num_kv_heads: KV heads; divides num_qo_heads.
        head_dim: elements of a query and key row.
        head_dim_vo: elements of a value and output row; default head_dim.
        dtype: of q, k, v and out: torch.bfloat16 or torch.float16 (on the CPU also torch.float32);
            or of q, k and v: torch.float8_e4m3fn, on Hopper, with out in bfloat16 (docs/fp8.md).
        variant: "full", "causal", "sliding_window", "soft_cap" or a `Variant`. Causal is
            bottom-right aligned: the last query of a request sees its last key.
        sm_scale: softmax scale; default 1 / sqrt(head_dim).
        kv_layout: "NHD" (tokens before heads) or "HND".
        device: a CUDA device or "cpu"; default CUDA if there is one.
        cuda_graph: for capture: kernel, grid and addresses stay as the first plan chose them, q and
            out may have more rows than planned (those are left alone), and a merge kernel, if the
            attention kernel needs one, is always launched. Plan, capture run() once, then plan()
            before each replay on the stream of the replay (or capture plan_on_device() as well). A
            captured graph also keeps the addresses of q, k, v, out and lse, page_size, sm_scale and
            scalars, but for live ones (`Variant.live`), which every plan() sends to the device.
        max_requests: most requests of a step (of `PerHeadKV`: of all KV heads); default: grows
            (cuda_graph: as many as the first plan's, rounded up).
        max_pages: most entries of a page table; default as for max_requests.
        workspace: (bytes,) uint8 tensor on the device for partial results; default: allocated by
            plan(). `workspace_size` says how large. One workspace may serve many objects that run
            on one stream.
        batch_invariant: the result of a request has the same bits whatever it is batched with: its
            kernel and where its keys are split depend on its own lengths alone. Costs memory for
            more partial results, which plan() allocates, and time: docs/batch_invariance.md. Not
            with `workspace` and plan_on_device().
        costs: constants for planning: a file of `cute-attn calibrate` for this kind of GPU, or
            `Constants`; default: CUTE_ATTN_COST_FILE, else the user's file for it, if there is
            one, else those of an H200 (docs/calibration.md). Not on the CPU.
        schedule: force a kernel family: "hopper_tile", "ampere_tile", "ampere_decode" (latent rows:
            "hopper_mla") or one of `register_template`; default: chosen by the device and the
            lengths at every plan().
        bundle: of `load_bundle`: all kernels come out of it, nothing is compiled, and steps for
            which it has none are refused (docs/export.md). Not on the CPU.
        tuning: kernels that `cute-attn tune` has found faster: None takes them from the databases
            of the package and of the user, False takes none, a path takes those of this file
            (docs/tuning.md). Not on the CPU, with a bundle, a schedule or batch_invariant.

    Not for use by several threads at once.

    Raises:
        TypeError, ValueError: an argument is wrong; ConstantsFileError (a ValueError): a file of
            constants cannot be used.
        DriverError: device is CUDA and there is no such GPU.
    """

    def __init__(
        self,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        head_dim_vo: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        variant: str | Variant = "causal",
        sm_scale: float | None = None,
        kv_layout: str = "NHD",
        device: torch.device | str | None = None,
        cuda_graph: bool = False,
        max_requests: int | None = None,
        max_pages: int | None = None,
        workspace: torch.Tensor | None = None,
        schedule: str | None = None,
        batch_invariant: bool = False,
        costs: str | Path | Constants | None = None,
        bundle: KernelSource | None = None,
        tuning: str | Path | bool | Tuned | None = None,
    ) -> None:
        for name, capacity in (("max_requests", max_requests), ("max_pages", max_pages)):
            if capacity is not None:
                checks.positive(name, capacity)
        if schedule is not None:
            checks.one_of("schedule", schedule, known_schedules())
        self._shape = BatchShape.checked(
            num_qo_heads,
            num_kv_heads,
            head_dim,
            head_dim_vo=head_dim_vo,
            dtype=dtype,
            variant=variant,
            sm_scale=sm_scale,
            kv_layout=kv_layout,
            device=device,
        )
        self._backend = make_backend(
            self._shape,
            max_requests=max_requests,
            max_pages=max_pages,
            cuda_graph=cuda_graph,
            schedule=schedule,
            batch_invariant=batch_invariant,
            workspace=workspace,
            costs=costs,
            bundle=bundle,
            tuning=tuning,
        )
        self._parameters = RunParameters(self._shape, self._backend.take_parameters)
        self._batch_invariant, self._cuda_graph = batch_invariant, cuda_graph
        self._step: AnyStep | None = None
        self._handle: int | None = None

    @property
    def num_qo_heads(self) -> int:
        """Query heads."""
        return self._shape.num_qo_heads

    @property
    def head_dim_vo(self) -> int:
        """Elements of a value and output row."""
        return self._shape.head_dim_vo

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        return self._shape.device

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the last step: its buffer, counts, predicted time and imbalance. Of its
        prefill, if decode runs beside it; `plans` has both. None after plan_on_device() on a GPU:
        the host does not know it."""
        return self._backend.plan_of_step

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the last step's launches: one, or two that run side by side. Empty before
        plan(), and where only the device knows the plan."""
        return self._backend.plans

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Attention kernels of the last step, one per plan, or one and its merge if that is a
        kernel of its own.

        Empty before plan() and on the CPU.
        """
        return self._backend.kernels

    @property
    def handle(self) -> int:
        """Names this object in `torch.ops.cute_attn.run(handle, q, k, v, out, lse)` and
        `torch.ops.cute_attn.forward(handle, q, k, v)`, which returns (out, lse)."""
        if self._handle is None:
            self._handle = torch_ops.register(self)
        return self._handle

    def explain(self) -> Explanation:
        """Which thread block does what in the last step, when, and for how many bytes.

        `print()` it for a table, `plot("step.svg")` it for a timeline (needs matplotlib), or read
        its fields. Times are predicted from the constants of the GPU (docs/calibration.md); nothing
        is measured. On the CPU it shows how the work of the executor would be spread.

        Raises:
            RuntimeError: not planned, or on the device.
        """
        if self._step is None:
            raise RuntimeError("explain() before plan(): plan the step first")
        if not self.plans:
            raise RuntimeError("explain() after plan_on_device(): only the device knows the plan")
        return self._backend.explain()

    def workspace_size(self, page_size: int | None = None) -> int:
        """Bytes of `workspace` that suffice for any step, whatever its lengths.

        Args:
            page_size: tokens per page of the steps' KV, or None for ragged KV.

        Raises:
            ValueError: batch_invariant: it depends on the lengths.
        """
        if self._batch_invariant:
            raise ValueError(
                "batch_invariant is True; what plan() allocates then depends on the lengths"
            )
        return self._backend.workspace_bytes(page_size)

    def plan(
        self,
        qo_indptr: Any,
        kv_format: KVFormat,
        *,
        scalars: Mapping[str, float | int] | None = None,
        tensors: Mapping[str, torch.Tensor] | None = None,
        expected: Mapping[str, Any] | None = None,
    ) -> BatchAttention:
        """Decides which thread block does what for one step; run() then serves every layer.

        Lengths are read on the host; the plan goes to the device in one asynchronous copy on the
        current stream. Nothing waits for the device (but for the copy of the fourth plan before
        this one). The first plan of a kind compiles its kernels, or finds them in the cache.

        Args:
            qo_indptr: (num_requests + 1,) integers on the host: query rows of request i are
                qo_indptr[i] .. qo_indptr[i + 1] - 1. None for block-sparse patterns, which have
                their own.
            kv_format: `RaggedKV`, `PagedKV`, `BlockTableKV`, `BlockSparseKV` or `PerHeadKV`. Page
                numbers may be on the device (they are then read when the kernel runs).
            scalars: numbers that the variant reads, e.g. {"window_left": 1023}; defaults where not
                given.
            tensors: tensors that the variant reads, by name, on the device; they are read when
                kernels run. None: run() is given them.
            expected: what tensors of the mask will hold, or nearly so, by name: arrays or tensors
                on the host. Work is then spread by the KV blocks that this leaves; results do not
                depend on it. Of others, numbers are taken to change every few hundred positions,
                as those of documents.

        Returns:
            self.

        Raises:
            TypeError, ValueError: an argument is wrong or a capacity is exceeded.
            IndexError: the variant may read outside one of its tensors.
            UnsupportedSpecError: no kernel for this device, dtype and head_dim; with the reasons.
            CompileError, ToolchainError, CacheMissError: see `build`.
            RuntimeError: during CUDA graph capture.
        """
        given = dict(scalars) if scalars is not None else None
        step = make_step(
            qo_indptr, kv_format, self._shape.variant, given, self._shape.device, expected
        )
        self._shape.check_heads(kv_format)
        if kv_format.heads_in_ids and self._batch_invariant:
            raise ValueError(
                "batch_invariant is True; it takes formats in which the KV heads of a request have"
                " one table"
            )
        shape = self._shape
        tensors = with_mask(kv_format, tensors, group=shape.group, device=shape.device)
        parameters = self._parameters.bind(step, tensors)
        self._backend.plan(step)
        self._step = step
        self._parameters.plan(parameters)
        return self

    def plan_on_device(
        self,
        kv_format: DeviceKV,
        *,
        q_len: int = 1,
        scalars: Mapping[str, float | int] | None = None,
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> BatchAttention:
        """Plans a decode step whose lengths are on the device, with a kernel on the current stream.

            batch = BatchAttention(..., cuda_graph=True, max_requests=256)
            batch.plan(qo_indptr, kv)                   # once: kernel, grid and memory
            kv = DeviceKV.from_paged(kv_indptr, kv_indices, kv_last_page_len, page_size)
            batch.plan_on_device(kv).run(q, cache, out=out)  # once: loads kernels
            with torch.cuda.graph(graph):
                batch.plan_on_device(kv).run(q, cache, out=out)
            graph.replay()                              # each step, after the tensors have changed

        The plan has the same bits as that of plan() for the same lengths. Nothing waits, is copied
        or allocated, so it can be captured (from its second call on; the first one loads the
        kernel and makes memory for its faults). Requests of a batch that is padded to a fixed size
        have no keys: their outputs are 0.

        Args:
            kv_format: lengths and page table; the tensors are read when the kernel runs.
            q_len: query tokens of every request: the rows of request i are i * q_len ... of q.
            scalars: as for plan().
            tensors: as for plan(), but that nobody looks whether indices reach outside them (which
                then read a last element).

        Returns:
            self.

        Raises:
            TypeError, ValueError: an argument is wrong, or the step is one that only plan() can
                plan: more than 4096 requests, or more query tokens than one tile of the kernel
                holds. Lengths are not looked at: see check_plan().
            RuntimeError: not planned before, or the first call is captured.
            CompileError, ToolchainError, CacheMissError: see `build`.
        """
        if not self._cuda_graph:
            raise ValueError(
                "cuda_graph is False; plan_on_device() takes a BatchAttention with cuda_graph=True,"
                " whose kernel does not change with the lengths (or use plan())"
            )
        if self._step is None:
            raise RuntimeError(
                "plan_on_device() before plan(): plan one step from the host first; it decides the"
                " kernel and allocates memory"
            )
        given = dict(scalars) if scalars is not None else None
        step = make_device_step(kv_format, q_len, self._shape.variant, given, self._shape.device)
        self._shape.check_heads(kv_format)
        parameters = self._parameters.bind(step, tensors)
        self._backend.plan_on_device(step)
        self._step = step
        self._parameters.plan(parameters)
        return self

    def check_plan(self) -> None:
        """Raises for wrong lengths that plan_on_device() met since the last check.

        Such a step is planned as empty: nothing is read out of bounds, and `out` and `lse` are not
        written. Waits for the device; not for use in every step.

        Raises:
            ValueError: naming the tensor and the number: kv_indptr decreases or ends past
                kv_indices (ragged: past num_rows), kv_last_page_len or seq_lens is out of range.
        """
        self._backend.check_plan()

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        v: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        scalars: Mapping[str, float | int] | None = None,
        tensors: Mapping[str, torch.Tensor] | None = None,
        sm_scale: float | None = None,
        v_scale: float | None = None,
    ) -> Any:
        """Attention of the planned step, for one layer.

        Launches on the current stream; never waits, and allocates only `out` and `lse` if they are
        not given. Rows of tensors may be strided (q may be a slice of a fused QKV projection), in
        steps of 16 bytes. Arrays of other libraries are taken by DLPack, at a cost per call; what
        is returned are tensors.

        Args:
            q: (q_tokens, num_qo_heads, head_dim); q_tokens = qo_indptr[-1].
            k: paged: (pages, page_size, num_kv_heads, head_dim) for NHD, (pages, num_kv_heads,
                page_size, head_dim) for HND; or, with v None, the whole cache (pages, 2, ...) or a
                pair (k, v).
                Ragged: (kv_tokens, num_kv_heads, head_dim) for NHD, (num_kv_heads, kv_tokens,
                head_dim) for HND.
            v: as k with head_dim_vo; its strides may differ from k's.
            out: (q_tokens, num_qo_heads, head_dim_vo), to be written.
            lse: (q_tokens, num_qo_heads) float32, contiguous, to be written.
            return_lse: also return the log-sum-exp of each row's scores (natural logarithm), as a
                row_state hook returns it. Not for variants without softmax.
            scalars: other values for the variant's scalars than planned; not for those that decide
                which keys are read (e.g. window_left: plan again), and not for live ones.
            tensors: the variant's tensors, where they are others than planned.
            sm_scale: another softmax scale than that of the object, e.g. times a scale of the keys.
            v_scale: factor of e4m3 values.

        Returns:
            out, or (out, lse) if return_lse or lse is given. Rows that see no key: out 0, lse -inf,
            or what the variant's hooks on rows make of that.

        Raises:
            TypeError, ValueError: a tensor does not fit the plan; nothing was launched.
            IndexError: the variant may read outside one of `tensors`.
            RuntimeError: not planned, or a tensor requires grad while grad mode is on: there is no
                backward.
        """
        if self._step is None:
            raise RuntimeError("run() before plan(): plan the step first")
        if isinstance(k, tuple):
            if v is not None:
                raise TypeError("k is a pair (k, v) and v is given too; it takes one of the two")
            k, v = k
        values = self._parameters.planned
        if not (scalars is None and tensors is None and sm_scale is None and v_scale is None):
            if sm_scale is not None:
                checks.scale("sm_scale", sm_scale)
            if v_scale is not None:
                self._shape.check_v_scale(v_scale)
            values = self._parameters.over(self._step, scalars or {}, tensors, sm_scale, v_scale)
        if (return_lse or lse is not None) and not self._shape.variant.softmax:
            raise ValueError(
                f"{'lse is given' if lse is not None else 'return_lse is True'}, but variant"
                f" {self._shape.variant.name!r} has no softmax, so its rows have no log-sum-exp"
            )
        if values.missing is not None:
            raise ValueError(f"the variant reads tensor {values.missing!r}: give it in tensors=")
        try:
            if _grad_mode() and (
                q.requires_grad or k.requires_grad or (v is not None and v.requires_grad)
            ):
                checks.no_gradients(q=q, k=k, v=v)
            out, lse = self._backend.run(q, k, v, out, lse, return_lse, values)
        except (AttributeError, TypeError):
            given = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
            found = checks.from_dlpack(**given)
            if all(found[name] is value for name, value in given.items()):
                raise
            found |= {"return_lse": return_lse, "scalars": scalars, "tensors": tensors}
            return self.run(**found, sm_scale=sm_scale, v_scale=v_scale)
        return out if lse is None else (out, lse)

    def trace(
        self,
        q: torch.Tensor,
        k: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        v: torch.Tensor | None = None,
        *,
        scalars: Mapping[str, float | int] | None = None,
        tensors: Mapping[str, torch.Tensor] | None = None,
        max_items: int | None = None,
    ) -> Trace:
        """Runs the planned step with kernels that keep time: which thread block did what, and when.

            batch.trace(q, cache).save("step.json", predicted=batch.explain())

        The step runs a few times, the last of them counts. Waits for the device, compiles kernels
        of its own, and changes nothing of the object: not for use in a serving loop.

        Args:
            q, k, v, scalars, tensors: as for run().
            max_items: items of a thread block that there is room for; default: what the plan has
                (after plan_on_device(): 256).

        Returns:
            what was measured; see `Trace`.

        Raises:
            RuntimeError: not planned, on the CPU, or during CUDA graph capture.
            UnsupportedSpecError: the kernel is a schedule of a user.
        """
        if self._step is None:
            raise RuntimeError("trace() before plan(): plan the step first")
        launches = self._backend.launches
        if not launches:
            raise RuntimeError(
                "trace() measures a GPU; on the CPU explain().trace(path) writes what is predicted"
            )
        out = self.run(q, k, v, scalars=scalars, tensors=tensors)
        return trace_step(
            launches,
            lambda: self.run(q, k, v, out=out, scalars=scalars, tensors=tensors),
            self._shape.device,
            max_items,
        )
