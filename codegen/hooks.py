"""Prints a variant's hooks as C++ functions of the generated file.

Hooks that a user wrote in C++ keep their own line numbers (`#line`), under the hook's name: the
text of a kernel, and with it its cache key, must not depend on where the user's file lies.
`users_lines` puts that into messages afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from cute_attn.variants import Hook, Scalar, Tensor, Variant
from cute_attn.variants.band import Limit, as_expression
from cute_attn.variants.expression import Expression
from cute_attn.variants.printer import CPP_TYPES, HEADER_FUNCTIONS, cpp_body, cpp_expression
from cute_attn.variants.program import ROW_ROLES, Program

_CPP = {"f32": "float", "i32": "int32_t"}
_BACK = "#line back"  # until the whole file is known

_SIGNATURES = {
    "mask": ("bool", "int b, int h, int q_idx, int kv_idx"),
    "logits": ("float", "float score, int b, int h, int q_idx, int kv_idx"),
    "row_state": ("float", "float lse, int b, int h, int q_idx"),
    "output": ("float", "float out, int b, int h, int q_idx, int d"),
}
_OF_SCORES = ("mask", "logits")


def cpp_hooks(variant: Variant, *, mask: bool = True) -> str:
    """`variant_mask` (with `mask`: a kernel may mask by the band instead) and `variant_logits`.

    A file that holds them goes through `number_lines` when it is complete. What `cpp_row_hooks`
    has printed is there.
    """
    there = variant.read_by(*ROW_ROLES)
    parts = [
        _accessor(t)
        for t in variant.tensors
        if t in variant.read_by(*_OF_SCORES) and t not in there
    ]
    if values := row_values(variant, mask=mask):
        parts.append(_struct_of_rows(values, variant.scalars))
    further = (
        "RowValues const& values, " * bool(values),
        ", Lag lag" * reads_lag(variant, mask=mask),
    )
    for role in _roles(variant, mask):
        parts += _functions(role, variant.hooks[role], variant.scalars, further)
    return "\n\n".join(parts)


def _roles(variant: Variant, mask: bool) -> list[str]:
    """The hooks of scores that a kernel calls."""
    return [role for role in _OF_SCORES if role in variant.hooks and (mask or role != "mask")]


def row_values(variant: Variant, *, mask: bool = True) -> dict[str, Expression]:
    """What the hooks of scores take from the struct `RowValues` of a query row; `mask` as in
    `cpp_hooks`. With such values kernels make one by `row_values(params, b, h, q_idx)`."""
    values: dict[str, Expression] = {}
    for role in _roles(variant, mask):
        if (program := variant.hooks[role].program) is not None:
            values |= program.stages.rows
    return values


def reads_lag(variant: Variant, *, mask: bool = True) -> bool:
    """Whether hooks of scores want the `Lag` of query and key: then all of a kernel's get it."""
    programs = [variant.hooks[role].program for role in _roles(variant, mask)]
    return any("lag" in re.findall(r"\w+", _of_score(x)) for x in programs if x is not None)


def _struct_of_rows(values: Mapping[str, Expression], scalars: tuple[Scalar, ...]) -> str:
    """`RowValues`, and the function that computes one."""
    lines = ["// What is the same for all keys of a query row.", "struct RowValues {"]
    lines += [f"  {CPP_TYPES[value.kind]} {name};" for name, value in values.items()]
    place, given = "Params const& params, int b, int h, int q_idx", "params, b, h, q_idx"
    functions = []
    for name, value in values.items():
        body = cpp_body(value)
        if "return" not in body:
            body = f"return {body};"
        functions += [
            f"CUTE_DEVICE {CPP_TYPES[value.kind]} {name}({place}) {{",
            *_scalars_read(scalars, value.reads),
            *(f"  {line}" for line in body.split("\n")),
            "}",
        ]
    calls = ", ".join(f"{name}({given})" for name in values)
    functions += [f"CUTE_DEVICE RowValues row_values({place}) {{", f"  return {{{calls}}};", "}"]
    return "\n".join([*lines, "};", *functions])


def cpp_row_hooks(variant: Variant) -> str:
    """The struct `RowHooks` that finished_row.hpp takes, with the hooks on rows that have seen all
    their keys; empty if the variant has none. Goes ahead of `cpp_hooks`."""
    roles = [role for role in ROW_ROLES if role in variant.hooks]
    if not roles:
        return ""
    parts = [_accessor(t) for t in variant.tensors if t in variant.read_by(*roles)]
    for role in roles:
        parts += _functions(role, variant.hooks[role], variant.scalars)
    lines = ["// What happens to finished rows.", "struct RowHooks {"]
    for role, name in (("row_state", "kState"), ("output", "kOutput")):
        lines.append(f"  static constexpr bool {name} = {str(role in roles).lower()};")
    for role in roles:
        own = _SIGNATURES[role][1].split(",")[0]
        arguments = [own, "RowPlace const& at", *(["int d"] if role == "output" else [])]
        values = [own.split()[-1], "at.b, at.h, at.q_idx", *(["d"] if role == "output" else [])]
        lines += [
            f"  CUTE_DEVICE static float {role}(Params const& params, {', '.join(arguments)}) {{",
            f"    return variant_{role}(params, {', '.join(values)});",
            "  }",
        ]
    return "\n\n".join([*parts, "\n".join([*lines, "};"])])


def _of_params(expression: Expression) -> str:
    """An expression of scalars over `params`."""
    text = cpp_expression(expression)
    if names := "|".join(sorted(expression.reads)):
        text = re.sub(rf"\b({names})\b", r"params.\1", text)
    return text if re.fullmatch(r"[\w.]+(\(.*\))?", text) else f"({text})"


def hidden_score(variant: Variant) -> str:
    """The score of a hidden key: C++."""
    return "neg_infinity()" if variant.softmax else "0.f"


def hook_headers(variant: Variant, *, mask: bool = True) -> list[str]:
    """Headers that hooks and the limits of the band need, beside softmax.hpp."""
    limits = [cpp_limit(x) or "" for x in (variant.band.left, variant.band.right)]
    rows = cpp_row_hooks(variant)
    texts = [cpp_hooks(variant, mask=mask), rows, *limits]
    functions = HEADER_FUNCTIONS.intersection(re.findall(r"\w+", " ".join(texts)))
    found = ["cute_attn/finished_row.hpp"] * bool(rows)
    found += ["cute_attn/hook_functions.hpp"] * bool(functions)
    return found + ["cute_attn/lag.hpp"] * reads_lag(variant, mask=mask)


def cpp_limit(limit: Limit | None) -> str | None:
    """A limit of a band as a C++ expression over `params`; None if there is none."""
    if limit is None or isinstance(limit, int):
        return None if limit is None else str(limit)
    return f"min({_of_params(as_expression(limit))}, 1 << 30)"


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
    for hook in variant.hooks.values():
        for part in hook.parts or (hook,):
            if not part.is_text or part.place is None:
                continue
            message = _moved(message, _file_name(part), part.place.file, part.place.line)
    return message


def _moved(message: str, name: str, file: str, first: int) -> str:
    """Lines of `name` as lines of `file`, in which `name` starts at line `first`."""

    def moved(found: re.Match[str]) -> str:
        return f"{file}({first + int(found[1]) - 1})"

    return re.sub(rf"(?m)^{re.escape(name)}\((\d+)\)", moved, message)


def _functions(
    role: str, hook: Hook, scalars: tuple[Scalar, ...], further: tuple[str, str] = ("", "")
) -> list[str]:
    """The function of a hook; before it those of its parts, if it has some. further: arguments
    ahead of its own, and behind them."""
    kind, own = _SIGNATURES[role]
    arguments = further[0] + own + further[1]
    name, title = f"variant_{role}", f"// {role.capitalize().replace('_', ' ')}: {hook.name}."
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


def _scalars_read(scalars: tuple[Scalar, ...], names: Collection[str]) -> list[str]:
    """Scalars under their own names, as far as a function reads them."""
    return [
        f"  {_CPP[s.kind]} const {s.name} = params.{s.name};" for s in scalars if s.name in names
    ]


def _body(hook: Hook, scalars: tuple[Scalar, ...]) -> list[str]:
    if hook.program is not None and hook.program.role in _OF_SCORES and not hook.parts:
        return _staged_body(hook.program, scalars)
    lines = _scalars_read(scalars, [s.name for s in scalars if hook.reads(s.name)])
    if not hook.is_text:
        text = hook.cpp if hook.has_statements else f"return {hook.cpp};"
        return [*lines, *(f"  {line}" for line in text.split("\n"))]
    directive = f'#line 1 "{_file_name(hook)}"'
    if hook.has_statements:
        return [*lines, directive, *hook.cpp.split("\n"), _BACK]
    return [*lines, "  return (", directive, *hook.cpp.split("\n"), _BACK, "  );"]


def _of_score(program: Program) -> str:
    """What a hook of scores leaves to do for each, as C++."""
    with program.scalars_known():
        text = cpp_body(program.stages.score, program.stages.names, lag=True)
    return text if re.search(r"\breturn\b", text) else f"return {text};"


def _staged_body(program: Program, scalars: tuple[Scalar, ...]) -> list[str]:
    lines = _scalars_read(scalars, program.stages.score.reads)
    return [*lines, *(f"  {line}" for line in _of_score(program).split("\n"))]


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
