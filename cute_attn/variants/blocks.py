"""What a traced mask says about a block of scores, as expressions: what kernels ask per KV block.

The symbolic twin of `analysis.classify`. A block is a rectangle: one request, query heads h_first
to h_last, queries q_first to q_last, keys kv_first to kv_last. Every integer of the trace gets a
lower and an upper bound over the rectangle, every truth value whether it always and whether it ever
holds. What may not fit 32 bits is computed in 64; what is not understood has no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from cute_attn.variants.analysis import band_of
from cute_attn.variants.bounds import Bounds, BoundsMaker
from cute_attn.variants.build import operate
from cute_attn.variants.domain import scalars_between
from cute_attn.variants.expression import Expression, constant, node
from cute_attn.variants.flat import conjuncts, flat_test
from cute_attn.variants.hook import Hook
from cute_attn.variants.interval import Interval
from cute_attn.variants.polynomial import Polynomial, plus, polynomial
from cute_attn.variants.ranges import RangeTable
from cute_attn.variants.scalar import Scalar

_SIDES = ("lt", "le", "gt", "ge", "eq", "ne")
_TRUE, _FALSE = constant(True), constant(False)


class Truth(NamedTuple):
    """Of a truth value over a block: whether it holds for some score, or may; whether for all."""

    some: Expression
    all: Expression


_UNKNOWN = Truth(_TRUE, _FALSE)


@dataclass(frozen=True)
class BlockTest:
    """Whether a block has visible scores, as expressions over b, h_first, h_last, q_first, q_last,
    kv_first, kv_last, `params.NAME` of scalars, and tables of ranges.

    Attributes:
        visible: what the mask says.
        flat: whether the block is flat, see `flat`; None: there is nothing to ask.
        tables: ranges of tensors that it reads.
        limits: what integers in it are between, whatever the block.
    """

    visible: Truth
    flat: Expression | None
    tables: tuple[RangeTable, ...]
    limits: Callable[[Expression], Interval] = field(repr=False, compare=False)


def block_test(
    mask: Hook | None,
    scalars: tuple[Scalar, ...],
    taken: Iterable[str] = (),
    elements: Sequence[Expression] = (),
) -> BlockTest | None:
    """The test of a mask; None if it says nothing that the mask's band does not say.

    Args:
        mask: of the variant.
        scalars: of the variant.
        taken: names that tables of ranges must not have.
        elements: elements of tensors that the hooks read at the key's position.
    """
    if mask is None:
        return None
    maker = BoundsMaker({s.name: s.bounds for s in scalars}, taken)
    truths = Truths(maker)
    known, test = _TRUE, Truth(_TRUE, _TRUE)
    for part in mask.parts or (mask,):
        # What is written in C++ may hide anything.
        for x in [None] if part.program is None else conjuncts(part.program.result):
            own = _UNKNOWN if x is None else truths.of(x)
            test = Truth(operate("and", test.some, own.some), operate("and", test.all, own.all))
            if x is not None and own.some is not _TRUE:
                known = operate("and", known, x)
    if test.all is _FALSE:  # no block is full; is one empty that the band does not exclude?
        with scalars_between({s.name: s.bounds for s in scalars}):
            if band_of(known).exact:
                return None
    reads = test.some.reads | test.all.reads
    tables = tuple(table for table in maker.tables.values() if table.name in reads)
    return BlockTest(test, flat_test(elements, maker, tables), tables, maker.limits)


class Truths:
    """Tests of truth values; `bounds` of a maker gives those of integers."""

    def __init__(self, maker: BoundsMaker) -> None:
        self._maker = maker
        maker.truth = self.of
        self._found: dict[Expression, Truth] = {}

    def of(self, x: Expression) -> Truth:
        """The test of a bool expression."""
        if x not in self._found:
            self._found[x] = self._make(x)
        return self._found[x]

    def _make(self, x: Expression) -> Truth:
        if x.is_constant:
            return Truth(x, x)
        if (same := self._maker.uniform(x)) is not None:
            return Truth(same, same)
        if x.op == "load":
            least, most = self._maker.element(x)
            if least is None or most is None:
                return _UNKNOWN
            # Above 0, not other than 0: an unknown range is that of all integers.
            return Truth(operate("gt", most, constant(0)), operate("gt", least, constant(0)))
        if x.op == "not":
            inner = self.of(x.args[0])
            return Truth(negated(inner.all), negated(inner.some))
        if x.op in ("and", "or"):
            tests = [self.of(arg) for arg in x.args]
            some = operate(x.op, *(test.some for test in tests))
            return Truth(some, operate(x.op, *(test.all for test in tests)))
        if x.op == "xor":
            return self._xor(*x.args)
        if x.op == "where":
            return self._where(*x.args)
        if x.op in _SIDES and x.args[0].kind == "bool":
            differ = self._xor(*x.args)
            equal = Truth(negated(differ.all), negated(differ.some))
            return {"eq": equal, "ne": differ}.get(x.op, _UNKNOWN)
        if x.op in _SIDES and x.args[0].kind == "i32":
            return self._comparison(x.op, *x.args)
        return _UNKNOWN

    def _xor(self, x: Expression, y: Expression) -> Truth:
        a, b = self.of(x), self.of(y)
        differ = operate("or", _and_not(a.all, b.some), _and_not(b.all, a.some))
        agree = operate("and", a.all, b.all), operate("or", a.some, b.some)
        return Truth(_and_not(agree[1], agree[0]), differ)

    def _where(self, condition: Expression, x: Expression, y: Expression) -> Truth:
        met, a, b = self.of(condition), self.of(x), self.of(y)
        some = operate("or", operate("and", met.some, a.some), _and_not(b.some, met.all))
        # Both branches hold, or the one that is taken does.
        always = operate("or", operate("and", a.all, b.all), operate("and", met.all, a.all))
        return Truth(some, operate("or", always, _and_not(b.all, met.some)))

    def _comparison(self, op: str, x: Expression, y: Expression) -> Truth:
        """Of x - y with 0: as a polynomial it sees what cancels. Of several forms, all say true."""
        test = _UNKNOWN
        for form in self._forms(x, y):
            signs = _Signs(self._maker, form)
            own = signs.test(op)
            test = Truth(operate("and", test.some, own.some), operate("or", test.all, own.all))
        return test

    def _forms(self, x: Expression, y: Expression) -> list[Polynomial]:
        """The difference, with remainders as they are or as x - c (x // c): one if that is exact,
        because no argument stands in two of its terms."""
        forms = []
        for expand in (False, True):
            sides = [polynomial(side, expand_remainders=expand) for side in (x, y)]
            form = plus(sides[0], sides[1], -1)
            if _is_exact(form):
                return [form]
            if form not in forms:
                forms.append(form)
        return forms


def _is_exact(x: Polynomial) -> bool:
    varying = [
        argument
        for monomial in x
        for atom in monomial
        for argument in atom.reads & {"h", "q_idx", "kv_idx"}
    ]
    return len(varying) == len(set(varying))


class _Signs:
    """Comparisons of a polynomial's bounds with 0: positive terms left, negative ones right."""

    def __init__(self, maker: BoundsMaker, form: Polynomial) -> None:
        self._maker = maker
        left: Bounds = (constant(0), constant(0))
        right = left
        for monomial, coefficient in sorted(form.items(), key=_by_text):
            atoms = (maker.narrow(maker.of(atom)) for atom in monomial)
            product = reduce(maker.mul, atoms, maker.number(1))
            product = maker.mul(product, maker.number(abs(coefficient)))
            if coefficient > 0:
                left = maker.add(left, product)
            else:
                right = maker.add(right, product)
        # low >= 0 is left[0] >= right[1], and so on.
        self._low, self._high = (left[0], right[1]), (left[1], right[0])

    def _if(self, op: str, sides: Bounds, otherwise: Expression) -> Expression:
        if sides[0] is None or sides[1] is None:
            return otherwise
        return self._maker.compare(op, sides[0], sides[1])

    def test(self, op: str) -> Truth:
        low, high = self._low, self._high
        if op in ("lt", "le"):
            return Truth(self._if(op, low, _TRUE), self._if(op, high, _FALSE))
        if op in ("gt", "ge"):
            return Truth(self._if(op, high, _TRUE), self._if(op, low, _FALSE))
        can_be = operate("and", self._if("le", low, _TRUE), self._if("ge", high, _TRUE))
        must_be = operate("and", self._if("ge", low, _FALSE), self._if("le", high, _FALSE))
        if op == "eq":
            return Truth(can_be, must_be)
        return Truth(negated(must_be), negated(can_be))


def _by_text(term: tuple[tuple[Expression, ...], int]) -> tuple[bool, str]:
    """Positions and sizes first, a number last."""
    return not term[0], repr(term[0])


def _and_not(x: Expression, y: Expression) -> Expression:
    return operate("and", x, negated(y))


_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def negated(x: Expression) -> Expression:
    """Not x, without a `not` where there is another comparison."""
    if x.op in _NEGATED and x.args[0].kind != "f32":  # NaN is neither
        return node(_NEGATED[x.op], x.args, "bool")
    if x.op in ("and", "or"):
        return operate("or" if x.op == "and" else "and", *(negated(arg) for arg in x.args))
    return operate("not", x)
