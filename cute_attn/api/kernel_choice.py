"""Which kernels serve the steps of one `BatchAttention` on a GPU: `dispatch`, remembered.

By the lengths of the step, or, for batch invariance, by each request alone (`fixed_kernels`).
"""

from __future__ import annotations

from cute_attn.api import checks, dispatch
from cute_attn.api.fixed_kernels import FixedKernels
from cute_attn.api.shape import BatchShape
from cute_attn.api.side_by_side import SideBySide, Split
from cute_attn.api.step import KVKind, Step
from cute_attn.api.tuned import Tuned, TunedProblem
from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime.device import DeviceInfo
from cute_attn.scheduler import Constants


class KernelChoice:
    """Kernels by kind of KV and lengths.

    Args:
        shape: sizes and options.
        info: the device.
        constants: of the device.
        schedule: kernel family to take, or None: chosen by the lengths.
        batch_invariant: choose by each request alone.
        tuned: what the tune database knows of the device, or None.
    """

    def __init__(
        self,
        shape: BatchShape,
        info: DeviceInfo,
        constants: Constants,
        *,
        schedule: str | None,
        batch_invariant: bool,
        tuned: Tuned | None = None,
    ) -> None:
        self._shape = shape
        self._info = info
        self._constants = constants
        self._schedule = schedule
        self._batch_invariant = batch_invariant
        # Kernels of a given family, and pieces of each request alone, are those of the tables.
        self._tuned = None if schedule is not None or batch_invariant else tuned
        self._tuned_problems: dict[KVKind, TunedProblem | None] = {}
        self._problems: dict[KVKind, dispatch.Problem] = {}
        self._specs: dict[tuple[KVKind, int, int, bool, str | None], KernelSpec] = {}
        self._splits: dict[KVKind, SideBySide] = {}
        self._fixed: dict[KVKind, FixedKernels] = {}

    def spec_of(self, step: Step, num_sms: int, schedule: str | None = None) -> KernelSpec:
        """The kernel of a step on so many SMs; `schedule`: of this family.

        Raises:
            UnsupportedSpecError: there is none.
        """
        kind = step.kv_kind
        if self._batch_invariant:
            return self._fixed_kernels(kind).spec_of(step.requests)
        # Of launches side by side each has some of the SMs, which was not measured.
        if self._tuned is not None and schedule is None and num_sms == self._info.num_sms:
            tuned = self._tuned_problem(kind)
            found = None if tuned is None else tuned.spec_of(step)
            if found is not None:
                return found
        requests = step.requests
        longest = requests.most_q_len * self._shape.group
        heads = 1 if kind.per_head else self._shape.num_kv_heads  # of a request
        tiles = dispatch.tiles_per_sm(requests.q_len, longest, heads, num_sms)
        # Of larger numbers it does not matter how large they are.
        rows, tiles = min(longest, dispatch.MOST_ROWS + 1), min(tiles, dispatch.FEW_TILES + 1)
        schedule = schedule or self._schedule
        spec = self._chosen(kind, rows, tiles, False, schedule)
        if spec.schedule != dispatch.HOPPER_TILE:  # the only one with a tile for long keys
            return spec
        problem = self._problem(kind)
        if not dispatch.is_long(problem, requests.q_len, requests.kv_len, step.band):
            return spec
        return self._chosen(kind, rows, tiles, True, schedule)

    def _chosen(
        self, kind: KVKind, rows: int, tiles: int, long: bool, schedule: str | None
    ) -> KernelSpec:
        """`dispatch.choose`, asked once."""
        key = (kind, rows, tiles, long, schedule)
        spec = self._specs.get(key)
        if spec is None:
            problem = self._problem(kind)
            spec = self._specs[key] = dispatch.choose(
                problem, rows=rows, tiles_per_sm=tiles, long=long, schedule=schedule
            )
        return spec

    def split(self, step: Step) -> Split | None:
        """The step in two launches, if it is one."""
        if self._batch_invariant:
            return self._fixed_kernels(step.kv_kind).split(step)
        if self._schedule is not None:
            return None
        return self._side_by_side(step.kv_kind).split(step)

    def all_specs(self, page_size: int | None) -> tuple[list[KernelSpec], KernelSpec | None]:
        """Every kernel that some step takes, and the one that may run beside another; those of
        tables of each KV head have the same tiles."""
        kind = KVKind(page_size, per_head=False)
        specs = dispatch.all_specs(self._problem(kind), self._schedule)
        tuned = self._tuned_problem(kind)
        if tuned is not None:
            specs = list(dict.fromkeys(specs + tuned.all_specs()))
        if self._schedule is not None:
            return specs, None
        pair = self._side_by_side(kind).specs
        return specs, None if pair is None else pair[1]

    def _tuned_problem(self, kind: KVKind) -> TunedProblem | None:
        if self._tuned is None or kind.per_head:  # nothing was measured of tables of each head
            return None
        if kind not in self._tuned_problems:
            problem, sms = self._problem(kind), self._info.num_sms
            self._tuned_problems[kind] = self._tuned.of_problem(
                problem, self._shape.num_kv_heads, sms
            )
        return self._tuned_problems[kind]

    def _side_by_side(self, kind: KVKind) -> SideBySide:
        found = self._splits.get(kind)
        if found is None:
            problem, sms = self._problem(kind), self._info.num_sms
            found = self._splits[kind] = SideBySide(
                problem, self._shape.num_kv_heads, sms, self._constants
            )
        return found

    def _fixed_kernels(self, kind: KVKind) -> FixedKernels:
        found = self._fixed.get(kind)
        if found is None:
            problem, sms = self._problem(kind), self._info.num_sms
            found = self._fixed[kind] = FixedKernels(
                problem, self._shape.num_kv_heads, sms, self._schedule, self._constants
            )
        return found

    def _problem(self, kind: KVKind) -> dispatch.Problem:
        found = self._problems.get(kind)
        if found is not None:
            return found
        shape = self._shape
        found = self._problems[kind] = dispatch.Problem(
            arch=self._info.arch,
            dtype=checks.KERNEL_DTYPES[shape.dtype],
            head_dim_qk=shape.head_dim_qk,
            head_dim_vo=shape.head_dim_vo,
            group=shape.group,
            variant=shape.variant,
            page_size=kind.page_size,
            per_head=kind.per_head,
        )
        return found
