"""`Hook`: one function of a variant, traced from Python or given as C++ text."""

from __future__ import annotations

import ast
import linecache
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from cute_attn.variants.build import operate
from cute_attn.variants.errors import Place, users_place
from cute_attn.variants.parameters import Parameter, join, made_live
from cute_attn.variants.program import Program, composed, trace


@dataclass(frozen=True)
class Hook:
    """One hook.

    Attributes:
        name: printed beside the generated function.
        cpp: C++ over the hook's arguments and the variant's scalars: an expression, or statements
            of which one returns. An element of a tensor is `name(params, i, j)`.
        evaluate: the same in NumPy, vectorised: evaluate(*arguments, **parameters), with those
            parameters whose names are in `cpp`; None: the hook runs on a GPU only.
        program: what `cpp` and `evaluate` were derived from, if it was traced.
        parts: hooks that it consists of, all of which a key must pass.
        place: where `cpp` stands in the user's source, if that is known.
    """

    name: str
    cpp: str
    evaluate: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    program: Program | None = field(default=None, compare=False, repr=False)
    parts: tuple[Hook, ...] = field(default=(), repr=False)
    place: Place | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.cpp.strip():
            raise ValueError(f"the C++ of hook {self.name!r} is empty")
        if self.program is None and not self.parts and self.place is None:
            object.__setattr__(self, "place", _place_of_text(self.cpp))

    def __call__(self, *arguments: Any, **parameters: Any) -> Any:
        """The hook in NumPy.

        Raises:
            ValueError: it is C++ text without a NumPy function.
        """
        if self.evaluate is None:
            text = next((part for part in self.parts if part.evaluate is None), self)
            raise ValueError(
                f"hook {text.name!r} is C++ text without evaluate=, its NumPy function: it runs on"
                " a GPU only"
            )
        if self.is_text:
            parameters = {name: x for name, x in parameters.items() if self.reads(name)}
        return self.evaluate(*arguments, **parameters)

    def bake(self, values: Mapping[str, float | int]) -> Hook:
        """With constants in the place of scalars.

        Raises:
            ValueError: C++ text reads one of them.
        """
        if self.program is not None:
            return of_program(self.name, self.program.bake(values))
        if self.parts:
            baked = [part.bake(values) for part in self.parts]
            return replace(reduce(_both, baked), name=self.name)
        if read := [name for name in values if self.reads(name)]:
            raise ValueError(f"hook {self.name!r} is C++ text and reads {read[0]!r} at run time")
        return self

    def live(self, names: Collection[str]) -> Hook:
        """With scalars of these names live."""
        if self.parts:
            return replace(self, parts=tuple(part.live(names) for part in self.parts))
        if self.program is None:
            return self
        program = replace(self.program, parameters=made_live(self.program.parameters, names))
        return replace(self, program=program, evaluate=program)

    @property
    def is_text(self) -> bool:
        """Whether the C++ was written by hand."""
        return self.program is None and not self.parts

    @property
    def has_statements(self) -> bool:
        """Whether `cpp` is statements rather than one expression."""
        return re.search(r"\breturn\b", self.cpp) is not None

    def reads(self, name: str) -> bool:
        """Whether the hook reads a parameter."""
        if self.parts:
            return any(part.reads(name) for part in self.parts)
        if self.program is not None:
            return name in self.program.result.reads
        return re.search(rf"\b{name}\b", self.cpp) is not None


def traced(role: str, function: Callable[..., Any], parameters: tuple[Parameter, ...]) -> Hook:
    """The hook of a Python function; see `program.trace`."""
    program = trace(role, function, parameters)
    name = getattr(function, "__name__", type(function).__name__).strip("_<>").replace("_", " ")
    return of_program(name, program)


def of_program(name: str, program: Program) -> Hook:
    """The hook that a program is."""
    return Hook(name, program.cpp, program, program)


def both(a: Hook | None, b: Hook | None) -> Hook | None:
    """The mask that lets through what both let through."""
    return a or b if a is None or b is None else _both(a, b)


def one_after_the_other(a: Hook | None, b: Hook | None) -> Hook | None:
    """The vector hook that does `a`, then `b`.

    Raises:
        ValueError: one is C++ text, or together they do more across elements than one hook can.
    """
    if a is None or b is None:
        return a or b
    if a.program is None or b.program is None:
        text = a if a.program is None else b
        raise ValueError(f"hook {text.name!r} is C++ text, and cannot be combined with another")
    return of_program(f"{a.name}, then {b.name}", composed(a.program, b.program))


def _both(a: Hook, b: Hook) -> Hook:
    name = f"{a.name} and {b.name}"
    if a.program is not None and b.program is not None:
        return of_program(name, _conjunction(a.program, b.program))
    parts = tuple(part for hook in (a, b) for part in (hook.parts or (hook,)))

    def evaluate(*arguments: Any, **parameters: Any) -> Any:
        return reduce(operator.and_, (part(*arguments, **parameters) for part in parts))

    cpp = " && ".join(f"({part.cpp})" for part in parts)
    runs = all(part.evaluate is not None for part in parts)
    return Hook(name, cpp, evaluate if runs else None, parts=parts)


def _conjunction(a: Program, b: Program) -> Program:
    result = operate("and", a.result, b.result)
    parameters = join(a.parameters, b.parameters)
    return Program(a.role, result, parameters, {**a.names, **b.names}, {**a.places, **b.places})


def _place_of_text(text: str) -> Place | None:
    """The line of the caller's source where the literal `text` starts."""
    place = users_place()
    if place is None:
        return None
    source = "".join(linecache.getlines(place.file))
    try:
        literals = [
            node.lineno
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and node.value == text
        ]
    except SyntaxError:
        return None
    if not literals:
        return None
    return Place(place.file, min(literals, key=lambda line: abs(line - place.line)))
