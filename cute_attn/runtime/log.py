"""The compiler log as a linter: what the assembler reports of a kernel, and what is a fault.

`parse_log` turns the ``--ptxas-options=-v`` report into `Resources`; ``Resources.lint()`` lists
spills, stack frames, serialized ``wgmma`` (C75xx) and ignored ``setmaxnreg``. An empty list means a
clean kernel. `first_errors` picks the front end's error messages out of a failed compile's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for '?([^'\s]+)'?")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SMEM = re.compile(r"(\d+) bytes smem")
_CMEM = re.compile(r"(\d+) bytes cmem\[\d+\]")
_PERFORMANCE = re.compile(r"\(C75\d\d\)|setmaxnreg.*ignored|wgmma.*serialized", re.IGNORECASE)
_FRONT_END_WARNING = re.compile(r"^\S*\(\d+\): warning .*$", re.MULTILINE)
_ERROR = re.compile(
    r"^(\S*\(\d+\): (?:catastrophic )?error|ptxas .*\b(?:fatal|error)\b|nvrtc: error)"
)
_ELSEWHERE = re.compile(r"^(\S*\(\d+\): |\d+ errors? detected|ptxas |\d+ catastrophic error)")


@dataclass(frozen=True)
class Resources:
    """What one kernel takes, by the assembler's report; bytes per thread but for shared memory.

    ``registers`` is the count at entry (the launch's; ``setmaxnreg`` may move it later),
    ``static_smem_bytes`` the statically declared shared memory per block. ``stack_bytes`` and the
    spills add up the entry and every function it did not inline. ``performance_warnings`` are the
    assembler's own (C75xx), ``warnings`` the front end's.
    """

    registers: int
    static_smem_bytes: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    barriers: int = 0
    const_bytes: int = 0
    performance_warnings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def lint(self) -> list[str]:
        """Reasons why this kernel is not fit to ship; empty when it is clean."""
        found = []
        if self.spill_store_bytes or self.spill_load_bytes:
            found.append(
                f"spills: {self.spill_store_bytes} bytes stored, {self.spill_load_bytes} bytes "
                "loaded (fewer live values: smaller tile, fewer stages in registers)"
            )
        if self.stack_bytes:
            found.append(
                f"stack frame of {self.stack_bytes} bytes "
                "(a register array is indexed by a run-time value, or registers ran out)"
            )
        found.extend(self.performance_warnings)
        return found

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Resources:
        """Inverse of `to_json` after a trip through JSON; raises TypeError or KeyError on anything
        else.
        """
        fields = dict(data)
        for name in ("performance_warnings", "warnings"):
            value = fields.get(name, ())
            if not isinstance(value, list | tuple):
                raise TypeError(f"{name} must be a list, got {value!r}")
            fields[name] = tuple(str(line) for line in value)
        return cls(**fields)  # type: ignore[arg-type]  # values come from our own asdict


def parse_log(log: str, name: str) -> Resources | None:
    """Resources of entry ``name`` as reported in ``log``; None if there is no such entry.

    The report names an entry, then its functions' stack frames and at last the registers, line by
    line.
    """
    current = ""
    frame = [0, 0, 0]
    used: re.Match[str] | None = None
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            current = match[1]
        elif match := _FRAME.search(line):
            # Functions that were not inlined are listed too: they run on behalf of the entry.
            if current in ("", name):
                frame = [
                    total + int(part) for total, part in zip(frame, match.groups(), strict=True)
                ]
        elif (match := _USED.search(line)) and current == name:
            used = match
    if used is None:
        return None

    def first(pattern: re.Pattern[str]) -> int:
        match = pattern.search(used[2])
        return int(match[1]) if match else 0

    return Resources(
        registers=int(used[1]),
        static_smem_bytes=first(_SMEM),
        stack_bytes=frame[0],
        spill_store_bytes=frame[1],
        spill_load_bytes=frame[2],
        barriers=first(_BARRIERS),
        const_bytes=sum(int(size) for size in _CMEM.findall(used[2])),
        performance_warnings=_unique(
            line.strip() for line in log.splitlines() if _PERFORMANCE.search(line)
        ),
        warnings=_unique(match.strip() for match in _FRONT_END_WARNING.findall(log)),
    )


def entries(log: str) -> tuple[str, ...]:
    """Names of all entry functions that the assembler reported."""
    return tuple(_ENTRY.findall(log))


def first_errors(log: str, limit: int = 3) -> tuple[str, ...]:
    """The first ``limit`` error messages, each with the source lines printed under it."""
    errors: list[str] = []
    block: list[str] = []
    for line in [*log.splitlines(), "0 errors detected"]:
        if block and (_ELSEWHERE.match(line) or not line.strip()):
            errors.append("\n".join(block))
            block = []
        if _ERROR.match(line):
            block = [line.rstrip()]
        elif block and line.strip():
            block.append(line.rstrip())
    return tuple(errors[:limit])


def _unique(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))
