"""Frozen dataclasses to JSON and back, strictly, and their JSON Schema.

One definition gives the file, the check of what is read, and the schema for readers in other
languages. Fields are `Annotated[type, "what it says"]`, types are int, float, str, bool, None,
unions with None, tuples of any length, dicts from str, and further dataclasses.
"""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from cute_attn.export.errors import BundleError

T = TypeVar("T")
_NAMES = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def to_json(value: Any) -> Any:
    """Plain values: dicts in the order of the fields, lists for tuples."""
    if is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return value


def from_json(cls: type[T], data: Any, where: str = "manifest") -> T:
    """The inverse of `to_json`, which takes nothing else.

    Args:
        cls: a dataclass.
        data: parsed JSON.
        where: what it is called in messages.

    Raises:
        BundleError: a key is missing or unknown, or a value of another type; says where.
    """
    found = _read(cls, data, where)
    assert isinstance(found, cls)
    return found


def schema_of(cls: type[Any], title: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a dataclass; equal input, equal schema."""
    definitions: dict[str, Any] = {}
    root = _schema(cls, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _read(kind: Any, data: Any, where: str) -> Any:
    if get_origin(kind) is Annotated:
        return _read(get_args(kind)[0], data, where)
    if is_dataclass(kind):
        return _read_object(kind, data, where)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in inner:
            return None
        (other,) = (k for k in inner if k is not type(None))
        return _read(other, data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise _other(data, "array", where)
        return tuple(_read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is dict:
        if not isinstance(data, dict):
            raise _other(data, "object", where)
        return {key: _read(inner[1], item, f"{where}.{key}") for key, item in data.items()}
    if kind is float and type(data) is int:
        return float(data)
    if type(data) is not kind:  # a bool is no int
        raise _other(data, _NAMES[kind], where)
    return data


def _read_object(cls: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _other(data, "object", where)
    hints = get_type_hints(cls, include_extras=True)
    for what, keys in (("lacks", hints.keys() - data.keys()), ("has", data.keys() - hints.keys())):
        if keys:
            unknown = ", which is unknown" if what == "has" else ""
            raise BundleError(f"{where} {what} {min(keys)!r}{unknown}")
    return cls(**{name: _read(hints[name], data[name], f"{where}.{name}") for name in hints})


def _other(data: Any, wanted: str, where: str) -> BundleError:
    return BundleError(f"{where} is {data!r:.60}; it takes a value of type {wanted}")


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if get_origin(kind) is Annotated:
        inner, text = get_args(kind)
        return {"description": text, **_schema(inner, definitions)}
    if is_dataclass(kind):
        assert isinstance(kind, type)
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # its place, in case it holds itself
            hints = get_type_hints(kind, include_extras=True)
            definitions[kind.__name__] = {
                "description": " ".join((kind.__doc__ or "").split()),
                "type": "object",
                "properties": {name: _schema(hint, definitions) for name, hint in hints.items()},
                "required": list(hints),
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{kind.__name__}"}
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(k, definitions) for k in inner]}
    if origin is tuple:
        return {"type": "array", "items": _schema(inner[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(inner[1], definitions)}
    return {"type": _NAMES[kind]}
