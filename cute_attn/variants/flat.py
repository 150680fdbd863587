"""Flat KV blocks: those in which an element of a tensor that a hook reads at the key's position is
one number for each query row.

A relative bias is flat beyond its reach, where the clamped distance is; numbers of documents are
flat in a block that one document fills. There a kernel reads each element once per row and block,
and what hooks then do to scores is often next to nothing: a number that is added to all scores of a
row is a matter of the exponentials, which subtract one from them in any case, and a condition on
the row is one for all of its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import NamedTuple

from cute_attn.variants.analysis import band_of
from cute_attn.variants.band import Band
from cute_attn.variants.bounds import BoundsMaker
from cute_attn.variants.build import operate
from cute_attn.variants.expression import Expression, argument, constant
from cute_attn.variants.interval import Interval
from cute_attn.variants.polynomial import polynomial
from cute_attn.variants.ranges import RangeTable

_SCORE, _KEY = argument("score"), argument("kv_idx")


class FlatTest(NamedTuple):
    """Whether a block is flat.

    Attributes:
        flat: an expression over the corners of a block and `params.NAME` of scalars.
        limits: what integers in it are between, whatever the block.
    """

    flat: Expression
    limits: Callable[[Expression], Interval]


def flat_test(
    elements: Sequence[Expression], maker: BoundsMaker, tables: Collection[RangeTable] = ()
) -> Expression | None:
    """Whether a block is flat, as an expression over the corners of a block (`bounds.RANGES`).

    Args:
        elements: elements of tensors that depend on the key, of a trace.
        maker: makes bounds.
        tables: of ranges, which the kernel has in any case.

    Returns:
        None if there are no such elements, or if nothing is known of one.
    """
    tests = [_is_one_number(element, maker, tables) for element in elements]
    known = [test for test in tests if test is not None]
    if not known or len(known) < len(tests):
        return None
    return reduce(lambda x, y: operate("and", x, y), dict.fromkeys(known))


def _is_one_number(
    element: Expression, maker: BoundsMaker, tables: Collection[RangeTable]
) -> Expression | None:
    """Where all that it may read is one number, or its indices are those of one element."""
    if element.kind == "i32":  # where all truth values are one the block is empty or full, mostly
        least, most = maker.element(element)
        if least is not None and most is not None and _reads_ranges(least, tables):
            return maker.compare("eq", least, most)
    test = constant(True)
    for index in element.args:
        if "kv_idx" in index.reads:
            low, high = (None, None) if _follows_key(index) else maker.of(index)
            if low is None or high is None:
                return None
            test = operate("and", test, maker.compare("eq", low, high))
    return None if test is constant(False) else test


def _follows_key(index: Expression) -> bool:
    """Whether it is another one for each key, or depends on what a tensor holds."""
    if any(x.op == "load" for x in index.walk()):
        return True
    return any(_KEY in monomial for monomial in polynomial(index))


def _reads_ranges(x: Expression, tables: Collection[RangeTable]) -> bool:
    return not x.reads.isdisjoint(table.name for table in tables)


def shift_of(logits: Expression) -> Expression | None:
    """What a logits hook adds to the score, whatever the key; None if it does anything else.

    Args:
        logits: what it returns in a flat block.
    """
    if logits is _SCORE:
        return constant(0.0)
    if logits.op not in ("add", "sub"):
        return None
    x, y = logits.args
    if logits.op == "add" and "score" in y.reads:
        x, y = y, x
    inner = shift_of(x)
    if inner is None or not y.reads.isdisjoint(("score", "kv_idx")):
        return None
    return operate(logits.op, inner, y)


class RowsInBand(NamedTuple):
    """A mask that hides some rows and leaves a band of the others.

    Attributes:
        rows: whether a row is left.
        band: of it.
    """

    rows: Expression
    band: Band


def rows_in_band(mask: Expression) -> RowsInBand | None:
    """What a mask is made of, within the present limits of its scalars; None: of something else.

    Args:
        mask: what it returns in a flat block.
    """
    rows = band = constant(True)
    for x in conjuncts(mask):
        if "kv_idx" in x.reads:
            band = operate("and", band, x)
        else:
            rows = operate("and", rows, x)
    found = band_of(band)
    return RowsInBand(rows, found.band) if found.exact else None


def conjuncts(mask: Expression) -> list[Expression]:
    """What all must hold for a mask to."""
    if mask.op != "and":
        return [mask]
    return [x for arg in mask.args for x in conjuncts(arg)]
