"""The machine code of a kernel, with its main loops: what a pass over a block of keys issues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from cute_attn.runtime.instruction_kinds import kind_of, mix
from cute_attn.runtime.sass import Instruction, Loop, loops, parse


@dataclass(frozen=True)
class MainLoop:
    """A loop over blocks of keys: it has products and exponentials, and no loop in it has both.

    A kernel has several where it loops over masked blocks apart from others.

    Attributes:
        loop: all of it, also what seldom runs (a second pass over scores, waiting).
        usual: what a usual pass issues: the way through the loop with the most products, of such
            ways the one with the most copies, then the shortest. An inner loop is counted once.
    """

    loop: Loop
    usual: tuple[Instruction, ...]

    @property
    def mix(self) -> dict[str, int]:
        """Instructions of the usual pass by kind; see `runtime.instruction_kinds`."""
        return mix(self.usual)

    @property
    def opcodes(self) -> Counter[str]:
        """Instructions of the usual pass by base name."""
        return Counter(one.name for one in self.usual)

    @property
    def spills(self) -> bool:
        """Whether any pass touches local memory."""
        return any(kind_of(one) == "local" for one in self.loop.instructions)


class MachineCode:
    """SASS of one kernel.

    Args:
        sass: as `nvdisasm` prints it.
    """

    def __init__(self, sass: str) -> None:
        self.sass = sass

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """All of them."""
        return tuple(parse(self.sass)[0])

    @cached_property
    def main_loops(self) -> tuple[MainLoop, ...]:
        """In the order of the text; none in kernels without products, such as the merge."""
        full = [loop for loop in loops(self.sass) if _multiplies(loop) and _exponentiates(loop)]
        inner = [loop for loop in full if not any(loop.contains(other) for other in full)]
        return tuple(MainLoop(loop, loop.heaviest_pass(_weight)) for loop in inner)

    @property
    def main_loop(self) -> MainLoop | None:
        """The one with the shortest usual pass: what the bulk of blocks, which no mask touches,
        run."""
        return min(self.main_loops, key=lambda found: len(found.usual), default=None)


def _multiplies(loop: Loop) -> bool:
    return _any(loop.instructions, "tensor")


def _exponentiates(loop: Loop) -> bool:
    return _any(loop.instructions, "mufu")


def _any(instructions: Iterable[Instruction], kind: str) -> bool:
    return any(kind_of(one) == kind for one in instructions)


def _weight(instruction: Instruction) -> tuple[int, ...]:
    kind = kind_of(instruction)
    return int(kind == "tensor"), int(kind == "async copy"), -1
