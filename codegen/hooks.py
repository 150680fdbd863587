"""Prints a variant's hooks as C++ functions of the generated file.

Hooks that a user wrote in C++ keep their own line numbers (`#line`), under the hook's name: the
text of a kernel, and with it its cache key, must not depend on where the user's file lies.
`users_lines` puts that into messages afterwards.
"""

from __future__ import annotations

import re

from cute_attn.variants import Hook, Scalar, Tensor, Variant
from cute_attn.variants.band import Limit, as_expression
from cute_attn.variants.printer import CPP_TYPES, HEADER_FUNCTIONS, cpp_expression

_CPP = {"f32": "float", "i32": "int32_t"}
_BACK = "#line back"  # until the whole file is known

_SIGNATURES = {
    "mask": ("bool", "int b, int h, int q_idx, int kv_idx"),
    "logits": ("float", "float score, int b, int h, int q_idx, int kv_idx"),
}


def cpp_hooks(variant: Variant, *, mask: bool = True) -> str:
    """`variant_mask` (with `mask`: a kernel may mask by the band instead) and `variant_logits`.

    A file that holds them goes through `number_lines` when it is complete.
    """
    parts = [
        _accessor(t)
        for t in variant.tensors
        if any(hook.reads(t.name) for hook in variant.hooks.values())
    ]
    if variant.mask and mask:
        parts += _functions("mask", variant.mask, variant.scalars)
    if variant.logits:
        parts += _functions("logits", variant.logits, variant.scalars)
    return "\n\n".join(parts)


def hook_headers(variant: Variant, *, mask: bool = True) -> list[str]:
    """Headers that `cpp_hooks` and the limits of the band need, beside softmax.hpp and
    vector_hooks.hpp."""
    limits = [cpp_limit(x) or "" for x in (variant.band.left, variant.band.right)]
    vectors = [hook.cpp for hook in variant.vector_hooks.values()]
    words = re.findall(r"\w+", " ".join([cpp_hooks(variant, mask=mask), *limits, *vectors]))
    return ["cute_attn/hook_functions.hpp"] if HEADER_FUNCTIONS.intersection(words) else []


def cpp_limit(limit: Limit | None) -> str | None:
    """A limit of a band as a C++ expression over `params`; None if there is none."""
    if limit is None or isinstance(limit, int):
        return None if limit is None else str(limit)
    expression = as_expression(limit)
    names = "|".join(sorted(expression.reads))
    text = re.sub(rf"\b({names})\b", r"params.\1", cpp_expression(expression))
    return f"min({text}, 1 << 30)"


def number_lines(text: str) -> str:
    """The finished text of a kernel, with `#line` directives back to it after a user's lines."""
    if _BACK not in text:
        return text
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if line == _BACK:
            lines[i] = f'#line {i + 2} "kernel.cu"'
    return "\n".join(lines)


def users_lines(message: str, variant: Variant) -> str:
    """A compiler's message with file and line of hooks that the user wrote in C++."""
    for hook in (variant.mask, variant.logits):
        for part in (hook.parts or (hook,)) if hook is not None else ():
            if not part.is_text or part.place is None:
                continue
            message = _moved(message, _file_name(part), part.place.file, part.place.line)
    return message


def _moved(message: str, name: str, file: str, first: int) -> str:
    """Lines of `name` as lines of `file`, in which `name` starts at line `first`."""

    def moved(found: re.Match[str]) -> str:
        return f"{file}({first + int(found[1]) - 1})"

    return re.sub(rf"(?m)^{re.escape(name)}\((\d+)\)", moved, message)


def _functions(role: str, hook: Hook, scalars: tuple[Scalar, ...]) -> list[str]:
    """The function of a hook; before it those of its parts, if it has some."""
    kind, arguments = _SIGNATURES[role]
    name, title = f"variant_{role}", f"// {role.capitalize()}: {hook.name}."
    signature = f"CUTE_DEVICE {kind} {name}(Params const& params, {arguments}) {{"
    if not hook.parts:
        return ["\n".join([title, signature, *_body(hook, scalars), "}"])]
    parts, calls = [], []
    given = ", ".join(["params", *re.findall(r"(\w+)(?:,|$)", arguments)])
    for i, part in enumerate(hook.parts):
        own = f"// {role.capitalize()}, part {i}: {part.name}."
        head = signature.replace(name, f"{name}_{i}")
        parts.append("\n".join([own, head, *_body(part, scalars), "}"]))
        calls.append(f"{name}_{i}({given})")
    return [*parts, "\n".join([title, signature, f"  return {' && '.join(calls)};", "}"])]


def _body(hook: Hook, scalars: tuple[Scalar, ...]) -> list[str]:
    lines = [
        f"  {_CPP[s.kind]} const {s.name} = params.{s.name};" for s in scalars if hook.reads(s.name)
    ]
    if not hook.is_text:
        text = hook.cpp if hook.has_statements else f"return {hook.cpp};"
        return [*lines, *(f"  {line}" for line in text.split("\n"))]
    directive = f'#line 1 "{_file_name(hook)}"'
    if hook.has_statements:
        return [*lines, directive, *hook.cpp.split("\n"), _BACK]
    return [*lines, "  return (", directive, *hook.cpp.split("\n"), _BACK, "  );"]


def _accessor(tensor: Tensor) -> str:
    """The function of a tensor's name that reads an element."""
    name, dims = tensor.name, tensor.dims
    kind = CPP_TYPES[tensor.kind]
    indices = "".join(f", int i{d}" for d in range(dims))
    places = [f"within(i{d}, params.{name}_size_{d})" for d in range(dims)]
    rows = [
        f"  int64_t const at{d} = {place} * params.{name}_stride_{d};"
        for d, place in enumerate(places[:-1])
    ]
    at = " + ".join([f"params.{name}", *(f"at{d}" for d in range(dims - 1)), places[-1]])
    return "\n".join(
        [
            f"// Tensor {name}{': ' + tensor.comment if tensor.comment else ''}.",
            f"CUTE_DEVICE {kind} {name}(Params const& params{indices}) {{",
            *rows,
            f"  return __ldg({at}){' != 0' if tensor.kind == 'bool' else ''};",
            "}",
        ]
    )


def _file_name(hook: Hook) -> str:
    """What the compiler calls the file of a user's text."""
    return "hook " + (re.sub(r"[^\w .-]", "_", hook.name) or "unnamed")
