"""Tensor parameters inside a trace, and what a trace records beside its result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cute_attn.variants.errors import Place, trace_error, users_place
from cute_attn.variants.expression import Expression, load
from cute_attn.variants.tensor import Captured, Tensor, kind_of_elements
from cute_attn.variants.tensor_row import TensorRow
from cute_attn.variants.traced import Traced, lift


@dataclass
class Record:
    """What one trace came across.

    Attributes:
        captured: tensors that the function had in its hands.
        places: the user's lines that read tensors.
    """

    captured: list[Tensor] = field(default_factory=list)
    places: dict[Expression, Place] = field(default_factory=dict)


_record: ContextVar[Record | None] = ContextVar("record", default=None)


@contextmanager
def recording() -> Iterator[Record]:
    """A record of what is traced within it."""
    record = Record()
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


class TracedTensor:
    """A tensor parameter in a user's hands: `table[i, j]` or `table[i][j]` gives an element, all
    indices but one a `TensorRow`."""

    def __init__(self, tensor: Tensor, indices: tuple[Expression, ...] = ()) -> None:
        self._tensor = tensor
        self._indices = indices

    def __getitem__(self, index: Any) -> Any:
        name, dims = self._tensor.name, self._tensor.dims
        indices = [lift(i) for i in (index if isinstance(index, tuple) else (index,))
                   if self._is_scalar(i)]  # fmt: skip
        if any(i.kind == "f32" for i in indices):
            _refuse(f"tensor {name} is indexed by a float; it takes integers")
        all_indices = (*self._indices, *indices)
        if len(all_indices) > dims:
            _refuse(f"tensor {name} has {dims} dims and is indexed by {len(all_indices)}")
        if len(all_indices) < dims:
            rest = TracedTensor(self._tensor, all_indices)
            if len(all_indices) < dims - 1:
                return rest
            held = self._tensor.captured
            length = None if held is None else int(held.tensor.shape[-1])
            return TensorRow(rest.__getitem__, length, name)
        element = load(name, self._tensor.element_kind, all_indices)
        record, place = _record.get(), users_place()
        if record is not None and place is not None:
            record.places.setdefault(element, place)
        return Traced(element)

    def _is_scalar(self, index: Any) -> bool:
        if index is None or index is Ellipsis or isinstance(index, (slice, list)):
            _refuse(f"tensor {self._tensor.name} is indexed by {index!r}; it takes integers")
        return True

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", repr(func))
        _refuse(f"torch.{name} of a tensor parameter cannot be traced; index it")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"tensor {self._tensor.name} can only be indexed while it is traced")


def _refuse(message: str) -> NoReturn:
    raise trace_error(message) from None


def captured(value: Any, name: str) -> TracedTensor:
    """The parameter that a tensor in the user's hands becomes within the present trace.

    Args:
        value: the tensor, of dtype float32, int32 or bool.
        name: a C identifier; numbered if another tensor of the trace has it.
    """
    record = _record.get()
    assert record is not None
    for known in record.captured:
        if known.captured is not None and known.captured.tensor is value:
            return TracedTensor(known)
    taken = {t.name for t in record.captured}
    own = next(n for i in range(len(taken) + 1) if (n := f"{name}{i or ''}") not in taken)
    kind = kind_of_elements(value)
    if kind is None:
        _refuse(f"tensor {own} has dtype {value.dtype}; it takes float32, int32 or bool")
    try:
        tensor = Tensor(own, kind, len(value.shape), "captured", Captured(value))
    except ValueError as error:
        _refuse(str(error))
    record.captured.append(tensor)
    return TracedTensor(tensor)
