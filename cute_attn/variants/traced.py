"""`Traced`: the value that a user's function is called with; it records what is done to it.

It has Python's operators, torch's methods and dtypes conversions by name, and answers torch's and
NumPy's function protocols, so that functions written for `torch` tensors run unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

from cute_attn.variants import domain
from cute_attn.variants.build import convert, operate
from cute_attn.variants.errors import trace_error
from cute_attn.variants.expression import Expression, constant

_KIND_OF_DTYPE = {
    "bool": "bool", "int": "i32", "int32": "i32", "int64": "i32", "long": "i32", "i32": "i32",
    "float": "f32", "float32": "f32", "f32": "f32",
}  # fmt: skip

_NO_INDEX = (
    "a traced value is no Python index, and cannot index a list, array or tensor: declare tensors"
    " in params=, or let from_flex() capture them"
)


class Traced:
    """A scalar of kind "bool", "i32" or "f32" whose value is not known yet."""

    __slots__ = ("expression",)
    __array_priority__ = 1000

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def __repr__(self) -> str:
        return f"Traced({self.expression!r})"

    @property
    def kind(self) -> str:
        return self.expression.kind

    # Arithmetic.
    def __add__(self, other: Any) -> Traced:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Traced:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Traced:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Traced:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Traced:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Traced:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Traced:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return apply("div", other, self)

    def __floordiv__(self, other: Any) -> Traced:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Traced:
        return floor_divide(other, self)

    def __mod__(self, other: Any) -> Traced:
        return remainder(self, other)

    def __rmod__(self, other: Any) -> Traced:
        return remainder(other, self)

    def __pow__(self, other: Any) -> Traced:
        return power(self, other)

    def __rpow__(self, other: Any) -> Traced:
        return power(other, self)

    def __neg__(self) -> Traced:
        return apply("neg", self)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return apply("abs", self)

    def __floor__(self) -> Traced:
        return self._whole("floor")

    def __ceil__(self) -> Traced:
        return self._whole("ceil")

    def __trunc__(self) -> Traced:
        return self._whole("trunc")

    def __round__(self, digits: int | None = None) -> Traced:
        if digits:
            _refuse("round() of a traced value takes no number of digits")
        return self._whole("round")

    def _whole(self, name: str) -> Traced:
        """What `math.floor` and its kin give: an integer."""
        return self if self.kind == "i32" else apply(name, self).to(int)

    # Comparisons.
    def __lt__(self, other: Any) -> Traced:
        return apply("lt", self, other)

    def __le__(self, other: Any) -> Traced:
        return apply("le", self, other)

    def __gt__(self, other: Any) -> Traced:
        return apply("gt", self, other)

    def __ge__(self, other: Any) -> Traced:
        return apply("ge", self, other)

    def __eq__(self, other: Any) -> Traced:  # type: ignore[override]  # symbolic, no truth value
        return apply("eq", self, other)

    def __ne__(self, other: Any) -> Traced:  # type: ignore[override]  # symbolic, no truth value
        return apply("ne", self, other)

    # Logic and bits.
    def __and__(self, other: Any) -> Traced:
        return apply("and", self, other)

    def __rand__(self, other: Any) -> Traced:
        return apply("and", other, self)

    def __or__(self, other: Any) -> Traced:
        return apply("or", self, other)

    def __ror__(self, other: Any) -> Traced:
        return apply("or", other, self)

    def __xor__(self, other: Any) -> Traced:
        return apply("xor", self, other)

    def __rxor__(self, other: Any) -> Traced:
        return apply("xor", other, self)

    def __invert__(self) -> Traced:
        return apply("bit_not" if self.kind == "i32" else "not", self)

    def __lshift__(self, other: Any) -> Traced:
        return shift("lshift", self, other)

    def __rlshift__(self, other: Any) -> Traced:
        return shift("lshift", other, self)

    def __rshift__(self, other: Any) -> Traced:
        return shift("rshift", self, other)

    def __rrshift__(self, other: Any) -> Traced:
        return shift("rshift", other, self)

    # What a value that is not known yet cannot do.
    def __bool__(self) -> bool:
        _refuse(
            "a traced value has no truth value, which if, while, and, or, not, in, min(), max() and"
            " a < b < c ask for; take where(), &, |, ~, minimum(), maximum()"
        )

    def __float__(self) -> float:
        _refuse("a traced value is no Python float; functions come from cute_attn.variants, torch")

    def __int__(self) -> int:
        _refuse("a traced value is no Python int; .int() converts to i32")

    def __complex__(self) -> complex:
        _refuse("a traced value is no Python complex")

    def __index__(self) -> int:
        _refuse(_NO_INDEX)

    def __iter__(self) -> Any:
        _refuse("a traced value is a scalar and cannot be iterated over")

    def __len__(self) -> int:
        _refuse("a traced value is a scalar and has no length")

    def __getitem__(self, index: Any) -> Any:
        if index is None or index == (Ellipsis, None):
            return self.unsqueeze(-1)
        _refuse("a traced value is a scalar and cannot be indexed")

    def unsqueeze(self, dim: int) -> Any:
        """A row of this one number, which goes with rows of tensors."""
        from cute_attn.variants.tensor_row import as_row

        return as_row(self)

    def __hash__(self) -> int:
        _refuse("a traced value cannot be hashed, so it is no key of a dict, set or cache")

    # torch and NumPy.
    def to(self, dtype: Any) -> Traced:
        """This as "bool", "i32" or "f32", or what torch calls so."""
        return type(self)(convert(self.expression, kind_of(dtype)))

    @property
    def dtype(self) -> str:
        """As `.to()` takes it."""
        return self.kind

    @property
    def device(self) -> None:
        """For functions that make constants beside a tensor: nowhere yet."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            from cute_attn.variants.library import method

            found = method(name)
            if found is not None:
                return lambda *args, **kwargs: found(self, *args, **kwargs)
            raise AttributeError(str(trace_error(f"a traced value has no attribute {name!r}")))
        raise AttributeError(name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _call("torch", func, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            _refuse(f"numpy.{ufunc.__name__}.{method} of a traced value cannot be traced")
        return _call("numpy", ufunc, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _call("numpy", func, args, kwargs)


def _call(module: str, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    from cute_attn.variants.library import find

    name = getattr(function, "__name__", repr(function))
    if name == "__getitem__":
        _refuse(_NO_INDEX)
    found = find(name)
    if found is None:
        _refuse(f"{module}.{name} cannot be traced")
    try:
        return found(*args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            _refuse(f"{module}.{name} with these arguments cannot be traced: {error}")
        raise


def _refuse(message: str) -> NoReturn:
    raise trace_error(message) from None


def kind_of(dtype: Any) -> str:
    """The kind of a dtype by its name: torch's, NumPy's, Python's types, or a kind."""
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype).split(".")[-1]
    if name not in _KIND_OF_DTYPE:
        _refuse(f"{dtype} is no type of traced values; they are bool, i32 (int) or f32 (float)")
    return _KIND_OF_DTYPE[name]


def lift(x: Any) -> Expression:
    """The expression of an operand: traced, a number, or a scalar array or tensor."""
    if isinstance(x, Traced):
        return x.expression
    if not isinstance(x, (bool, int, float)) and getattr(x, "ndim", None) == 0:
        x = x.item()
    if isinstance(x, (bool, int, float)):
        if x != x:
            _refuse("NaN is no constant")
        try:
            return constant(x)
        except OverflowError as error:
            _refuse(str(error))
    shape = getattr(x, "shape", None)
    what = type(x).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
    _refuse(f"a {what} is no operand of a traced value; a number is")


def apply(name: str, *operands: Any) -> Traced:
    """The operation `name` of operands; errors show the user's line."""
    args = [lift(x) for x in operands]
    # What is computed from a row is one: see `vectors.Row`.
    own = next(
        (type(x) for x in operands if isinstance(x, Traced) and type(x) is not Traced), Traced
    )
    try:
        return own(operate(name, *args))
    except (TypeError, ValueError, OverflowError) as error:
        _refuse(str(error))


def _divisor(y: Any) -> None:
    low, high = domain.bounds(lift(y))
    if low <= 0 <= high:
        _refuse(
            f"integer division by {lift(y)!r}, which may be 0: its bounds are"
            f" {low:.0f} and {high:.0f}; a scalar's are set with Scalar(..., lower=1)"
        )


def floor_divide(x: Any, y: Any) -> Traced:
    """x // y, rounded down."""
    if "f32" in (lift(x).kind, lift(y).kind):
        return apply("floor", apply("div", x, y))
    _divisor(y)
    return apply("floordiv", x, y)


def remainder(x: Any, y: Any) -> Traced:
    """x % y, with the sign of y."""
    if "f32" in (lift(x).kind, lift(y).kind):
        return apply("sub", x, floor_divide(x, y) * y)
    _divisor(y)
    return apply("mod", x, y)


def shift(name: str, x: Any, y: Any) -> Traced:
    """x << y or x >> y."""
    low, high = domain.bounds(lift(y))
    if low < 0 or high > 31:
        _refuse(f"shift by {lift(y)!r}, whose bounds are {low:.0f} and {high:.0f}; 0 to 31")
    return apply(name, x, y)


def power(x: Any, y: Any) -> Traced:
    """x ** y; for constants the cheapest way to it, else for x that are not negative."""
    base, exponent = lift(x), lift(y)
    if exponent.is_constant:
        number = float(exponent.value)
        square = apply("mul", x, x)
        ways: dict[float, Callable[[], Traced]] = {
            1.0: lambda: Traced(base),
            2.0: lambda: square,
            3.0: lambda: square * x,
            4.0: lambda: square * square,
            0.5: lambda: apply("sqrt", x),
            -0.5: lambda: apply("rsqrt", x),
            -1.0: lambda: apply("div", 1.0, x),
            -2.0: lambda: apply("div", 1.0, square),
        }
        if number in ways:
            return ways[number]()
    if base.is_constant and float(base.value) > 0:
        log2 = math.log2(float(base.value))
        return apply("exp2", apply("mul", log2, y))
    return apply("pow", x, y)
