"""What vector hooks (of whole query, key and value rows) can do beyond those of a score.

Such a hook is a function of (x, b, h, pos). x is a row of head_dim float32 elements, and an
operation on it is one on each element. Three things go across a row:

    x.sum(), x.mean()                      of all its elements
    x.halves(n), x.neighbours(n)           its first n elements as pairs, which can be mixed
    turn(position, frequency)              the cosine and sine by which a pair is turned

In expressions, a value is one of an element, of a pair, or of the row as a whole (`Level`). What
moves between them: "first" and "second" (element -> pair), "join" (pair -> element), "sum"
(element -> row).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from cute_attn.variants.build import convert, member
from cute_attn.variants.errors import trace_error
from cute_attn.variants.expression import Expression, argument, constant, node
from cute_attn.variants.traced import Traced, lift

ROW, PAIR, ELEMENT = "the row", "a pair", "an element"
"""Levels: what a value is one of."""


@dataclass(frozen=True)
class Pairing:
    """How elements of a row are pairs.

    Attributes:
        halves: pair i is elements i and i + n / 2; else 2 i and 2 i + 1.
        elements: n, the leading elements that are in pairs; None: all.
    """

    halves: bool
    elements: int | None = None

    def within(self, head_dim: int) -> int:
        """Elements in pairs of a row of `head_dim`.

        Raises:
            ValueError: there are fewer, or an odd number.
        """
        count = head_dim if self.elements is None else self.elements
        if count > head_dim or count % 2:
            raise ValueError(
                f"rotary_dim is {count} (pairs of a row); it takes an even number up to head_dim,"
                f" which is {head_dim}"
            )
        return count


class Row(Traced):
    """A row in a hook's hands; what is computed from one is one."""

    __slots__ = ()

    @property
    def index(self) -> Row:
        """The number of each element, from 0; i32."""
        return Row(argument("index"))

    @property
    def size(self) -> Traced:
        """Elements of the row, head_dim; i32."""
        return Traced(argument("head_dim"))

    def sum(self) -> Traced:
        """Sum of the elements, one number for the row."""
        return Traced(node("sum", (convert(self.expression, "f32"),), "f32"))

    def mean(self) -> Traced:
        """Mean of the elements, one number for the row."""
        total: Traced = self.sum() / self.size
        return total

    def halves(self, elements: int | None = None) -> Pairs:
        """The first `elements` (default: all) as pairs of elements i and i + elements / 2."""
        return Pairs(self, Pairing(True, _even(elements)))

    def neighbours(self, elements: int | None = None) -> Pairs:
        """The first `elements` (default: all) as pairs of elements 2 i and 2 i + 1."""
        return Pairs(self, Pairing(False, _even(elements)))


class Pairs:
    """The leading elements of a row as pairs.

    Attributes:
        first, second: the two elements, float32.
        index: the number of the pair, from 0; i32.
        count: pairs of a row; i32.
    """

    def __init__(self, row: Row, pairing: Pairing) -> None:
        self._row, self._pairing = convert(row.expression, "f32"), pairing
        self.first = Traced(member(self._row, 0, pairing))
        self.second = Traced(member(self._row, 1, pairing))
        self.index = Traced(argument("pair"))
        self.count: Traced = Row(self._row).size // 2
        if pairing.elements is not None:
            self.count = Traced(constant(pairing.elements // 2))

    def join(self, first: Any, second: Any) -> Row:
        """The row with these in the place of the pairs; elements in none stay as they are."""
        a, b = (convert(lift(x), "f32") for x in (first, second))
        return Row(node("join", (a, b, self._row), "f32", self._pairing))


def turn(position: Any, frequency: Any) -> tuple[Traced, Traced]:
    """Cosine and sine of position * frequency radians; exact in the angle, whatever the position.

    Args:
        position: i32: `pos`, or an element of a tensor; one for the row, or one for each pair.
        frequency: radians per position, of the pair's number, scalars and tensors. It is computed
            in float64, once in a launch.

    Raises:
        TraceError: position is no integer.
    """
    where, how_fast = lift(position), convert(lift(frequency), "f32")
    if where.kind != "i32":
        _refuse(
            f"turn() takes an integer position, got {where.kind}: what positions are scaled by"
            " belongs into the frequency"
        )
    cosine, sine = (node(op, (where, how_fast), "f32") for op in ("cosine", "sine"))
    return Traced(cosine), Traced(sine)


def _even(elements: int | None) -> int | None:
    if elements is not None and (elements % 2 or elements < 2):
        _refuse(f"{elements} elements are no pairs; it takes an even number, at least 2")
    return elements


def _refuse(message: str) -> NoReturn:
    raise trace_error(message) from None


_LEAVES = {"x": ELEMENT, "index": ELEMENT, "pair": PAIR}
_RESULTS = {"first": PAIR, "second": PAIR, "join": ELEMENT, "sum": ROW}


def levels(root: Expression) -> Mapping[Expression, str]:
    """What every value of a row's hook is one of.

    Raises:
        ValueError: values of pairs and of elements meet.
    """
    found: dict[Expression, str] = {}
    for x in root.walk():
        if x.op == "argument":
            found[x] = _LEAVES.get(str(x.value), ROW)
            continue
        if x.op == "join":
            _only(x.args[:2], PAIR, found, "join() takes values of pairs")
            _only(x.args[2:], ELEMENT, found, "pairs are of a row")
        elif x.op in ("first", "second"):
            _only(x.args, ELEMENT, found, "pairs are of a row")
        elif x.op == "sum":
            _only(x.args, ELEMENT, found, "sums are of rows")
        own = {found[arg] for arg in x.args} - {ROW}
        if len(own) > 1 and x.op != "join":
            raise ValueError("a value of an element meets one of a pair: join() the pairs first")
        found[x] = _RESULTS.get(x.op) or (own.pop() if own else ROW)
    return found


def _only(
    args: tuple[Expression, ...], level: str, found: Mapping[Expression, str], what: str
) -> None:
    if any(found[arg] not in (level, ROW) for arg in args):
        raise ValueError(f"{what}; this one is of {found[args[0]]}")


@dataclass(frozen=True)
class Across:
    """What of a row's hook goes across elements.

    Attributes:
        pairing: of its pairs, or None.
        position, frequency: of its turn, or None.
        sums: what is summed over the row.
    """

    pairing: Pairing | None
    position: Expression | None
    frequency: Expression | None
    sums: tuple[Expression, ...]


def across(root: Expression) -> Across:
    """What of an expression goes across elements.

    Raises:
        ValueError: more than the kernels do in one pass over a row.
    """
    level = levels(root)
    nodes = list(root.walk())
    pairings = list(dict.fromkeys(x.value for x in nodes if x.op in ("first", "second", "join")))
    if len(pairings) > 1:
        raise ValueError("the row is taken as pairs in two ways; a hook has one")
    angles = (x.args for x in nodes if x.op in ("cosine", "sine"))
    turns = [(position, frequency) for position, frequency in dict.fromkeys(angles)]
    if len(turns) > 1:
        raise ValueError("there are turns by two angles; a hook has one")
    for position, frequency in turns:
        if level[position] == ELEMENT or "x" in position.reads:
            raise ValueError("the position of turn() is of the row or the pair, and not of x")
        if level[frequency] == ELEMENT or frequency.reads & {"x", "b", "h", "pos"}:
            raise ValueError(
                "the frequency of turn() depends on the pair, scalars and tensors alone, not on x,"
                " b, h or pos"
            )
    sums = tuple(dict.fromkeys(x.args[0] for x in nodes if x.op == "sum"))
    if any(x.op == "sum" for term in sums for x in term.walk()):
        raise ValueError("a sum over the row is of another sum; sums are of x and what is the same")
    pairing = pairings[0] if pairings else None
    if not turns:
        return Across(pairing, None, None, sums)
    return Across(pairing, *turns[0], sums)
