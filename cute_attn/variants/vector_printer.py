"""Prints a vector hook as C++: the functions of one element, or of one pair, that it consists of.

Kernels take a row as pairs and single elements. So the program becomes an expression for the first
of a pair, one for the second and one for an element in no pair, over what the kernel hands over:
the elements, cosine and sine, and sums over the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cute_attn.variants.build import operate, rebuild
from cute_attn.variants.expression import (
    ARGUMENTS,
    VECTOR_ARGUMENTS,
    Expression,
    argument,
    constant,
    node,
)
from cute_attn.variants.operations import ATOM, OPERATIONS, PRODUCT, UNARY
from cute_attn.variants.polynomial import polynomial
from cute_attn.variants.printer import Printer
from cute_attn.variants.vectors import Across, Pairing, across


@dataclass(frozen=True)
class VectorFunctions:
    """What a kernel needs to know of a vector hook.

    Attributes:
        pairing: of its pairs, or None.
        turns: pairs are turned.
        by_pair: every pair has a position of its own.
        follows: positions of keys that follow each other do so too.
        sums: numbers that are summed over the row.
        bodies: C++ of its functions by name, each an expression or statements that end in `return`:
            "position" and "frequency" (in float64) of the turn; "first", "second" of a pair and
            "element" in none; "pair_sum_0", "element_sum_0", ...: what they add to the sums.
    """

    pairing: Pairing | None
    turns: bool
    by_pair: bool
    follows: bool
    sums: int
    bodies: Mapping[str, str]

    @property
    def text(self) -> str:
        """All of it, for people and digests."""
        pairs = []
        if self.pairing is not None:
            how = "i, i + half" if self.pairing.halves else "2 i, 2 i + 1"
            count = self.pairing.elements
            pairs = [f"// pairs ({how}) of {'all' if count is None else count} elements"]
        lines = pairs
        for name, body in self.bodies.items():
            lines += [f"// {name}", as_statements(body)]
        return "\n".join(lines)


def as_statements(body: str) -> str:
    """The body of a function."""
    return body if "return " in body else f"return {body};"


def vector_functions(root: Expression, names: Mapping[Expression, str]) -> VectorFunctions:
    """The functions of a program.

    Args:
        root: its result.
        names: the user's names of values in it.
    """
    parts = across(root)
    bodies: dict[str, str] = {}
    if parts.position is not None and parts.frequency is not None:
        bodies["position"] = _cpp(parts.position, names)
        bodies["frequency"] = _DoublePrinter({"": parts.frequency}, names).body(parts.frequency)
    places: dict[str, int | None] = {"element": None}
    if parts.pairing is not None:
        places = {"first": 0, "second": 1, "element": None}
    for k, term in enumerate(parts.sums):
        element = _Place(parts, None, names)
        if parts.pairing is not None:
            of_pair = _Place(parts, 0, names)
            both = operate("add", of_pair.at(term), _Place(parts, 1, names).at(term))
            bodies[f"pair_sum_{k}"] = _cpp(both, of_pair.names)
        bodies[f"element_sum_{k}"] = _cpp(element.at(term), element.names)
    for name, number in places.items():
        place = _Place(parts, number, names)
        bodies[name] = _cpp(place.at(root), place.names)
    turns = parts.position is not None
    by_pair = parts.position is not None and "pair" in parts.position.reads
    follows = _follows(parts.position)
    return VectorFunctions(parts.pairing, turns, by_pair, follows, len(parts.sums), bodies)


def _follows(position: Expression | None) -> bool:
    """Whether the position of a turn is `pos` and what is the same for a request and head, for all
    pairs."""
    if position is None or "pair" in position.reads:
        return False
    own = argument("pos")
    terms = dict(polynomial(position))
    return terms.pop((own,), 0) == 1 and not any("pos" in x.reads for m in terms for x in m)


class _Place:
    """Expressions at one place: the first (0) or second (1) of a pair, or (None) an element."""

    def __init__(self, parts: Across, number: int | None, names: Mapping[Expression, str]) -> None:
        self.parts, self.number = parts, number
        self.names: dict[Expression, str] = {}
        self._given = names
        self._found: dict[tuple[Expression, int | None], Expression] = {}

    def at(self, x: Expression) -> Expression:
        return self._at(x, self.number)

    def _at(self, x: Expression, number: int | None) -> Expression:
        key = x, number
        if key not in self._found:
            new = self._found[key] = self._make(x, number)
            if number == self.number and x in self._given and not new.is_leaf:
                self.names.setdefault(new, self._given[x])
        return self._found[key]

    def _make(self, x: Expression, number: int | None) -> Expression:
        if x.op == "argument" and x.value == "x" and number is not None:
            return argument(("first", "second")[number])
        if x.op == "argument" and x.value == "index" and number is not None:
            return self._index(number)
        if x.is_leaf:
            return x
        if x.op == "join":
            return self._at(x.args[2 if number is None else number], number)
        if x.op in ("first", "second"):
            return self._at(x.args[0], int(x.op == "second"))
        if x.op == "sum":
            return node("argument", (), "f32", f"sums[{self.parts.sums.index(x.args[0])}]")
        if x.op in ("cosine", "sine"):
            return argument(x.op)
        return rebuild(x, tuple(self._at(arg, number) for arg in x.args))

    def _index(self, number: int) -> Expression:
        pairing, pair = self.parts.pairing, argument("pair")
        assert pairing is not None
        if not pairing.halves:
            return operate("add", operate("mul", constant(2), pair), constant(number))
        count = argument("head_dim") if pairing.elements is None else constant(pairing.elements)
        half = operate("floordiv", count, constant(2))
        return operate("add", pair, half) if number else pair


_DOUBLE = {
    "div": ("{} / {}", PRODUCT),
    "to_f32": ("double({})", ATOM),
    "abs": ("fabs({})", ATOM),
    "min": ("fmin({}, {})", ATOM),
    "max": ("fmax({}, {})", ATOM),
    "sigmoid": ("(1.0 / (1.0 + exp(-({}))))", ATOM),
    "round": ("rint({})", ATOM),
} | {
    name: (f"{name}({', '.join(['{}'] * OPERATIONS[name].arity)})", ATOM)
    for name in (
        "exp", "exp2", "log", "log2", "tanh", "sqrt", "rsqrt", "sin", "cos", "pow", "erf", "floor",
        "ceil", "trunc",
    )
}  # fmt: skip


class _VectorPrinter(Printer):
    """As one expression, or statements."""

    arguments = frozenset({*ARGUMENTS, *VECTOR_ARGUMENTS})

    def _division(self, x: Expression, y: Expression) -> tuple[str, int]:
        if y.reads == {"head_dim"}:  # a constant of the kernel
            reciprocal = f"(1.0f / {self._operand(y, PRODUCT + 1)})"
            return f"{self._operand(x, PRODUCT)} * {reciprocal}", PRODUCT
        return super()._division(x, y)


def _cpp(root: Expression, names: Mapping[Expression, str]) -> str:
    return _VectorPrinter({"": root}, names).body(root)


class _DoublePrinter(_VectorPrinter):
    """The same in float64; scalars are there as doubles."""

    types = {"bool": "bool", "i32": "int", "f32": "double"}  # noqa: RUF012 - never changed

    def _print(self, node: Expression) -> tuple[str, int]:
        if node.is_constant and node.kind == "f32":
            text = repr(float(node.value))
            return text, UNARY if text.startswith("-") else ATOM
        is_float = any(x.kind == "f32" for x in node.args) or node.op == "to_f32"
        if node.op in _DOUBLE and is_float:
            template, own = _DOUBLE[node.op]
            if own == ATOM:
                return template.format(*(self.printed[x][0] for x in node.args)), ATOM
            left, right = node.args
            return template.format(self._operand(left, own), self._operand(right, own + 1)), own
        return super()._print(node)

    def _scaled_tanh(self, node: Expression) -> None:
        return None
