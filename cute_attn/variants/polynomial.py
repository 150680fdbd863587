"""Integer expressions as polynomials, and linear upper bounds of them.

A polynomial maps monomials to coefficients; a monomial is a sorted tuple of atoms, which are
arguments, scalars, and what is neither a sum nor a product. Of `x // c` a polynomial knows that
c (x // c) lies between x - c + 1 and x, and x % c is x - c (x // c).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cute_attn.variants.build import operate
from cute_attn.variants.domain import bounds
from cute_attn.variants.expression import Expression, constant

Monomial = tuple[Expression, ...]
Polynomial = Mapping[Monomial, int]

_MOST_TERMS = 32
_MOST_BOUNDS = 16


def atom(node: Expression) -> Polynomial:
    return {(node,): 1}


def _order(factor: Expression) -> tuple[bool, str]:
    """Of the factors of a monomial: the same in every process, whatever was traced before."""
    return factor.is_leaf, repr(factor)


def plus(x: Polynomial, y: Polynomial, factor: int = 1) -> Polynomial:
    """x + factor y."""
    total = dict(x)
    for monomial, coefficient in y.items():
        total[monomial] = total.get(monomial, 0) + factor * coefficient
    return {m: c for m, c in total.items() if c}


def times(x: Polynomial, y: Polynomial) -> Polynomial:
    total: dict[Monomial, int] = {}
    for a, p in x.items():
        for b, q in y.items():
            monomial = tuple(sorted((*a, *b), key=_order))
            total[monomial] = total.get(monomial, 0) + p * q
    return {m: c for m, c in total.items() if c}


def polynomial(root: Expression, *, expand_remainders: bool = False) -> Polynomial:
    """The polynomial of an i32 expression.

    Args:
        root: the expression.
        expand_remainders: x % c as x - c (x // c), rather than as an atom.
    """
    found: dict[Expression, Polynomial] = {}
    for node in root.walk():
        found[node] = _of(node, found, expand_remainders)
    return found[root]


def _of(
    node: Expression, found: Mapping[Expression, Polynomial], expand_remainders: bool
) -> Polynomial:
    if node.kind != "i32":
        return {}  # its atom is the integer that is made of it
    if node.is_constant:
        return {(): int(node.value)} if node.value else {}
    args = [found[x] for x in node.args]
    if node.op == "add":
        result = plus(args[0], args[1])
    elif node.op == "sub":
        result = plus(args[0], args[1], -1)
    elif node.op == "neg":
        result = plus({}, args[0], -1)
    elif node.op == "mul":
        result = times(args[0], args[1])
    elif node.op == "lshift" and node.args[1].is_constant:
        result = plus({}, args[0], 1 << int(node.args[1].value))
    elif node.op == "rshift" and node.args[1].is_constant:
        divisor = constant(1 << int(node.args[1].value))
        result = atom(operate("floordiv", node.args[0], divisor))
    elif node.op == "mod" and expand_remainders:
        quotient = operate("floordiv", *node.args)
        result = plus(args[0], times(args[1], atom(quotient)), -1)
    else:
        result = atom(node)
    return result if len(result) <= _MOST_TERMS else atom(node)


def expression(x: Polynomial) -> Expression:
    """Back again: positive terms first."""
    terms = sorted(x.items(), key=lambda item: (item[1] < 0, not item[0], repr(item[0])))
    total: Expression | None = None
    for monomial, coefficient in terms:
        size, product = abs(coefficient), constant(1)
        for factor in monomial:
            product = operate("mul", product, factor)
        product = operate("mul", product, constant(size))
        if total is None:
            total = operate("neg", product) if coefficient < 0 else product
        else:
            total = operate("sub" if coefficient < 0 else "add", total, product)
    return constant(0) if total is None else total


def upper_bounds(x: Polynomial) -> Iterator[tuple[Polynomial, bool]]:
    """Polynomials that x is at most, whose atoms are arguments and scalars alone.

    Yields:
        (bound, whether x itself) of at most 16 bounds; none if nothing is known.
    """
    stack, given = [(x, True)], 0
    while stack and given < _MOST_BOUNDS:
        bound, same = stack.pop()
        term = next(((m, c) for m, c in bound.items() if not all(a.is_leaf for a in m)), None)
        if term is None:
            given += 1
            yield bound, same
        elif len(stack) < _MOST_BOUNDS:
            stack += [(other, False) for other in _relaxed(bound, *term)]


def _relaxed(x: Polynomial, monomial: Monomial, coefficient: int) -> Iterator[Polynomial]:
    """Upper bounds of x without one of its monomials that has a compound atom."""
    (node,) = [a for a in monomial if not a.is_leaf][:1]
    rest = plus(x, {monomial: coefficient}, -1)
    if node.op == "floordiv":
        yield from _without_quotient(x, rest, monomial, coefficient, node)
    elif len(monomial) == 1:
        first, second = (
            polynomial(side, expand_remainders=True) for side in (node.args[0], node.args[-1])
        )
        if node.op == "abs" and coefficient < 0:
            yield plus(rest, first, coefficient)
            yield plus(rest, first, -coefficient)
        elif (node.op == "min" and coefficient > 0) or (node.op == "max" and coefficient < 0):
            yield plus(rest, first, coefficient)
            yield plus(rest, second, coefficient)
    limit = bounds(node)[coefficient > 0]
    if len(monomial) == 1 and abs(limit) < 1 << 30:
        yield plus(rest, {(): int(limit)}, coefficient)


def _without_quotient(
    x: Polynomial, rest: Polynomial, monomial: Monomial, coefficient: int, node: Expression
) -> Iterator[Polynomial]:
    """By the bounds of c (a // c); where it stands without its c, all of x >= 0 is multiplied."""
    dividend = polynomial(node.args[0], expand_remainders=True)
    divisor = polynomial(node.args[1], expand_remainders=True)
    if bounds(node.args[1])[0] < 1:
        return
    if node.args[1].is_constant:
        size = int(node.args[1].value)
        if len(monomial) > 1:
            return
        if coefficient % size:
            scaled = plus({}, x, size)
            yield from _without_quotient(
                scaled, plus(scaled, {monomial: coefficient * size}, -1), monomial,
                coefficient * size, node,
            )  # fmt: skip
            return
        coefficient //= size
    else:
        factors = [a for a in monomial if a is not node]
        if len(monomial) == 1:
            scaled = times(x, divisor)
            product = tuple(sorted((node, *next(iter(divisor))), key=_order))
            if len(divisor) == 1 and scaled.get(product) == coefficient:
                yield scaled
            return
        if times({tuple(factors): 1}, {(): 1}) != divisor:
            return
    # Now it is coefficient * (c * (a // c)).
    if coefficient > 0:
        yield plus(rest, dividend, coefficient)
    else:
        yield plus(rest, plus(plus(dividend, divisor, -1), {(): 1}), coefficient)
