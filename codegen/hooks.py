"""Prints a variant's hooks as C++ functions of the generated file.

Hooks that a user wrote in C++ keep their own line numbers (`#line`), under the hook's name: the
text of a kernel, and with it its cache key, must not depend on where the user's file lies.
`users_lines` puts that into messages afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from cute_attn.codegen.ranges import read_function
from cute_attn.codegen.scalars import CPP_KINDS, over_params, read_scalar, with_live
from cute_attn.variants import Hook, Scalar, Tensor, Variant
from cute_attn.variants.band import Band, Limit, as_expression
from cute_attn.variants.blocks import BlockTest
from cute_attn.variants.domain import bounds
from cute_attn.variants.expression import Expression
from cute_attn.variants.parameters import Parameter
from cute_attn.variants.printer import (
    CPP_TYPES,
    HEADER_FUNCTIONS,
    cpp_body,
    cpp_expression,
    cpp_values,
)
from cute_attn.variants.program import ROW_ROLES, VECTOR_ROLES, Program

_BACK = "#line back"  # until the whole file is known

# C++ text knows nothing of `values` and `lag`, which it may call its own: there they have no names.
_SIGNATURES = {
    "mask": ("bool", "RowValues const& values, int b, int h, int q_idx, int kv_idx, Lag lag"),
    "logits": (
        "float",
        "RowValues const& values, float score, int b, int h, int q_idx, int kv_idx, Lag lag",
    ),
    "row_state": ("float", "float lse, int b, int h, int q_idx"),
    "output": ("float", "float out, int b, int h, int q_idx, int d"),
}
_OF_SCORES = ("mask", "logits")
_LONGEST = 88  # of what is returned in one line


def cpp_hooks(variant: Variant, *, mask: bool = True, flat: bool = False) -> str:
    """`RowValues` and `row_values`, `variant_logits`, and, with `mask`, `variant_mask` and
    `variant_block`: a kernel may mask by the band instead. With `flat`, `variant_block` also says
    which blocks are flat, for `flat_hooks`.

    A file that holds them goes through `number_lines` when it is complete. What `cpp_row_hooks`
    and `vector_hooks` have printed is there.
    """
    there = variant.read_by(*ROW_ROLES, *VECTOR_ROLES)
    parts = [
        accessor(t) for t in variant.tensors if t in variant.read_by(*_OF_SCORES) and t not in there
    ]
    roles = [role for role in _OF_SCORES if role in variant.hooks and (mask or role != "mask")]
    if roles:
        parts.append(_row_values([variant.hooks[role].program for role in roles], variant.scalars))
    for role in roles:
        parts += _functions(role, variant.hooks[role], variant.scalars)
    if mask and variant.block_test is not None:
        parts += map(read_function, variant.block_test.tables)
        parts.append(_block_function(variant.block_test, variant.scalars, flat=flat))
    return "\n\n".join(parts)


def _row_values(programs: list[Program | None], scalars: tuple[Scalar, ...]) -> str:
    """The struct `RowValues` that hooks of scores are given, and the function that makes one."""
    values: dict[str, Expression] = {}
    for program in programs:
        values |= {} if program is None else program.stages.rows
    make = "row_values(Params const& params, int b, int h, int q_idx)"
    if not values:
        why = "// nothing of the hooks is the same for all keys of a row"
        return f"struct RowValues {{}};  {why}\nCUTE_DEVICE RowValues {make} {{ return {{}}; }}"
    return values_struct("RowValues", "the same for all keys of a query row", make, values, scalars)


def values_struct(
    name: str,
    title: str,
    make: str,
    values: Mapping[str, Expression],
    scalars: tuple[Scalar, ...],
) -> str:
    """A struct of values by name, and the function that makes one.

    Args:
        name, title: of the struct; a comment.
        make: the function, with its arguments.
        values: expressions of its arguments.
        scalars: that they may read.
    """
    fields = [f"  {CPP_TYPES[value.kind]} {field};" for field, value in values.items()]
    body = "\n".join([*cpp_values(values, bounds), f"return {{{', '.join(values)}}};"])
    body = over_params(body, scalars)
    last = rf"\w+ const ({next(iter(values))}) = (.{{,{_LONGEST}}});\nreturn {{\1}};"
    body = re.sub(last, r"return {\2};", body)
    return "\n".join(
        [
            f"struct {name} {{  // {title}",
            *fields,
            "};",
            wrapped(f"CUTE_DEVICE {name} {make} {{"),
            *(f"  {line}" for line in body.split("\n")),
            "}",
        ]
    )


def cpp_row_hooks(variant: Variant) -> str:
    """The struct `RowHooks` that finished_row.hpp takes, with the hooks on rows that have seen all
    their keys; empty if the variant has none. Goes ahead of `cpp_hooks`."""
    roles = [role for role in ROW_ROLES if role in variant.hooks]
    if not roles:
        return ""
    parts = [accessor(t) for t in variant.tensors if t in variant.read_by(*roles)]
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


def _of_params(expression: Expression, scalars: tuple[Scalar, ...]) -> str:
    """An expression of scalars over `params`."""
    text = over_params(cpp_expression(expression), scalars)
    return text if re.fullmatch(r"[\w.]+(\(.*\))?", text) else f"({text})"


def hidden_score(variant: Variant) -> str:
    """The score of a hidden key: C++."""
    return "neg_infinity()" if variant.softmax else "0.f"


def hook_headers(variant: Variant, *, mask: bool = True) -> list[str]:
    """Headers that hooks and the limits of the band need, beside softmax.hpp and
    vector_hooks.hpp."""
    limits = [x or "" for x in cpp_band(variant.band, variant.scalars)]
    rows = cpp_row_hooks(variant)
    vectors = [hook.cpp for hook in variant.vector_hooks.values()]
    own = variant.read_by(*VECTOR_ROLES)
    vectors += [accessor(t) for t in variant.tensors if t in own]
    texts = [cpp_hooks(variant, mask=mask), rows, *limits, *vectors]
    words = set(re.findall(r"\w+", " ".join(texts)))
    found = ["cute_attn/finished_row.hpp"] * bool(rows)
    found += ["cute_attn/hook_functions.hpp"] * bool(HEADER_FUNCTIONS & words)
    found += ["cute_attn/lag.hpp"] * ("Lag" in words)
    found += ["cute_attn/block_ranges.hpp"] * ("Range" in words)
    return found + ["cute_attn/visible_blocks.hpp"] * ("variant_block" in words)


def cpp_band(band: Band, scalars: tuple[Scalar, ...]) -> tuple[str | None, str | None]:
    """Left and right limit of a band as C++ expressions over `params`; None if there is none."""

    def limit(value: Limit | None) -> str | None:
        if value is None or isinstance(value, int):
            return None if value is None else str(value)
        return f"min({_of_params(as_expression(value), scalars)}, 1 << 30)"

    return limit(band.left), limit(band.right)


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


BLOCK_CORNERS = (
    "Params const& params, int b, int h_first, int h_last, int q_first, int q_last, int kv_first,"
    " int kv_last"
)
"""Arguments of a function of a block of scores."""


def _block_function(test: BlockTest, scalars: tuple[Scalar, ...], *, flat: bool) -> str:
    """The function that tells how much of a block of scores the mask leaves, and, with `flat`,
    whether the block is flat."""
    title = "// What the mask leaves of a block of scores, from bounds of its trace over the block."
    wanted = test.visible._asdict()
    if flat and test.flat is not None:
        wanted["flat"] = test.flat
    body = [with_live(value, scalars) for value in cpp_values(wanted, test.limits)]
    body.append(f"return {{{', '.join(wanted)}}};")
    head = wrapped(f"CUTE_DEVICE BlockClass variant_block({BLOCK_CORNERS}) {{")
    return "\n".join([title, head, *(f"  {line}" for line in body), "}"])


def wrapped(signature: str) -> str:
    """In lines of up to 100 columns, arguments below each other."""
    indent = " " * (signature.index("(") + 1)
    lines = [""]
    for argument in re.split(r"(?<=,) ", signature):
        if lines[-1] and len(lines[-1]) + 1 + len(argument) > 100:
            lines.append(indent + argument)
        else:
            lines[-1] += f" {argument}" if lines[-1] else argument
    return "\n".join(lines)


def _functions(role: str, hook: Hook, scalars: tuple[Scalar, ...]) -> list[str]:
    """The function of a hook; before it those of its parts, if it has some."""
    kind, arguments = _SIGNATURES[role]
    name, title = f"variant_{role}", f"// {role.capitalize().replace('_', ' ')}: {hook.name}."

    def function(name: str, hook: Hook, body: list[str]) -> str:
        own = arguments
        if hook.is_text:
            own = own.replace("RowValues const& values", "RowValues const&").replace(" lag", "")
        signature = f"CUTE_DEVICE {kind} {name}(Params const& params, {own}) {{"
        return "\n".join([wrapped(signature), *body, "}"])

    if not hook.parts:
        program = hook.program
        staged = program is not None and role in _OF_SCORES
        body = _staged_body(program, scalars) if program and staged else _body(hook, scalars)
        return [f"{title}\n{function(name, hook, body)}"]
    parts, calls = [], []
    given = ", ".join(["params", *re.findall(r"(\w+)(?:,|$)", arguments)])
    for i, part in enumerate(hook.parts):
        own = f"// {role.capitalize()}, part {i}: {part.name}."
        parts.append(f"{own}\n{function(f'{name}_{i}', part, _body(part, scalars))}")
        calls.append(f"{name}_{i}({given})")
    all_of_them = [f"  return {' && '.join(calls)};"]
    return [*parts, f"{title}\n{function(name, hook, all_of_them)}"]


def scalars_read(parameters: Iterable[Parameter], names: Collection[str]) -> list[str]:
    """Scalars under their own names, as far as a function reads them."""
    return [
        f"  {CPP_KINDS[s.kind]} const {s.name} = {read_scalar(s)};"
        for s in parameters
        if isinstance(s, Scalar) and s.name in names
    ]


def _body(hook: Hook, scalars: tuple[Scalar, ...]) -> list[str]:
    lines = scalars_read(scalars, [s.name for s in scalars if hook.reads(s.name)])
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
        return returning(cpp_body(program.stages.score, program.stages.names, lag=True))


def returning(text: str) -> str:
    """The body of a function that returns an expression, or is statements already."""
    return text if re.search(r"\breturn\b", text) else f"return {text};"


def _staged_body(program: Program, scalars: tuple[Scalar, ...]) -> list[str]:
    lines = scalars_read(scalars, program.stages.score.reads)
    return [*lines, *(f"  {line}" for line in _of_score(program).split("\n"))]


def accessor(tensor: Tensor) -> str:
    """The C++ function of a tensor's name that reads an element."""
    name, dims = tensor.name, tensor.dims
    kind = CPP_TYPES[tensor.element_kind]
    indices = "".join(f", int i{d}" for d in range(dims))
    places = [f"within(i{d}, params.{name}_size_{d})" for d in range(dims)]
    lines = [
        f"  int64_t const at{d} = {place} * params.{name}_stride_{d};"
        for d, place in enumerate(places[:-1])
    ]
    last = places[-1]
    if tensor.kind == "bits":
        lines.append(f"  int64_t const bit = {last};")
        last = "(bit >> 3)"
    at = " + ".join([f"params.{name}", *(f"at{d}" for d in range(dims - 1))])
    at = f"{f'row_address({at})' if dims > 1 else at} + {last}"
    value = f"__ldg({at})"
    if tensor.kind == "bits":
        value = f"({value} >> (bit & 7) & 1) != 0"
    elif tensor.kind == "bool":
        value = f"{value} != 0"
    return "\n".join(
        [
            f"// Tensor {name}{': ' + tensor.comment if tensor.comment else ''}.",
            f"CUTE_DEVICE {kind} {name}(Params const& params{indices}) {{",
            *lines,
            f"  return {value};",
            "}",
        ]
    )


def _file_name(hook: Hook) -> str:
    """What the compiler calls the file of a user's text."""
    return "hook " + (re.sub(r"[^\w .-]", "_", hook.name) or "unnamed")
