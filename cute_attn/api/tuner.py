"""`tune`: measures kernels on a GPU and stores which are faster than those of the tile tables."""

from __future__ import annotations

import datetime
import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cute_attn.api import tune_report
from cute_attn.api.calibrate import driver_release, own_version
from cute_attn.api.costs import constants_of
from cute_attn.api.tune_bench import MOST_ERROR, CudaBench
from cute_attn.api.tune_kernels import Compiled, compile_contests, further_toolchains
from cute_attn.api.tune_space import CANDIDATES, Contest, contests
from cute_attn.api.tuned import class_of
from cute_attn.runtime.build import known_toolchains, toolchain_in_use
from cute_attn.runtime.device import DeviceInfo, current_device, device_count, device_info
from cute_attn.runtime.errors import DriverError
from cute_attn.runtime.pool import Progress
from cute_attn.tuning import Bench, Entry, TuneStep, default_path, default_steps, search_step, store
from cute_attn.tuning.files import read, read_for_gpu
from cute_attn.tuning.kernel_class import KernelClass
from cute_attn.tuning.step import StepKey

SMS = {"sm_80": 108, "sm_86": 84, "sm_89": 128, "sm_90": 132, "sm_90a": 132}
"""SMs of the best-known GPU of an architecture, for machines that have none."""

_COMPILING = 0.5
"""Share of the time that compiling may take."""

StepProgress = Callable[[int, int, str, "Entry | None"], None]


@dataclass(frozen=True)
class Tuning:
    """What came of it.

    Attributes:
        path: the database.
        entries: of the steps that were measured now.
        known: steps that were in the database already.
        left: steps for which the time did not suffice.
        too_large: steps for which the GPU has too little memory.
        compiled: what became of the kernels.
    """

    path: Path
    entries: tuple[Entry, ...]
    known: int
    left: int
    too_large: int
    compiled: Compiled

    def write_report(self, path: str | Path) -> Path:
        """Writes all that the database holds as a page; see `tune_report.write_report`.

        Raises:
            DatabaseError: there is no database, since nothing was measured.
            ValueError, ModuleNotFoundError, OSError: see there.
        """
        steps = [contest.step for contest in self.compiled.contests]
        return tune_report.write_report(read(self.path), path, steps=steps)


def compile_candidates(
    arch: str,
    *,
    sms: int | None = None,
    steps: Sequence[TuneStep] | None = None,
    match: str = "",
    candidates: int | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Fills the cache with what `tune` measures on another machine; needs no GPU.

    Args:
        arch: of that machine's GPU, e.g. "sm_90a".
        sms: its SMs; default: those of the H200, A100, ...: with others some kernels may differ.
        steps, match, candidates: as for `tune`.
        jobs: compile processes; None takes as many as CPUs and free memory allow.
        progress: called as progress(done, total, result) after each kernel.

    Raises:
        ValueError: no step's name contains `match`.
        ToolchainError: nothing here can compile.
    """
    wanted = default_steps() if steps is None else steps
    found = contests(
        wanted,
        arch,
        sms or SMS[arch],
        most=candidates or CANDIDATES,
        toolchains=further_toolchains(),
    )
    return compile_contests(_matching(found, match), jobs=jobs, progress=progress)


def tune(
    steps: Sequence[TuneStep] | None = None,
    *,
    device: int | None = None,
    seconds: float | None = None,
    match: str = "",
    candidates: int | None = None,
    path: str | Path | None = None,
    again: bool = False,
    jobs: int | None = None,
    compile_progress: Progress | None = None,
    progress: StepProgress | None = None,
) -> Tuning:
    """Measures a GPU, on which nothing else should run meanwhile, and writes what was found.

    What it finds is stored step by step: after an interrupt, or when the time is over, the next
    call goes on where this one ended.

    Args:
        steps: what is tuned; default: steps over head dims, groups, pages and both dtypes.
        device: ordinal; default: the current one.
        seconds: time that it may take, of which compiling may have half; default: as long as it
            takes. What has begun is finished: a few kernels, a burst.
        match: only steps whose name contains this; kernels are tried as for all of them.
        candidates: kernels of a class of steps that are tried, beside those of the tables;
            default: 16.
        path: database to add to; default: the user's for this kind of GPU, which plans look into.
        again: measure also what is in the database.
        jobs: compile processes.
        compile_progress: called as compile_progress(done, total, result) after each kernel.
        progress: called as progress(done, total, name, entry or None) after each step.

    Raises:
        DriverError: there is no GPU, or none of this number.
        ValueError: no step's name contains `match`; DatabaseError (a ValueError): `path` is of
            another GPU or version, or no database.
        OSError: it cannot be written.
    """
    begin = time.monotonic()
    if not device_count() or not torch.cuda.is_available():
        raise DriverError("tune measures a GPU, and there is none that CUDA and torch can use")
    info = device_info(current_device() if device is None else device)
    target = default_path(info.name, info.num_sms) if path is None else Path(path)
    if target.exists():
        read_for_gpu(target, info.name, info.num_sms)  # refused before an hour is spent
    constants = constants_of(info)
    wanted = default_steps() if steps is None else steps
    toolchains = further_toolchains()
    found = contests(
        wanted,
        info.arch,
        info.num_sms,
        most=candidates or CANDIDATES,
        toolchains=toolchains,
        constants=constants,
    )
    found = _matching(found, match)
    # In an order in which little time reaches all kinds of steps.
    random.Random(0).shuffle(found)
    compiled = compile_contests(
        found,
        jobs=jobs,
        progress=compile_progress,
        deadline=None if seconds is None else begin + seconds * _COMPILING,
    )
    with torch.cuda.device(info.index):
        return measure_contests(
            compiled,
            CudaBench(info),
            info,
            target,
            deadline=None if seconds is None else begin + seconds,
            again=again,
            progress=progress,
        )


def _matching(found: list[Contest], match: str) -> list[Contest]:
    matching = [contest for contest in found if match in contest.step.name]
    if found and not matching:
        raise ValueError(f"match is {match!r}; no step's name contains it")
    return matching


def measure_contests(
    compiled: Compiled,
    bench: Bench,
    info: DeviceInfo,
    path: Path,
    *,
    deadline: float | None = None,
    again: bool = False,
    progress: StepProgress | None = None,
) -> Tuning:
    """Measures contests one after the other and stores each.

    Args:
        compiled: what is measured.
        bench: what measures.
        info: the GPU.
        path: the database.
        deadline: of `time.monotonic`.
        again: measure also what is in the database.
        progress: called as progress(done, total, name, entry or None) after each step.

    Raises:
        DatabaseError, OSError: see `tune`.
    """
    made = _made()
    known: Mapping[tuple[KernelClass, StepKey], Entry] = {}
    if path.exists() and not again:
        known = read_for_gpu(path, info.name, info.num_sms).entries
    sms = info.num_sms
    todo = [one for one in compiled.contests if not _is_known(one, known, sms, made)]
    entries: list[Entry] = []
    left, too_large = compiled.left, 0
    for done, contest in enumerate(todo, 1):
        entry: Entry | None = None
        if deadline is not None and time.monotonic() >= deadline:
            left += 1
            continue
        try:
            entry = _measure(contest, bench, made, deadline)
        except torch.cuda.OutOfMemoryError:
            too_large += 1
        else:
            left += entry is None
        if entry is not None:
            entries.append(entry)
            store(path, [entry], name=info.name, sms=info.num_sms, arch=info.arch)
        if progress is not None:
            progress(done, len(todo), contest.step.name, entry)
    return Tuning(
        path=path,
        entries=tuple(entries),
        known=len(compiled.contests) - len(todo),
        left=left,
        too_large=too_large,
        compiled=compiled,
    )


def _measure(
    contest: Contest, bench: Bench, made: dict[str, str | int | float], deadline: float | None
) -> Entry | None:
    """The entry of a step; None: the time was up."""
    session = bench.open(contest.step, contest.specs)
    try:
        result = search_step(
            session,
            contest.predicted_us,
            most_error=MOST_ERROR[contest.step.dtype],
            is_over=lambda: deadline is not None and time.monotonic() >= deadline,
        )
    finally:
        session.close()
    if result is None:
        return None
    measured, winner = result
    return Entry(
        step=contest.step.name,
        kernel_class=class_of(contest.problem),
        key=contest.step.key(bench.num_sms),
        rows=contest.step.packed_rows,
        measured=tuple(measured),
        winner=winner,
        made=made | {"tried": _tried(contest), "date": _now()},
    )


def _is_known(
    contest: Contest,
    known: Mapping[tuple[KernelClass, StepKey], Entry],
    num_sms: int,
    made: dict[str, str | int | float],
) -> bool:
    """Whether the database has an entry of the same step, candidates, driver and toolchain."""
    entry = known.get((class_of(contest.problem), contest.step.key(num_sms)))
    if entry is None or entry.step != contest.step.name:
        return False
    same = all(entry.made.get(name) == made[name] for name in ("driver", "toolchain"))
    return same and entry.made.get("tried") == _tried(contest)


def _tried(contest: Contest) -> str:
    """Eight hex digits of the candidates."""
    labels = "\n".join(sorted(candidate.label for candidate in contest.candidates))
    return hashlib.sha256(labels.encode()).hexdigest()[:8]


def _made() -> dict[str, str | int | float]:
    known = known_toolchains()
    toolchain = toolchain_in_use() or (known[0] if known else None)
    return {
        "driver": driver_release(),
        "torch": torch.__version__,
        "cute_attn": own_version(),
        "toolchain": str(toolchain or ""),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
