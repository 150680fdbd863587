"""Prints an expression as the C++ of a hook.

One statement a line: what the user gave a name has that name, what is used twice gets one, and so
does what would make a line too long.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from cute_attn.variants.domain import bounds
from cute_attn.variants.expression import ARGUMENTS, Expression, constant
from cute_attn.variants.interval import Interval
from cute_attn.variants.names import KEYWORDS, OF_FUNCTIONS
from cute_attn.variants.operations import (
    AND,
    ATOM,
    BIT_AND,
    CHOICE,
    EQUALITY,
    OPERATIONS,
    OR,
    PRODUCT,
    SHIFT,
    UNARY,
)

CPP_TYPES = {"bool": "bool", "i32": "int", "i64": "int64_t", "f32": "float", "range": "Range"}
# Of bounds: see `bounds`.
_CASTS = {
    "to_i64": "int64_t({})", "saturated": "saturated({})", "least": "{}.least", "most": "{}.most",
}  # fmt: skip

HEADER_FUNCTIONS = frozenset(
    {
        "fast_exp", "fast_sigmoid", "fast_sqrt", "fast_sin", "fast_cos", "fast_pow",
        "fast_reciprocal", "floor_div", "floor_mod", "row_address", "saturated", "sigmoid2_approx",
        "sigmoid_approx", "tanh_approx", "within",
    }
)  # fmt: skip
"""Those of `cute_attn/hook_functions.hpp`."""

_LONGEST = 80
_ONE = constant(1.0)

_OURS = """
    abs min max fabsf fminf fmaxf floorf ceilf truncf rintf rsqrtf erff fast_tanh
    scaled_tanh exp2_approx neg_infinity
"""
_RESERVED = HEADER_FUNCTIONS.union(KEYWORDS, OF_FUNCTIONS, _OURS.split())


def literal(node: Expression) -> str:
    """A constant."""
    value = node.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value > -(1 << 31) else "(-2147483647 - 1)"
    number = np.float32(value)
    if np.isinf(number):
        return "neg_infinity()" if number < 0 else "-neg_infinity()"
    return f"{number!s}f"


def cpp_body(
    root: Expression, names: Mapping[Expression, str] | None = None, *, lag: bool = False
) -> str:
    """The body of a function that returns `root`: one expression, or statements.

    Arguments and scalars are under their own names.

    Args:
        root: the expression.
        names: names for some of its nodes.
        lag: the function also has q_idx - kv_idx, the `Lag` of lag.hpp.
    """
    return Printer({"": root}, names or {}, lag=lag).body(root)


def cpp_values(
    roots: Mapping[str, Expression], limits: Callable[[Expression], Interval]
) -> list[str]:
    """Statements that give values names, in this order.

    Args:
        roots: the values by name; what stands in two of them is computed once.
        limits: what integers in them are between.
    """
    printer = Printer(roots, {}, limits=limits)
    for name, root in roots.items():
        value = printer.value(root)
        printer.statements.append(f"{CPP_TYPES[root.kind]} const {name} = {value};")
    return printer.statements


def cpp_expression(root: Expression) -> str:
    """`root` as one expression, however long."""
    return Printer({"": root}, {}, longest=None).value(root)


def _sign_of_lag(node: Expression) -> int:
    """1: it is q_idx - kv_idx; -1: kv_idx - q_idx; 0: neither."""
    ends = [str(x.value) for x in node.args] if node.op == "sub" else []
    return (ends == ["q_idx", "kv_idx"]) - (ends == ["kv_idx", "q_idx"])


class Printer:
    """Prints values, each once by `value` or `body`."""

    types = CPP_TYPES
    arguments = frozenset(ARGUMENTS)

    def __init__(
        self,
        roots: Mapping[str, Expression],
        names: Mapping[Expression, str],
        longest: int | None = _LONGEST,
        limits: Callable[[Expression], Interval] = bounds,
        *,
        lag: bool = False,
    ) -> None:
        self.roots = roots
        self.has_lag = lag
        self.longest = longest
        self.limits = limits
        nodes = dict.fromkeys(node for root in roots.values() for node in root.walk())
        self.uses = Counter(x for node in nodes for x in node.args)
        self.wanted = names
        reads = (root.reads for root in roots.values())
        self.taken = set(_RESERVED).union(self.arguments, roots, *reads)
        self.statements: list[str] = []
        self.named: set[Expression] = set()
        self.printed: dict[Expression, tuple[str, int]] = {}

    def value(self, root: Expression) -> str:
        """The text of a root; statements that come before it are in `statements`."""
        for node in root.walk():
            if node in self.printed:
                continue
            self.printed[node] = self._print(node)
            while self._is_long(node) and (operand := self._longest_operand(node)):
                self._give_name(operand)
                self.printed[node] = self._print(node)
            if node is not root and not node.is_leaf and self._wants_name(node):
                self._give_name(node)
        return self.printed[root][0]

    def body(self, root: Expression) -> str:
        """The body of a function that returns `root`: one expression, or statements."""
        result = self.value(root)
        return "\n".join([*self.statements, f"return {result};"]) if self.statements else result

    def _is_long(self, node: Expression) -> bool:
        return self.longest is not None and len(self.printed[node][0]) > self.longest

    def _wants_name(self, node: Expression) -> bool:
        if self.longest is None or node.op in ("least", "most"):  # fields
            return False
        return node in self.wanted or self.uses[node] > 1

    def _longest_operand(self, node: Expression) -> Expression | None:
        """The operand that takes most room; None if all are names already."""
        compound = [x for x in node.args if not x.is_leaf and x not in self.named]
        return max(compound, key=lambda x: len(self.printed[x][0]), default=None)

    def _give_name(self, node: Expression) -> None:
        name = self._name(self.wanted.get(node))
        self.statements.append(f"{self.types[node.kind]} const {name} = {self.printed[node][0]};")
        self.printed[node] = name, ATOM
        self.named.add(node)

    def _name(self, wanted: str | None) -> str:
        if wanted is not None and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", wanted):
            name = wanted
            while name in self.taken:
                name += "_"
        else:
            name = next(n for i in range(len(self.taken) + 1) if (n := f"t{i}") not in self.taken)
        self.taken.add(name)
        return name

    def _operand(self, node: Expression, least: int) -> str:
        text, precedence = self.printed[node]
        return text if precedence >= least else f"({text})"

    def _print(self, node: Expression) -> tuple[str, int]:
        """Text and precedence of one node, over its operands' texts."""
        if node.is_constant:
            text = literal(node)
            return text, UNARY if text.startswith("-") else ATOM
        if node.is_leaf:
            return str(node.value), ATOM
        if node.op in _CASTS:
            return _CASTS[node.op].format(self.printed[node.args[0]][0]), ATOM
        if node.op == "mul" and (scaled := self._scaled_tanh(node)):
            return scaled
        if self.has_lag and (lag := self._lag(node)):
            return lag
        if node.op == "div" and node.args[1].is_uniform:
            return self._division(*node.args)
        if node.op in ("floordiv", "mod") and (plain := self._plain_division(node)):
            return plain
        if node.op in ("load", "range"):
            indices = (self.printed[x][0] for x in node.args)
            return f"{node.value}({', '.join(['params', *indices])})", ATOM
        row = OPERATIONS[node.op]
        template = row.cpp.get(node.args[-1].kind) or row.cpp[""]
        own = row.precedence
        if own in (AND, OR) and any(x.op == "load" for x in node.walk()):
            # A load behind "&&" would be a branch.
            template, own = template.replace("&&", "&").replace("||", "|"), BIT_AND
        if own == ATOM:  # a call
            return template.format(*(self.printed[x][0] for x in node.args)), ATOM
        of_logic = own == EQUALITY and node.args[0].kind == "bool"
        if own in (AND, OR, SHIFT) or OR < own <= BIT_AND or of_logic:  # an order few know
            leasts = [UNARY] * len(node.args)
        elif own == UNARY:
            leasts = [ATOM]  # no "--x"
        elif own == CHOICE:
            leasts = [CHOICE + 1] * 3
        else:
            leasts = [own, own + 1]
        operands = [self._operand(*x) for x in zip(node.args, leasts, strict=True)]
        return template.format(*operands), own

    def _scaled_tanh(self, node: Expression) -> tuple[str, int] | None:
        """A soft cap: tanh between factors that are the same for every score."""
        for out, bent in (node.args, node.args[::-1]):
            if not (out.is_uniform and bent.op == "tanh") or bent in self.named:
                continue
            (inner,) = bent.args
            if inner in self.named or inner.op not in ("mul", "div"):
                continue
            x, factor = inner.args
            if inner.op == "mul" and x.is_uniform:
                x, factor = factor, x
            if not factor.is_uniform:
                continue
            text = self.printed[factor][0]
            if inner.op == "div":
                text = self._division(_ONE, factor)[0]
            return f"scaled_tanh({self.printed[x][0]}, {text}, {self.printed[out][0]})", ATOM
        return None

    def _lag(self, node: Expression) -> tuple[str, int] | None:
        """The distance of query and key: as an integer, as a float, times a factor of the row."""
        for factor, lag in (node.args, node.args[::-1]) if node.op == "mul" else ():
            if node.kind == "f32" and lag.op == "to_f32" and lag not in self.named:
                sign = _sign_of_lag(lag.args[0])
                if sign and factor.reads.isdisjoint(("score", "kv_idx")):
                    text = self._operand(factor, UNARY) if sign < 0 else self.printed[factor][0]
                    return f"lag.times({'-' if sign < 0 else ''}{text})", ATOM
        kind, distance = ("float", node.args[0]) if node.op == "to_f32" else ("int", node)
        sign = 0 if distance in self.named else _sign_of_lag(distance)
        if sign:
            return (f"-{kind}(lag)", UNARY) if sign < 0 else (f"{kind}(lag)", ATOM)
        return None

    def _division(self, x: Expression, y: Expression) -> tuple[str, int]:
        """By what is the same for every score: its reciprocal is computed once. That of a constant
        is exact, that of a number of the launch the fast one: a division is a call."""
        if y.is_constant:
            reciprocal, precedence = f"1.0f / {self._operand(y, PRODUCT + 1)}", PRODUCT
        else:
            reciprocal, precedence = f"fast_reciprocal({self.printed[y][0]})", ATOM
        if x.is_constant and x.value == 1:
            return reciprocal, precedence
        if y.is_constant and x.is_uniform:
            return f"{self._operand(x, PRODUCT)} / {self._operand(y, PRODUCT + 1)}", PRODUCT
        right = reciprocal if precedence == ATOM else f"({reciprocal})"
        return f"{self._operand(x, PRODUCT)} * {right}", PRODUCT

    def _plain_division(self, node: Expression) -> tuple[str, int] | None:
        """Rounded down as in Python, where C++'s own operators do that."""
        x, y = node.args
        if y.is_constant and (number := int(y.value)) > 0 and number & (number - 1) == 0:
            left = self._operand(x, UNARY)
            if node.op == "mod":
                return f"{left} & {number - 1}", BIT_AND
            return f"{left} >> {number.bit_length() - 1}", SHIFT
        if self.limits(x)[0] >= 0 and self.limits(y)[0] > 0:
            symbol = "/" if node.op == "floordiv" else "%"
            return f"{self._operand(x, PRODUCT)} {symbol} {self._operand(y, PRODUCT + 1)}", PRODUCT
        return None
