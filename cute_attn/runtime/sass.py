"""SASS text as instructions, basic blocks and natural loops.

A loop is found in the control flow graph, not by addresses: the assembler puts code that seldom
runs behind the loop that it belongs to. A natural loop is what reaches a branch back to a header
that dominates it without passing the header (Aho, Lam, Sethi, Ullman, "Compilers", 9.6); dominators
after Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", 2001.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_INSTRUCTION = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)\s*([^;]*);"
)
_LABEL = re.compile(r"(\.[\w.$]+|\$?[\w.$]+):")
_TARGET = re.compile(r"`\(([^)]+)\)")
_ENDS = ("EXIT", "RET", "BRX", "JMX", "JMP", "KILL")  # nothing follows, unless predicated
_BRANCHES = ("BRA", "WARPSYNC")


@dataclass(frozen=True)
class Instruction:
    """One line of machine code.

    Attributes:
        line: its number in the text, from 0.
        address: bytes from the start of its function.
        predicate: "P0", "!UP1", ... or "".
        name: base name, e.g. "HGMMA".
        modifiers: e.g. ".64x128x16.F32.BF16", or "".
        operands: as printed.
    """

    line: int
    address: int
    predicate: str
    name: str
    modifiers: str
    operands: str

    @property
    def opcode(self) -> str:
        """With modifiers: "HGMMA.64x128x16.F32.BF16"."""
        return self.name + self.modifiers

    @property
    def target(self) -> str | None:
        """Label of a branch."""
        if self.name not in _BRANCHES:
            return None
        match = _TARGET.search(self.operands)
        return match[1] if match else None

    @property
    def falls_through(self) -> bool:
        """Whether the next instruction may follow."""
        if self.predicate:
            return True
        if self.name == "BRA":  # `.DIV` and `.CONV` take an operand and may go on
            return "," in self.operands or not self.operands.startswith("`(")
        return self.name not in _ENDS


@dataclass(frozen=True)
class Block:
    """A basic block: `next` are the blocks that may follow, by number."""

    instructions: tuple[Instruction, ...]
    next: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """A natural loop.

    Attributes:
        blocks: its basic blocks by number, inner loops included; where one follows another without
            a branch back, it stands behind it.
        header: number of the block that a pass begins with.
        backs: numbers of the blocks that branch back to it.
    """

    blocks: dict[int, Block]
    header: int
    backs: tuple[int, ...]

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All of them, in the order of the text."""
        found = (one for block in self.blocks.values() for one in block.instructions)
        return tuple(sorted(found, key=lambda one: one.line))

    @property
    def first(self) -> Instruction:
        """The first instruction of a pass."""
        return self.blocks[self.header].instructions[0]

    def contains(self, other: Loop) -> bool:
        """Whether the other loop lies in this one."""
        return other.blocks.keys() < self.blocks.keys()

    def heaviest_pass(
        self, weight: Callable[[Instruction], tuple[int, ...]]
    ) -> tuple[Instruction, ...]:
        """The way from the header to a branch back whose weights add up to the most; an inner loop
        is passed once.

        Args:
            weight: of an instruction; added up place by place, compared from the left.
        """
        place = {number: index for index, number in enumerate(self.blocks)}
        nothing = (0,) * len(weight(self.first))
        ahead: dict[int, tuple[int, ...]] = {self.header: nothing}
        before: dict[int, int] = {}
        total: dict[int, tuple[int, ...]] = {}
        for number, block in self.blocks.items():
            if number not in ahead:
                continue
            columns = zip(ahead[number], *map(weight, block.instructions), strict=True)
            total[number] = tuple(map(sum, columns))
            for other in block.next:
                forward = place.get(other, -1) > place[number]
                if forward and (other not in ahead or ahead[other] < total[number]):
                    ahead[other], before[other] = total[number], number
        number = max((back for back in self.backs if back in total), key=total.__getitem__)
        passed = [number]
        while number != self.header:
            number = before[number]
            passed.append(number)
        return tuple(one for number in passed[::-1] for one in self.blocks[number].instructions)


def parse(sass: str) -> tuple[list[Instruction], dict[str, int]]:
    """(instructions, labels): a label's value is the index of the instruction behind it."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for number, line in enumerate(sass.splitlines()):
        if match := _INSTRUCTION.match(line):
            address, predicate, name, modifiers, operands = match.groups()
            instructions.append(
                Instruction(
                    number, int(address, 16), predicate or "", name, modifiers, operands.strip()
                )
            )
        elif match := _LABEL.match(line):
            labels[match[1]] = len(instructions)
    return instructions, labels


def loops(sass: str) -> list[Loop]:
    """All natural loops of the text, in the order of their headers."""
    instructions, labels = parse(sass)
    return _Graph(instructions, labels).loops() if instructions else []


class _Graph:
    """Basic blocks of one text; functions that are called are not followed."""

    def __init__(self, instructions: Sequence[Instruction], labels: dict[str, int]) -> None:
        self.instructions = instructions
        starts = {0}
        for index, instruction in enumerate(instructions):
            target = instruction.target
            if target in labels:
                starts.add(labels[target])
            if target is not None or not instruction.falls_through:
                starts.add(index + 1)
        self.starts = sorted(s for s in starts if s < len(instructions))
        block_of = {start: block for block, start in enumerate(self.starts)}
        self.next: list[list[int]] = []
        for _, end in self.spans():
            last = instructions[end - 1]
            following = []
            if last.falls_through and end in block_of:
                following.append(block_of[end])
            if last.target in labels and labels[last.target] in block_of:
                following.append(block_of[labels[last.target]])
            self.next.append(following)
        self.before: list[list[int]] = [[] for _ in self.next]
        for block, following in enumerate(self.next):
            for other in following:
                self.before[other].append(block)

    def spans(self) -> Iterator[tuple[int, int]]:
        """[begin, end) of each block's instructions."""
        ends = [*self.starts[1:], len(self.instructions)]
        return zip(self.starts, ends, strict=True)

    def _reverse_postorder(self) -> list[int]:
        """Blocks that can be reached from the first."""
        order: list[int] = []
        seen = {0}
        stack = [(0, iter(self.next[0]))]
        while stack:
            block, following = stack[-1]
            for other in following:
                if other not in seen:
                    seen.add(other)
                    stack.append((other, iter(self.next[other])))
                    break
            else:
                order.append(block)
                stack.pop()
        return order[::-1]

    def _dominators(self, order: Sequence[int]) -> dict[int, int]:
        """Immediate dominator of each block of the reverse postorder; the first is its own."""
        rank = {block: place for place, block in enumerate(order)}
        above = {order[0]: order[0]}
        changed = True
        while changed:
            changed = False
            for block in order[1:]:
                known = [other for other in self.before[block] if other in above]
                found = known[0]
                for other in known[1:]:
                    while found != other:
                        if rank[found] > rank[other]:
                            found = above[found]
                        else:
                            other = above[other]
                if above.get(block) != found:
                    above[block] = found
                    changed = True
        return above

    def loops(self) -> list[Loop]:
        """Loops with one header are one."""
        order = self._reverse_postorder()
        above = self._dominators(order)
        backs: dict[int, list[int]] = {}
        for block in order:
            for header in self.next[block]:
                if header in _chain(above, block):
                    backs.setdefault(header, []).append(block)
        spans = list(self.spans())
        blocks = {
            number: Block(tuple(self.instructions[slice(*spans[number])]), tuple(self.next[number]))
            for number in order
        }
        found = []
        for header in sorted(backs):
            inside = self._inside(header, backs[header])
            own = {number: block for number, block in blocks.items() if number in inside}
            found.append(Loop(own, header, tuple(backs[header])))
        return found

    def _inside(self, header: int, backs: Sequence[int]) -> set[int]:
        """Blocks from which a branch back is reached without passing the header."""
        inside, pending = {header}, list(backs)
        while pending:
            block = pending.pop()
            if block not in inside:
                inside.add(block)
                pending += self.before[block]
        return inside


def _chain(above: dict[int, int], block: int) -> Iterator[int]:
    """A block and all that dominate it."""
    yield block
    while above[block] != block:
        block = above[block]
        yield block
