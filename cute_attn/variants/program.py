"""`Program`: a traced function, and `trace`, which makes one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import Any

import numpy as np

from cute_attn.variants.build import convert, substitute
from cute_attn.variants.domain import bounds, scalars_between
from cute_attn.variants.errors import Place, trace_error
from cute_attn.variants.evaluate import evaluate, evaluate_vector
from cute_attn.variants.expression import VECTOR_ARGUMENTS, Expression, argument, scalar
from cute_attn.variants.interval import Interval
from cute_attn.variants.parameters import Parameter, join, scalars_of
from cute_attn.variants.printer import cpp_body
from cute_attn.variants.scalar import Scalar
from cute_attn.variants.stages import Stages, in_stages
from cute_attn.variants.tensor_row import TensorRow
from cute_attn.variants.traced import Traced, lift
from cute_attn.variants.traced_tensor import TracedTensor, recording
from cute_attn.variants.vector_printer import vector_functions
from cute_attn.variants.vectors import PAIR, Row, across, levels

_ROW = ("x", "b", "h", "pos")
ROLES = {
    "mask": ("b", "h", "q_idx", "kv_idx"),
    "logits": ("score", "b", "h", "q_idx", "kv_idx"),
    "query": _ROW,
    "key": _ROW,
    "value": _ROW,
    "row_state": ("lse", "b", "h", "q_idx"),
    "output": ("out", "b", "h", "q_idx", "d"),
}
"""Arguments of each hook. All but the mask transform their first one."""

VECTOR_ROLES = ("query", "key", "value")
"""Vector hooks: those of whole query, key and value rows."""
ROW_ROLES = ("row_state", "output")
"""Row hooks: those on rows that have seen all their keys."""

_RETURNS = {
    "mask": "a truth value",
    "logits": "a score",
    "query": "a row",
    "key": "a row",
    "value": "a row",
    "row_state": "a log-sum-exp",
    "output": "an element of the output",
}

_KINDS = {"int": "i32", "i32": "i32", "float": "f32", "f32": "f32"}


@dataclass(frozen=True)
class Program:
    """A hook as an expression.

    Attributes:
        role: of the hook, a key of `ROLES`.
        result: what it returns: bool for a mask, else f32.
        parameters: what it reads.
        names: the user's own names of values in it.
        places: the user's lines that read tensors.
    """

    role: str
    result: Expression
    parameters: tuple[Parameter, ...] = ()
    names: Mapping[Expression, str] = field(default_factory=dict)
    places: Mapping[Expression, Place] = field(default_factory=dict)

    def scalars_known(self) -> AbstractContextManager[None]:
        """Within it, `bounds` knows the limits of the scalars."""
        return scalars_between({s.name: s.bounds for s in scalars_of(self.parameters)})

    def bake(self, values: Mapping[str, float | int]) -> Program:
        """With constants in the place of scalars."""
        new = substitute(self.result, values)
        return Program(
            self.role,
            new[self.result],
            tuple(p for p in self.parameters if p.name not in values),
            {new[node]: name for node, name in self.names.items()},
            {new[node]: place for node, place in self.places.items() if node in new},
        )

    @property
    def cpp(self) -> str:
        """Its C++: one expression, or statements that end in `return`; of a row's hook one such for
        each function that it consists of.
        """
        with self.scalars_known():
            if self.role in VECTOR_ROLES:
                return vector_functions(self.result, self.names).text
            return cpp_body(self.result, self.names)

    @cached_property
    def stages(self) -> Stages:
        """Its parts, by how often they are computed; of a mask or a logits hook."""
        with self.scalars_known():
            return in_stages(self.role, self.result, self.parameters, self.names)

    def __call__(self, *arguments: Any, **parameters: Any) -> Any:
        """The value of the hook for arrays of arguments, which broadcast.

        f32 is computed in the dtype of what the hook transforms; float32 in a mask. Of a vector
        hook x is (..., head_dim), the other arguments broadcast with (...).
        """
        values: dict[str, Any] = dict(zip(ROLES[self.role], arguments, strict=True))
        if self.role == "mask":
            return evaluate(self.result, {**values, **parameters})
        before = np.asarray(values[ROLES[self.role][0]])
        if self.role in VECTOR_ROLES:
            return evaluate_vector(self.result, {**values, **parameters}, before.dtype)
        dtype = before.dtype if before.dtype in (np.float32, np.float64) else np.dtype(np.float32)
        after = np.asarray(evaluate(self.result, {**values, **parameters}, dtype), dtype)
        return np.broadcast_to(after, np.broadcast_shapes(after.shape, before.shape))

    def bounds(self, leaves: Mapping[str, Interval]) -> Interval:
        """Bounds of the result where arguments and scalars are within `leaves`."""
        with self.scalars_known():
            return bounds(self.result, leaves)


def trace(role: str, function: Callable[..., Any], declared: tuple[Parameter, ...]) -> Program:
    """Runs `function` once on symbols.

    Its first parameters are the hook's arguments, whatever they are called. Further ones are
    parameters of the variant by name: declared, or with a default number (int: i32, float: f32).

    Args:
        role: of the hook, a key of `ROLES`.
        function: the user's.
        declared: parameters that it may read.

    Raises:
        TraceError: it does what cannot be traced, or returns what is none.
        TypeError: its parameters are not those of the hook.
    """
    parameters = _parameters(role, function, declared)
    _check_names(role, function, parameters)
    arguments = [(Row if name == "x" else Traced)(argument(name)) for name in ROLES[role]]
    given = {p.name: _in_trace(p) for p in parameters}
    limits = {s.name: s.bounds for s in scalars_of(parameters)}
    with scalars_between(limits), recording() as record:
        returned, named = _run(function, arguments, given)
    place = _place_of(function)
    if returned is None:
        raise trace_error(f"the {role} function returns None; is a return missing?", place)
    if isinstance(returned, TensorRow):
        raise trace_error(f"the {role} function returns {returned!r}; it takes a number", place)
    result = lift(returned)
    if (role == "mask") != (result.kind == "bool"):
        kind = "a truth value" if result.kind == "bool" else result.kind
        raise trace_error(f"the {role} function returns {kind}; it takes {_RETURNS[role]}", place)
    if role != "mask":
        result = convert(result, "f32")
    if role in VECTOR_ROLES:
        _check_row(role, result, place)
    parameters = join(parameters, tuple(record.captured))
    extra = result.reads - {*ROLES[role], *_own_names(role)} - {p.name for p in parameters}
    if extra:
        raise trace_error(
            f"the {role} function returns a value of another trace, of {', '.join(sorted(extra))}",
            place,
        )
    read = tuple(p for p in parameters if p.name in result.reads)
    inside = set(result.walk())
    names = {
        value.expression: name
        for name, value in named.items()
        if isinstance(value, Traced)
        and not isinstance(value, TensorRow)
        and value.expression in inside
    }
    return Program(role, result, read, names, record.places)


def _own_names(role: str) -> frozenset[str]:
    """What programs of a role read beside its arguments."""
    return frozenset(VECTOR_ARGUMENTS) if role in VECTOR_ROLES else frozenset()


def _check_names(
    role: str, function: Callable[..., Any], parameters: tuple[Parameter, ...]
) -> None:
    for p in parameters:
        if p.name in _own_names(role):
            raise trace_error(
                f"the {role} function takes parameter {p.name!r}; vector hooks have"
                f" {', '.join(VECTOR_ARGUMENTS)} of their own",
                _place_of(function),
            )


def _check_row(role: str, result: Expression, place: Place | None) -> None:
    try:
        across(result)
        if levels(result)[result] == PAIR:
            raise ValueError("it returns values of pairs; join() them")
    except ValueError as error:
        raise trace_error(f"the {role} function cannot be used: {error}", place) from None


def composed(first: Program, then: Program) -> Program:
    """The vector hook that does one after the other.

    Raises:
        ValueError: together they do more across elements than one hook can.
    """
    new = substitute(then.result, {}, {"x": first.result})
    across(new[then.result])
    return Program(
        then.role,
        new[then.result],
        join(first.parameters, then.parameters),
        {**first.names, **{new[node]: name for node, name in then.names.items()}},
        {**first.places, **{new[node]: place for node, place in then.places.items()}},
    )


def _in_trace(parameter: Parameter) -> Traced | TracedTensor:
    if isinstance(parameter, Scalar):
        return Traced(scalar(parameter.name, parameter.kind))
    return TracedTensor(parameter)


def _place_of(function: Callable[..., Any]) -> Place | None:
    code = getattr(function, "__code__", None)
    return None if code is None else Place(code.co_filename, code.co_firstlineno)


def _parameters(
    role: str, function: Callable[..., Any], declared: tuple[Parameter, ...]
) -> tuple[Parameter, ...]:
    """Parameters of the variant that the function takes."""
    number, known = len(ROLES[role]), {p.name: p for p in declared}
    parameters = list(inspect.signature(function).parameters.values())
    kinds = inspect.Parameter
    positional = [
        p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    if any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        further = [p for p in parameters if p.kind is kinds.KEYWORD_ONLY]
    elif len(positional) < number:
        raise trace_error(
            f"the {role} function takes {len(positional)} arguments; it is called with"
            f" ({', '.join(ROLES[role])})",
            _place_of(function),
        )
    else:
        further = positional[number:] + [p for p in parameters if p.kind is kinds.KEYWORD_ONLY]
    found = [known.get(p.name) or _undeclared(role, function, p) for p in further]
    if any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        found += [p for p in declared if p not in found]
    return tuple(found)


def _undeclared(role: str, function: Callable[..., Any], parameter: inspect.Parameter) -> Scalar:
    """The scalar of a parameter with a default number."""
    annotation, default = parameter.annotation, parameter.default
    if annotation is inspect.Parameter.empty:
        annotation = type(default)
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation).split(".")[-1]
    if name not in _KINDS or isinstance(default, bool) or not isinstance(default, (int, float)):
        raise trace_error(
            f"the {role} function takes {parameter.name!r}, which is no parameter of the variant;"
            f" declare it in params=, or give it a default number",
            _place_of(function),
        )
    return Scalar(parameter.name, _KINDS[name], default, f"of the {role}")


def _run(
    function: Callable[..., Any], arguments: list[Traced], parameters: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """What the function returns, and its local variables at that moment."""
    named: dict[str, Any] = {}
    code = getattr(function, "__code__", None)
    previous = sys.getprofile()

    def at_return(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is code:
            named.update(frame.f_locals)

    sys.setprofile(at_return)
    try:
        return function(*arguments, **parameters), named
    finally:
        sys.setprofile(previous)
