"""Typed scalar expressions: an immutable graph in which equal subexpressions are one node.

Nodes are compared and hashed by identity, which hash-consing makes equality. Values in a user's
hands are `Traced`, which has the operators; what the operations mean is in `operations`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

KINDS = ("bool", "i32", "f32")
ARGUMENTS = {
    "score": "f32", "b": "i32", "h": "i32", "q_idx": "i32", "kv_idx": "i32", "lse": "f32",
    "out": "f32", "d": "i32",
}  # fmt: skip
"""What hooks of scores and on finished rows are functions of, and the kind of each."""
VECTOR_ARGUMENTS = {
    "x": "f32", "pos": "i32", "index": "i32", "pair": "i32", "head_dim": "i32",
    "first": "f32", "second": "f32", "cosine": "f32", "sine": "f32",
}  # fmt: skip
"""What vector hooks read beside b and h: an element, the row's position, the element's index, the
number of a pair, the length of the row; and what kernels hand over for a pair."""

VECTOR_OPERATIONS = ("first", "second", "join", "sum", "cosine", "sine")
"""Operations on rows: see `vectors`."""
_VARYING = frozenset(ARGUMENTS).union(VECTOR_ARGUMENTS) - {"head_dim"}

Constant = bool | int | float


class Expression:
    """A node.

    Attributes:
        op: "constant", "argument", "scalar", "load" (an element of a tensor), the name of a row of
            `operations.OPERATIONS` or of `VECTOR_OPERATIONS`. `bounds` makes others.
        args: operands; of a load the indices.
        kind: "bool", "i32" or "f32".
        value: of a constant the number, of an argument, scalar or load the name, of an operation on
            pairs the `Pairing`, else None.
        reads: names of the arguments, scalars and tensors in it.
    """

    __slots__ = ("__weakref__", "args", "kind", "op", "reads", "value")

    op: str
    args: tuple[Expression, ...]
    kind: str
    value: Any
    reads: frozenset[str]

    @property
    def is_constant(self) -> bool:
        return self.op == "constant"

    @property
    def is_leaf(self) -> bool:
        return not self.args

    @property
    def is_uniform(self) -> bool:
        """Whether it is the same for every score (of vector hooks: every row) of a launch."""
        return self.reads.isdisjoint(_VARYING)

    def __reduce__(self) -> tuple[object, ...]:
        return node, (self.op, self.args, self.kind, self.value)

    def __repr__(self) -> str:
        if self.is_leaf:
            return str(self.value)
        if self.op == "load":
            return f"{self.value}[{', '.join(map(repr, self.args))}]"
        return f"{self.op}({', '.join(map(repr, self.args))})"

    def walk(self) -> Iterator[Expression]:
        """Every node below and this one, operands first, each once."""
        seen: set[Expression] = set()
        stack = [(self, False)]
        while stack:
            node, done = stack.pop()
            if done:
                yield node
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args) if arg not in seen)


_Key = tuple[object, ...]
_nodes: WeakValueDictionary[_Key, Expression] = WeakValueDictionary()
_lock = threading.Lock()


def node(op: str, args: tuple[Expression, ...], kind: str, value: Any = None) -> Expression:
    """The one node with these attributes."""
    key = (op, args, kind, repr(value))  # repr: 0.0 and -0.0 are equal, 1 and True too
    with _lock:
        found = _nodes.get(key)
        if found is None:
            found = Expression()
            found.op, found.args, found.kind, found.value = op, args, kind, value
            own = {str(value)} if op in ("argument", "scalar", "load", "range") else set()
            found.reads = frozenset(own.union(*(arg.reads for arg in args)))
            _nodes[key] = found
    return found


def constant(value: Constant) -> Expression:
    """A number: bool -> bool, int -> i32, float -> f32.

    Raises:
        OverflowError: it does not fit.
    """
    if isinstance(value, bool):
        return node("constant", (), "bool", value)
    if isinstance(value, int):
        if not -(1 << 31) <= value < 1 << 31:
            raise OverflowError(f"{value} is no 32-bit integer")
        return node("constant", (), "i32", value)
    if abs(value) >= 3.4028235677973366e38 and value not in (float("inf"), -float("inf")):
        raise OverflowError(f"{value} is too large for float32")
    return node("constant", (), "f32", value)


def argument(name: str) -> Expression:
    """A hook's argument."""
    return node("argument", (), {**VECTOR_ARGUMENTS, **ARGUMENTS}[name], name)


def scalar(name: str, kind: str) -> Expression:
    """A run-time scalar of the variant."""
    return node("scalar", (), kind, name)


def load(name: str, kind: str, indices: tuple[Expression, ...]) -> Expression:
    """An element of a tensor parameter."""
    return node("load", indices, kind, name)
