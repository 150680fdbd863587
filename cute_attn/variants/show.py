"""What became of a variant, as text: scalars, band, traced programs, C++, operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cute_attn.variants.band import Limit, as_expression
from cute_attn.variants.cost import OFTEN, OFTEN_IN_VECTORS, in_words, operations, vector_operations
from cute_attn.variants.expression import Expression
from cute_attn.variants.hook import Hook
from cute_attn.variants.printer import cpp_body, cpp_expression, literal
from cute_attn.variants.program import ROLES, VECTOR_ROLES, Program
from cute_attn.variants.scalar import Scalar
from cute_attn.variants.tensor import Tensor

if TYPE_CHECKING:
    from cute_attn.variants.variant import Variant


_OFTEN = {
    "mask": "score", "logits": "score", "query": "element", "key": "element", "value": "element",
    "row_state": "row", "output": "element",
}  # fmt: skip


def show(variant: Variant) -> str:
    """See `Variant.show`."""
    lines = [f"variant {variant.name}"]
    for s in variant.scalars:
        lines.append(f"  scalar {s.name}: {s.kind} = {s.default}{_limits(s)}" + _comment(s))
    for t in variant.tensors:
        lines.append(f"  tensor {t.name}: {t.kind}, {t.dims} dims" + _comment(t))
    lines += _band(variant)
    if not variant.softmax:
        lines.append("  no softmax: scores weigh the values as they are")
    for role, hook in variant.hooks.items():
        lines += ["", *_hook(role, hook)]
    return "\n".join(lines)


def _limits(s: Scalar) -> str:
    found = ["above 0"] if s.positive else []
    found += [f"{s.lower} or more"] if s.lower is not None else []
    found += [f"{s.upper} or less"] if s.upper is not None else []
    found += ["live"] * s.live
    return f", {', '.join(found)}" if found else ""


def _comment(s: Scalar | Tensor) -> str:
    return f"  ({s.comment})" if s.comment else ""


def _band(variant: Variant) -> list[str]:
    if variant.mask is None:
        return ["  every key of the request is visible"]
    left, right = variant.band.left, variant.band.right
    if left is None and right is None:
        return ["  band: no limits"]
    lower = [] if left is None else [f"q_idx{_offset(left, '-')} <="]
    upper = [] if right is None else [f"<= q_idx{_offset(right, '+')}"]
    all_of_it = "all of the mask" if variant.band_is_mask else "inside it the mask decides"
    return [f"  band: {' '.join([*lower, 'kv_idx', *upper])}; {all_of_it}"]


def _offset(limit: Limit, sign: str) -> str:
    if limit == 0:
        return ""
    text = cpp_expression(as_expression(limit))
    return f" {sign} {text}" if text.isidentifier() or text.isdigit() else f" {sign} ({text})"


def _hook(role: str, hook: Hook) -> Iterator[str]:
    yield f"{role}({', '.join(ROLES[role])}): {hook.name}"
    if hook.program is not None:
        yield "  traced"
        yield from (f"    {line}" for line in _steps(hook.program))
    if hook.program is not None and role in ("mask", "logits"):
        yield from _stages(hook.program)
    for part in hook.parts or (hook,):
        if part.program is not None and not hook.parts and role in ("mask", "logits"):
            continue
        written = f"  C++, written by hand ({part.name})" if part.is_text else "  C++"
        yield written
        body = part.cpp if part.has_statements else f"return {part.cpp.strip()};"
        yield from (f"    {line}" for line in body.split("\n"))
    if hook.program is not None:
        of_vectors = role in VECTOR_ROLES
        counts = (vector_operations if of_vectors else operations)(hook.program.result)
        for often in OFTEN_IN_VECTORS if of_vectors else OFTEN:
            if counts[often] or often == _OFTEN[role]:
                yield f"  operations per {often}: {in_words(counts[often])}"


def _stages(program: Program) -> Iterator[str]:
    """The C++ of a hook of scores; see `stages`."""
    with program.scalars_known():
        stages = program.stages
        if stages.factor is not None:
            yield f"  sm_scale is multiplied with {cpp_expression(stages.factor)}"
        for name, value in stages.rows.items():
            yield f"  C++, once per query row: {name}"
            yield from (f"    {line}" for line in _body(cpp_body(value)))
        yield "  C++"
        body = cpp_body(stages.score, stages.names, lag=True)
        yield from (f"    {line}" for line in _body(body))
        if stages.exponent is not None:
            yield f"  what it returns is multiplied with {cpp_expression(stages.exponent)}"


def _body(text: str) -> list[str]:
    return text.split("\n") if "return " in text else [f"return {text};"]


def _steps(program: Program) -> Iterator[str]:
    """One operation a line."""
    names: dict[Expression, str] = {}
    for node in program.result.walk():
        if node.is_leaf:
            names[node] = literal(node) if node.is_constant else str(node.value)
            continue
        own = program.names.get(node)
        names[node] = own or f"%{sum(not n.is_leaf for n in names)}"
        operands = ", ".join(names[x] for x in node.args)
        value = f"{node.value}[{operands}]" if node.op == "load" else f"{node.op}({operands})"
        yield f"{names[node]}: {node.kind} = {value}"
    yield f"return {names[program.result]}"
