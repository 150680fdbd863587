"""What plans take from the tune database: the kernel of a step, if one was found to be faster."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from cute_attn.api import dispatch
from cute_attn.api.kernel import Kernel, build, build_with, launched_with
from cute_attn.api.kernel_source import Compiled
from cute_attn.api.step import Step
from cute_attn.api.tune_plan import candidate_spec
from cute_attn.codegen.spec import KernelSpec, UnsupportedSpecError
from cute_attn.runtime.device import DeviceInfo
from cute_attn.runtime.errors import CacheMissError, ToolchainError
from cute_attn.tuning import Candidate, Database, Entry, TunedTable, files
from cute_attn.tuning.kernel_class import KernelClass, kernel_class
from cute_attn.tuning.step import StepKey, step_key

logger = logging.getLogger("cute_attn")


class Tuned(Compiled):
    """Kernels that a database names, compiled with the toolchains that it names.

    Args:
        database: of the GPU.
    """

    def __init__(self, database: Database) -> None:
        self._table = TunedTable(database)
        self._toolchains: dict[KernelSpec, str] = {}

    def of_problem(
        self, problem: dispatch.Problem, num_kv_heads: int, num_sms: int
    ) -> TunedProblem | None:
        """What is known of a problem; None: nothing."""
        if class_of(problem) not in self._table:
            return None
        return TunedProblem(self, problem, num_kv_heads, num_sms)

    def nearest(self, of_kernel: KernelClass, key: StepKey) -> Entry | None:
        """What was measured of a step nearby, if another kernel than the default may be taken."""
        entry = self._table.nearest(of_kernel, key)
        return None if entry is None or not entry.offers else entry

    def offering(self, of_kernel: KernelClass) -> list[Entry]:
        """What was measured of steps that may take another kernel than the default."""
        return self._table.offering(of_kernel)

    def prefer(self, spec: KernelSpec, toolchain: str | None) -> None:
        """From now on the kernel of `spec` is made by this compiler, where it is known."""
        if toolchain is not None:
            self._toolchains[spec] = toolchain

    def toolchain_of(self, spec: KernelSpec) -> str | None:
        """The name that `prefer` was given; None: the default one."""
        return self._toolchains.get(spec)

    def attention(self, spec: KernelSpec) -> Kernel:
        """See `build`."""
        toolchain = self.toolchain_of(spec)
        return build(spec) if toolchain is None else build_with(spec, toolchain)

    def has(self, spec: KernelSpec) -> bool:
        """Whether the kernel of a spec is there, compiled now if need be. Where it is in no cache
        and nothing can or may compile, that is said once."""
        try:
            self.attention(spec)
            for generated in launched_with(spec):
                self.small(generated)
        except (CacheMissError, ToolchainError) as error:
            logger.debug("tuned kernel %s: %s", spec.name, error)
            _say_that_some_are_missing()
            return False
        return True


@dataclass
class _Offer:
    """A kernel for some steps."""

    tuned: Tuned
    spec: KernelSpec

    @cached_property
    def is_there(self) -> bool:
        """Asked, and so compiled, only for a step that takes it."""
        return self.tuned.has(self.spec)


class TunedProblem:
    """What a database knows of one problem on one GPU; the answers are remembered."""

    def __init__(
        self, tuned: Tuned, problem: dispatch.Problem, num_kv_heads: int, num_sms: int
    ) -> None:
        self._tuned, self._class = tuned, class_of(problem)
        self._problem, self._num_kv_heads, self._num_sms = problem, num_kv_heads, num_sms
        self._entries: dict[StepKey, Entry | None] = {}
        self._offers: dict[tuple[StepKey, Candidate], _Offer | None] = {}

    def spec_of(self, step: Step) -> KernelSpec | None:
        """The kernel of a step; None: that of the tables."""
        requests = step.requests
        most = sum(step.band) + 1
        seen = int(np.dot(requests.q_len, np.minimum(requests.kv_len, most)))
        key = step_key(
            requests.most_q_len * self._problem.group,
            step.q_rows,
            requests.num_requests,
            seen,
            self._problem.group,
            self._num_kv_heads,
            self._num_sms,
        )
        if key not in self._entries:
            self._entries[key] = self._tuned.nearest(self._class, key)
        entry = self._entries[key]
        best = None if entry is None else entry.best_at(requests.q_len * self._problem.group)
        if best is None:
            return None
        place = (key, best.candidate)
        if place not in self._offers:
            spec = self._spec(best.candidate, key)
            self._offers[place] = None if spec is None else _Offer(self._tuned, spec)
        offer = self._offers[place]
        return None if offer is None or not offer.is_there else offer.spec

    def all_specs(self) -> list[KernelSpec]:
        """Every kernel that some step may take."""
        found = [
            self._spec(offer.candidate, entry.key)
            for entry in self._tuned.offering(self._class)
            for offer in entry.offers
        ]
        return [spec for spec in dict.fromkeys(found) if spec is not None]

    def _spec(self, candidate: Candidate, key: StepKey) -> KernelSpec | None:
        """A kernel that is taken; None where this version has none such."""
        try:
            spec = candidate_spec(self._problem, candidate, key.kind or None)
        except UnsupportedSpecError:
            return None
        self._tuned.prefer(spec, candidate.toolchain)
        return spec


@cache
def _say_that_some_are_missing() -> None:
    logger.warning(
        "the tune database names kernels that are in no cache, and nothing compiles here: kernels"
        " of the tile tables are taken instead (`cute-attn compile` makes those of the database)"
    )


def class_of(problem: dispatch.Problem) -> KernelClass:
    """The class of kernels of a problem."""
    return kernel_class(
        problem.dtype,
        problem.head_dim_qk,
        problem.head_dim_vo,
        problem.group,
        problem.page_size,
        problem.variant,
    )


def check_given(tuning: object, **others: object) -> None:
    """Raises ValueError for a database that is given beside an option (by name) with which no
    kernel is looked up; those are None or False where there is none such."""
    if tuning is None or isinstance(tuning, bool):
        return
    for name, value in others.items():
        if value is not None and value is not False:
            raise ValueError(
                f"tuning is {str(tuning)!r} and {name} is {str(value)!r}: then no kernel is looked"
                " up; tuning takes None"
            )


def tuned_of(info: DeviceInfo, given: str | Path | bool | Tuned | None = None) -> Tuned | None:
    """What is known of a GPU.

    Args:
        info: the device.
        given: None: the databases of the package and of the user; False: nothing; a path: that
            database alone, which must be one of this GPU; or what is known.

    Raises:
        DatabaseError: the given file cannot be used.
    """
    if isinstance(given, Tuned):
        return given
    if given is False:
        return None
    if given is None or given is True:
        database = files.known_of(info.name, info.num_sms)
    else:
        database = files.read_for_gpu(Path(given), info.name, info.num_sms)
    return None if database is None or not database.entries else Tuned(database)
