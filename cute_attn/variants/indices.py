"""Whether a hook reads inside its tensors, from the bounds of its indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cute_attn.variants.domain import bounds
from cute_attn.variants.expression import Expression, argument
from cute_attn.variants.interval import Interval, add, mul
from cute_attn.variants.polynomial import Polynomial, polynomial
from cute_attn.variants.program import VECTOR_ROLES, Program

_Q, _KV = (argument("q_idx"),), (argument("kv_idx"),)


def check(
    program: Program,
    shapes: Mapping[str, Sequence[int]],
    leaves: Mapping[str, Interval],
    distance: Interval,
) -> None:
    """Checks indices of tensors that a program reads, but those that come from a tensor.

    Args:
        program: a traced hook.
        shapes: of the tensors.
        leaves: what its arguments and scalars are between.
        distance: what q_idx - kv_idx is between, for keys that are visible.

    Raises:
        IndexError: an index may be outside; with its bounds and the user's line.
    """
    for node in program.result.walk():
        if node.op != "load":
            continue
        for i, (index, size) in enumerate(zip(node.args, shapes[str(node.value)], strict=True)):
            if any(x.op == "load" for x in index.walk()):
                continue  # depends on what a tensor holds; the kernels clamp it
            low, high = _between(index, leaves, distance)
            if low < 0 or high >= size:
                place = program.places.get(node)
                raise IndexError(
                    f"{node!r} reads outside {node.value}: index {i} is between {low:.0f} and"
                    f" {high:.0f}, but the tensor has shape {tuple(shapes[str(node.value)])}; give"
                    " a larger one, or clamp the index" + (f"\n{place}" if place else "")
                )


def of_role(role: str, leaves: Mapping[str, Interval]) -> Mapping[str, Interval]:
    """What the arguments of one hook are between.

    Args:
        role: of the hook.
        leaves: bounds of b, h, q_idx and kv_idx; for vector hooks also of "kv_head" (KV heads),
            "head_dim_qk" and "head_dim_vo".
    """
    if role not in VECTOR_ROLES:
        return leaves
    own = dict(leaves)
    head_dim = own["head_dim_vo" if role == "value" else "head_dim_qk"]
    own["head_dim"], own["index"] = head_dim, (0.0, head_dim[1] - 1)
    own["pair"] = (0.0, head_dim[1] // 2 - 1)
    own["pos"] = own["q_idx" if role == "query" else "kv_idx"]
    own["h"] = own["h" if role == "query" else "kv_head"]
    return own


def _between(
    index: Expression, leaves: Mapping[str, Interval], distance: Interval
) -> tuple[float, float]:
    low, high = bounds(index, leaves)
    for expand in (False, True):
        narrow = _sum(polynomial(index, expand_remainders=expand), leaves, distance)
        low, high = max(low, narrow[0]), min(high, narrow[1])
    return float(low), float(high)


def _sum(x: Polynomial, leaves: Mapping[str, Interval], distance: Interval) -> Interval:
    """Bounds of a polynomial, in which the distance of query and key is one thing."""
    rest, total = dict(x), (0.0, 0.0)
    if rest.get(_Q) and rest.get(_Q) == -rest.get(_KV, 0):
        factor = float(rest.pop(_Q))
        del rest[_KV]
        (q_low, q_high), (kv_low, kv_high) = leaves["q_idx"], leaves["kv_idx"]
        between = max(distance[0], q_low - kv_high), min(distance[1], q_high - kv_low)
        total = mul((factor, factor), between)
    for monomial, coefficient in rest.items():
        product = (float(coefficient), float(coefficient))
        for node in monomial:
            product = mul(product, bounds(node, leaves))
        total = add(total, product)
    return total
