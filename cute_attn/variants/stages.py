"""A hook of scores in stages: what is the same for a launch or for a query row is done once.

A kernel passes 64 scores of a row and more through the hook at a time, and does so again for every
KV block. What does not depend on the key is computed when the row begins, as far as that is worth a
register. Factors of the score on its way in and out are left to those that it has anyway:
`sm_scale` and the base of the exponentials, which the host multiplies.

Elements of tensors that depend on the key are read for each score, but in *flat* KV blocks, in
which every one of them is one number of the row: see `flat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cute_attn.variants.cost import cost_of
from cute_attn.variants.expression import Expression, argument, node
from cute_attn.variants.operations import FP32, INT, MUFU
from cute_attn.variants.parameters import Parameter, scalars_of

_WEIGHTS = {FP32: 1, INT: 1, MUFU: 4, "LOAD": 8}
_WORTH = 5
"""Instructions from which a value is kept in a register of every row, not computed again."""


@dataclass(frozen=True)
class Stages:
    """The parts of a hook.

    Attributes:
        factor: the score is multiplied with it ahead of `score`, by `sm_scale`; None: with nothing.
        rows: values of the query row by name.
        score: what is done to each score. It reads `rows` as leaves under "values.NAME".
        exponent: what `score` gives is multiplied with it, by `scale_log2`; positive. None: with
            nothing.
        names: the user's names of values in `score` and `flat`.
        elements: elements of tensors that depend on the key, by name, as the user's trace has them.
        flat: `score` in a block in which they do not. It reads them as leaves under "flat.NAME".
    """

    factor: Expression | None
    rows: Mapping[str, Expression]
    score: Expression
    exponent: Expression | None
    names: Mapping[Expression, str]
    elements: Mapping[str, Expression]
    flat: Expression


def in_stages(
    role: str,
    root: Expression,
    parameters: tuple[Parameter, ...],
    names: Mapping[Expression, str],
) -> Stages:
    """Splits what a mask or logits hook returns.

    Args:
        role: of the hook; names of values of the row begin with it.
        root: the expression.
        parameters: what it reads.
        names: the user's names of values in it.
    """
    live = frozenset(s.name for s in scalars_of(parameters) if s.live)
    body, exponent = _without_last_factor(root, parameters, live)
    factor, replaced = _first_factor(body, live)
    rows: dict[str, Expression] = {}
    for value in _row_values(body):
        name = _free_name(f"{role}_{names.get(value, len(rows))}", rows)
        rows[name] = value
        replaced[value] = node("row", (), value.kind, f"values.{name}")
    elements: dict[str, Expression] = {}
    known: dict[Expression, Expression] = {}
    for element in _key_elements(body):
        name = _free_name(f"{role}_{element.value}", elements)
        elements[name] = element
        known[element] = node("flat", (), element.kind, f"flat.{name}")
    new, flat = _rebuilt(body, replaced), _rebuilt(body, {**replaced, **known})
    left = {x[old]: name for x in (flat, new) for old, name in names.items() if old in x}
    return Stages(factor, rows, new[body], exponent, left, elements, flat[body])


def _without_last_factor(
    root: Expression, parameters: tuple[Parameter, ...], live: frozenset[str]
) -> tuple[Expression, Expression | None]:
    if root.op == "mul" and "score" in root.reads:
        positive = {s.name for s in scalars_of(parameters) if s.bounds[0] > 0 or s.positive}
        for factor, rest in (root.args, root.args[::-1]):
            is_positive = (
                factor.value > 0
                if factor.is_constant
                else factor.is_leaf and factor.value in positive
            )
            if _on_host(factor, live) and is_positive:
                return rest, factor
    return root, None


def _first_factor(
    body: Expression, live: frozenset[str]
) -> tuple[Expression | None, dict[Expression, Expression]]:
    """What the score is multiplied with where it is read, if that is one place."""
    score = argument("score")
    users = [x for x in body.walk() if score in x.args]
    if len(users) != 1 or users[0].args.count(score) != 1:
        return None, {}
    (user,) = users
    if user.op == "mul":
        factor = user.args[1] if user.args[0] is score else user.args[0]
        return (factor, {user: score}) if _on_host(factor, live) else (None, {})
    if user.op == "div" and user.args[0] is score and _on_host(user.args[1], live):
        one = node("constant", (), "f32", 1.0)
        return node("div", (one, user.args[1]), "f32"), {user: score}
    return None, {}


def _on_host(x: Expression, live: frozenset[str]) -> bool:
    """Whether it follows from scalars: elements of tensors and live scalars are on the device."""
    return (
        x.is_uniform and live.isdisjoint(x.reads) and all(inner.op != "load" for inner in x.walk())
    )


def _of_row(x: Expression) -> bool:
    return x.reads.isdisjoint(("score", "kv_idx"))


def _row_values(body: Expression) -> list[Expression]:
    """The largest subexpressions of the row, as far as they are worth it."""
    found: dict[Expression, None] = {}
    for user in body.walk():
        if not _of_row(user):
            for x in user.args:
                if _of_row(x) and not x.is_leaf and _work(x) >= _WORTH:
                    found[x] = None
    # A sum of another value with what is at hand needs no register of its own.
    return [x for x in found if sum(cost_of(x).values()) > 1 or found.keys().isdisjoint(x.args)]


def _key_elements(body: Expression) -> list[Expression]:
    """Elements of tensors that depend on the key; not those that are an index of another."""
    inner = {
        y for x in body.walk() if x.op == "load" for arg in x.args for y in arg.walk()
    }  # fmt: skip
    loads = (x for x in body.walk() if x.op == "load" and "kv_idx" in x.reads)
    return [x for x in loads if x not in inner]


def _work(x: Expression) -> int:
    return sum(
        number * _WEIGHTS[kind]
        for inner in x.walk()
        if not inner.is_leaf
        for kind, number in cost_of(inner).items()
    )


def _free_name(wanted: str, taken: Mapping[str, Expression]) -> str:
    name = wanted
    while name in taken:
        name += "_"
    return name


def _rebuilt(
    root: Expression, replaced: Mapping[Expression, Expression]
) -> dict[Expression, Expression]:
    """What every node becomes; nothing is simplified."""
    new: dict[Expression, Expression] = {}
    for x in root.walk():
        if x in replaced:
            new[x] = replaced[x]
        elif x.is_leaf:
            new[x] = x
        else:
            new[x] = node(x.op, tuple(new[y] for y in x.args), x.kind, x.value)
    return new
