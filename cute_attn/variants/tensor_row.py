"""Rows of tensors inside a trace: one dimension is left, and what is done to it is unrolled.

`row[n]` is an element. Operations on rows are those on their elements, and reductions (sum, any,
dot, ...) make one number of them. Nothing is read until a number comes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NoReturn

from cute_attn.variants.errors import trace_error
from cute_attn.variants.expression import Expression
from cute_attn.variants.library import find, method
from cute_attn.variants.traced import Traced, apply

MOST_ELEMENTS = 128
"""That are unrolled."""


class TensorRow(Traced):
    """A row of numbers that are not known yet.

    Args:
        element: of an index, a number or a traced one.
        length: of the row; None: not known while tracing.
        name: of its tensor, for messages.
    """

    __slots__ = ("_element", "_length", "_name")

    def __init__(self, element: Callable[[Any], Traced], length: int | None, name: str) -> None:
        self._element, self._length, self._name = element, length, name

    def __repr__(self) -> str:
        length = "" if self._length is None else f" of {self._length} elements"
        return f"a row of {self._name}{length}"

    @property
    def expression(self) -> Expression:  # type: ignore[override]  # a field there
        """There is none: a row is no number."""
        _refuse(f"a row of {self._name} is no number; sum(), any() and their kin make one of it")

    @property
    def kind(self) -> str:
        return self._element(0).kind

    def __getitem__(self, index: Any) -> Traced:
        if isinstance(index, tuple) and len(index) == 2 and index[0] is Ellipsis:
            index = index[1]
        if isinstance(index, int) and index < 0:
            index += self._known_length()
        return self._element(index)

    def __len__(self) -> int:
        return self._known_length()

    def to(self, dtype: Any) -> TensorRow:
        """Its elements as "bool", "i32" or "f32", or what torch calls so."""
        return TensorRow(lambda i: self._element(i).to(dtype), self._length, self._name)

    def _known_length(self) -> int:
        if self._length is None:
            _refuse(
                f"the length of a row of {self._name} is not known while it is traced, but of"
                " captured tensors; take its elements, row[0], row[1], ..."
            )
        if self._length > MOST_ELEMENTS:
            _refuse(
                f"a row of {self._name} has {self._length} elements; up to {MOST_ELEMENTS} are"
                " unrolled"
            )
        return self._length

    def _elements(self) -> list[Traced]:
        return [self._element(i) for i in range(self._known_length())]

    def __getattr__(self, name: str) -> Any:
        if name in _REDUCTIONS:
            return lambda *args, **kwargs: _REDUCTIONS[name](self, *args, **kwargs)
        found = None if name.startswith("_") else method(name)
        if found is not None:
            return lambda *args, **kwargs: _each(found, self, *args, **kwargs)
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(str(trace_error(f"a row of {self._name} has no attribute {name!r}")))

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", repr(func))
        if name in _REDUCTIONS:
            return _REDUCTIONS[name](*args, **(kwargs or {}))
        found = find(name)
        if found is None:
            row = next(x for x in args if isinstance(x, cls))
            _refuse(f"torch.{name} of a row of {row._name} cannot be traced")
        return _each(found, *args, **(kwargs or {}))


def as_row(x: Traced) -> TensorRow:
    """A number as a row of one, which goes with rows of any length."""
    return TensorRow(lambda i: x, 1, "a number")


def _each(function: Callable[..., Any], *args: Any, **kwargs: Any) -> TensorRow:
    """A function of numbers over the elements of rows."""
    rows = [x for x in args if isinstance(x, TensorRow)]
    wide = [row for row in rows if row._length != 1] or rows
    lengths = {row._length for row in wide}
    if len(lengths) > 1:
        _refuse(
            f"rows of {wide[0]._name} and {wide[1]._name} have lengths"
            f" {wide[0]._length} and {wide[1]._length}"
        )

    def element(i: Any) -> Traced:
        own = (x._element(i) if isinstance(x, TensorRow) else x for x in args)
        made: Traced = function(*own, **kwargs)
        return made

    return TensorRow(element, lengths.pop(), wide[0]._name)


def _over(name: str, prepare: Callable[[Traced], Any] = lambda x: x) -> Callable[..., Traced]:
    """A reduction by an operation of two numbers."""

    def reduction(row: Any, dim: Any = None, keepdim: bool = False) -> Traced:
        if dim not in (None, -1, 0) or keepdim:
            _refuse(f"a row of {row._name} has one dimension, which reductions leave out")
        first, *rest = (prepare(x) for x in row._elements())
        total: Traced = reduce(lambda x, y: apply(name, x, y), rest, first)
        return total

    return reduction


def _extreme(name: str) -> Callable[..., Traced]:
    """torch's `max` and `min`: of the row, or, of two operands, of each of their elements."""
    whole = _over(name)

    def call(x: Any, other: Any = None, **kwargs: Any) -> Any:
        if isinstance(other, Traced):
            return _each(lambda a, b: apply(name, a, b), x, other)
        if other is not None or kwargs:
            _refuse(f"{name}() along a dimension also says where; take a{name}()")
        return whole(x)

    return call


def _number(x: Traced) -> Traced:
    return x.to(int) if x.kind == "bool" else x


def _mean(row: Any, dim: Any = None, keepdim: bool = False) -> Traced:
    total: Traced = _REDUCTIONS["sum"](row, dim, keepdim) / len(row)
    return total


def _dot(x: Any, y: Any) -> Traced:
    product: Traced = _REDUCTIONS["sum"](_each(lambda a, b: apply("mul", a, b), x, y))
    return product


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": _over("add", _number),
    "prod": _over("mul", _number),
    "any": _over("or", lambda x: x.to(bool)),
    "all": _over("and", lambda x: x.to(bool)),
    "amax": _over("max"),
    "amin": _over("min"),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "mean": _mean,
    **dict.fromkeys(("dot", "inner", "matmul", "vecdot", "__matmul__", "linalg_vecdot"), _dot),
}
"""By torch's names."""


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Traced, name)
    return lambda self, *others: _each(function, self, *others)


for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift",
    "rshift",
):  # fmt: skip
    for _side in ("", "r"):
        setattr(TensorRow, f"__{_side}{_name}__", _operator(f"__{_side}{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"):
    setattr(TensorRow, f"__{_name}__", _operator(f"__{_name}__"))
setattr(TensorRow, "__matmul__", _dot)  # noqa: B010  # as those above


def _refuse(message: str) -> NoReturn:
    raise trace_error(message) from None
