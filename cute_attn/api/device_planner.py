"""Plans on the device: one small kernel per step, launched like any other, in graphs as well.

What can be seen from the host is checked here before the launch. What only the device knows (the
lengths) is checked by the kernel: at a fault it plans an empty step and leaves a note in device
memory, which `check` reads.
"""

from __future__ import annotations

import torch

from cute_attn.abi import UNBOUNDED
from cute_attn.abi.plan import MAX_SECTION_HEADS
from cute_attn.api.kernel_source import COMPILED, KernelSource
from cute_attn.api.small_kernels import ready
from cute_attn.api.step import DeviceStep
from cute_attn.codegen.kernels import emit_plan_decode, plan_decode_divisors
from cute_attn.codegen.kernels.plan_decode import MAX_BLOCKS, MAX_REQUESTS, planner_threads
from cute_attn.formats import DeviceKV
from cute_attn.scheduler import CostModel, DecodeCosts, Geometry

_INT32_MAX = (1 << 31) - 1


def check_device_step(step: DeviceStep, geometry: Geometry, num_blocks: int) -> None:
    """Raises ValueError for a step that only plan() can plan.

    Args:
        step: what is asked.
        geometry: of the attention kernel.
        num_blocks: its grid.
    """
    n, q_len, group = step.kv_format.num_requests, step.q_len, geometry.group
    reasons = (
        (
            q_len * group > geometry.tile_q,
            f"q_len is {q_len}, which makes {q_len * group} packed query rows (group {group}), but"
            f" the tile of the kernel that the first plan() chose has {geometry.tile_q}",
        ),
        (n > MAX_REQUESTS, f"kv_format has {n} requests; the device plans up to {MAX_REQUESTS}"),
        (
            geometry.num_kv_heads > MAX_SECTION_HEADS,
            f"num_kv_heads is {geometry.num_kv_heads}; the device plans up to {MAX_SECTION_HEADS}",
        ),
        (
            num_blocks > MAX_BLOCKS,
            f"the kernel has {num_blocks} thread blocks; the device plans for up to {MAX_BLOCKS}",
        ),
        (
            max(n * geometry.num_kv_heads, n * q_len) > _INT32_MAX,
            f"kv_format has {n} requests: too many tiles or query rows",
        ),
    )
    for wrong, reason in reasons:
        if wrong:
            raise ValueError(f"{reason}; use plan() for such a step")


class DevicePlanner:
    """The kernel on one GPU, and the memory for its faults.

    Args:
        arch: what small kernels are compiled for.
        device: a CUDA device.
        num_blocks: grid of the attention kernel, up to `MAX_BLOCKS`.
        source: where the kernel comes from.
        per_head: every KV head of a request has lengths of its own.

    Attributes:
        kernel: the kernel.
        num_blocks: as given.

    Raises:
        RuntimeError: a CUDA graph is being captured.
        CompileError, ToolchainError, CacheMissError: see `build`.
    """

    def __init__(
        self,
        arch: str,
        device: torch.device,
        num_blocks: int,
        source: KernelSource = COMPILED,
        *,
        per_head: bool = False,
    ) -> None:
        threads = planner_threads(num_blocks)
        self.kernel = ready(emit_plan_decode(arch, threads=threads, per_head=per_head), source)
        self._per_head = per_head
        self.num_blocks = num_blocks
        self._launch = self.kernel.launcher(device.index).launch
        self._arguments = self.kernel.arguments()
        self._status = torch.zeros(4, dtype=torch.int32, device=device)  # see the kernel
        self._kv: DeviceKV | None = None  # of the last step

    def plan(
        self,
        step: DeviceStep,
        geometry: Geometry,
        cost: CostModel,
        address: int,
        stream: int,
    ) -> None:
        """Launches the kernel.

        Args:
            step: checked by `check_device_step`.
            geometry, cost: what the attention kernel is planned with.
            address: of the plan, with room for the step's requests.
            stream: raw stream.
        """
        kv = self._kv = step.kv_format
        costs = DecodeCosts.of(geometry, cost, step.q_len)
        addresses = {name: tensor.data_ptr() for name, tensor in kv.tensors.items()}
        sizes = vars(geometry).copy()
        if not self._per_head:
            del sizes["heads_in_ids"]  # is 0
        self._arguments.set(
            **vars(costs),
            **sizes,
            **plan_decode_divisors(geometry.tile_kv, self.num_blocks, costs.block_cost),
            kv_indptr=addresses.get("kv_indptr", 0),
            kv_last_page_len=addresses.get("kv_last_page_len", 0),
            seq_lens=addresses.get("seq_lens", 0),
            plan=address,
            status=self._status.data_ptr(),
            num_requests=kv.num_requests,
            q_len=step.q_len,
            page_size=kv.page_size,
            table_stride=kv.table_stride,
            capacity=min(kv.capacity, UNBOUNDED - 1) if kv.seq_lens is not None else kv.capacity,
            num_blocks=self.num_blocks,
        )
        self._launch(1, stream, self._arguments.address)

    def check(self) -> None:
        """Waits for the device, then raises for the first fault since the last check.

        Raises:
            ValueError: a step had lengths that are wrong or exceed a capacity.
        """
        fault, request, value, _ = self._status.tolist()
        if not fault:
            return
        self._status.zero_()
        assert self._kv is not None
        raise ValueError(
            f"{_described(self._kv, fault, request, value)} (a step planned on the device since the"
            " last check; it was planned as empty, so its outputs were not written)"
        )


def _described(kv: DeviceKV, fault: int, request: int, value: int) -> str:
    """A fault in words; the numbers are those of `Fault` in decode_records.hpp."""
    if kv.paged:
        capacity = f"but kv_indices has {kv.capacity} entries"
    else:
        capacity = f"but num_rows is {kv.capacity}"
    return {
        1: f"kv_indptr[{request + 1}] is {value}: kv_indptr must not decrease, nor be negative",
        2: f"kv_indptr[{request + 1}] is {value}, {capacity}",
        3: f"kv_last_page_len[{request}] is {value}; it takes 1 .. {kv.page_size}",
        4: f"seq_lens[{request}] is {value}; block_tables has room for 0 .. {kv.capacity}",
        5: f"request {request} has {UNBOUNDED} keys or more",
        6: f"one of {kv.num_requests} requests has {value} KV blocks: together maybe over 2^32",
    }[fault]
