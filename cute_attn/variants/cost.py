"""How many instructions a traced hook costs, by class and by how often they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cute_attn.variants.expression import Expression
from cute_attn.variants.operations import FP32, INT, MUFU, OPERATIONS
from cute_attn.variants.vectors import ELEMENT, PAIR, ROW, levels

LOAD = "LOAD"
CLASSES = (FP32, MUFU, INT, LOAD)
OFTEN = ("score", "element", "row", "launch")
"""Per score; per element of the output; per query row and head, where a value depends on neither
key nor column; per launch."""
OFTEN_IN_VECTORS = ("element", "pair", "row", "launch")
"""Of vector hooks: per element, per pair of elements, per row; per launch (and pair, element)."""

_TURN = {MUFU: 1, FP32: 1, INT: 2}
"""Of a cosine or a sine: half of an angle, and a function. Keys that follow each other take most of
theirs from the key before, by a complex multiplication: 2 FP32."""

_PER_SCORE = frozenset({"score", "kv_idx"})
_PER_ELEMENT = frozenset({"out", "d"})


def operations(root: Expression) -> dict[str, Counter[str]]:
    """Instructions by class, for each of OFTEN. Estimates: the compiler fuses and hoists."""
    total: dict[str, Counter[str]] = {often: Counter() for often in OFTEN}
    for node in root.walk():
        if node.is_leaf:
            continue
        total[_often(node)].update(cost_of(node))
    return total


def _often(node: Expression) -> str:
    if node.reads & _PER_SCORE:
        return "score"
    if node.reads & _PER_ELEMENT:
        return "element"
    return "launch" if node.is_uniform else "row"


def vector_operations(root: Expression) -> dict[str, Counter[str]]:
    """The same of a vector hook, for each of OFTEN_IN_VECTORS."""
    total: dict[str, Counter[str]] = {often: Counter() for often in OFTEN_IN_VECTORS}
    often_of = {ELEMENT: "element", PAIR: "pair", ROW: "row"}
    for node, level in levels(root).items():
        if node.is_leaf or node.op in ("first", "second", "join"):
            continue
        if node.op == "sum":
            total["element"].update({FP32: 1})
        elif node.op in ("cosine", "sine"):
            total["pair"].update(_TURN)
        else:
            constant = node.reads.isdisjoint({"x", "b", "h", "pos", "index"})
            total["launch" if constant else often_of[level]].update(cost_of(node))
    return total


def cost_of(node: Expression) -> Mapping[str, int]:
    if node.op == "load":
        return {LOAD: 1, INT: 2 * len(node.args)}
    row = OPERATIONS[node.op]
    divisor = node.args[-1]
    if node.op == "div" and divisor.is_uniform and not node.is_uniform:
        return {FP32: 1}  # times the reciprocal
    if node.op in ("floordiv", "mod") and divisor.is_constant:
        power_of_two = int(divisor.value).bit_count() == 1
        return {INT: 1 if power_of_two else 4}  # or times a magic number
    if row.cost is not None:
        return row.cost
    return {FP32 if any(x.kind == "f32" for x in node.args) else INT: 1}


def in_words(counts: Mapping[str, int]) -> str:
    """As "2 FP32, 1 MUFU"; "none"."""
    return ", ".join(f"{counts[c]} {c}" for c in CLASSES if counts.get(c)) or "none"
