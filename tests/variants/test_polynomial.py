"""Monomials have one order, so that a variant has one source."""

from __future__ import annotations

from cute_attn.variants.build import operate
from cute_attn.variants.expression import Expression, argument, node
from cute_attn.variants.polynomial import atom, expression, plus, times


def test_factors_are_in_one_order_wherever_they_lie_in_memory() -> None:
    def made(name: str, *, scalar_first: bool) -> tuple[Expression, Expression]:
        if scalar_first:
            scalar = node("scalar", (), "i32", name)
            return scalar, operate("floordiv", argument("q_idx"), scalar)
        quotient = operate("floordiv", argument("q_idx"), node("scalar", (), "i32", name))
        return node("scalar", (), "i32", name), quotient

    junk: list[list[int]] = []
    texts = set()
    for i in range(40):
        scalar, quotient = made(f"size_{i:02}", scalar_first=i % 2 == 0)
        junk.append([0] * (i % 7))  # so that nodes lie here and there
        for product in (times(atom(scalar), atom(quotient)), times(atom(quotient), atom(scalar))):
            assert list(product) == [(quotient, scalar)]
            texts.add(repr(expression(plus(product, atom(scalar)))).replace(f"size_{i:02}", "size"))
    assert len(texts) == 1
