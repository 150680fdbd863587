"""Variants as text: "causal+alibi(32)", "rope(layout='interleaved')", "my_file.py:my_variant"."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import cute_attn
from cute_attn.api import Variant

BUILT_IN = (
    "full",
    "causal",
    "sliding_window",
    "soft_cap",
    "alibi",
    "prefix_lm",
    "chunked_local",
    "document_mask",
    "relative_bias",
    "custom_mask",
    "tree_mask",
    "attention_sinks",
    "head_scales",
    "sigmoid_attention",
    "rope",
    "qk_norm",
    "streaming_llm",
)
_ARGUMENTS = ("LinearScaling", "Llama3Scaling", "YarnScaling")
_ELSEWHERE = re.compile(r"(?P<place>[^:()]+):(?P<expression>[A-Za-z_]\w*(?:\(.*\))?)")
_PLUS = re.compile(r"\+(?![^(]*\))")  # outside of parentheses


def variant_of(text: str) -> Variant:
    """The variant that a text names; "+" combines several.

    A term is a built-in one, with arguments if it takes any ("alibi(32)"), or `FILE.py:NAME` or
    `MODULE:NAME`: a variant, or a function that returns one, with arguments or without.

    Raises:
        ValueError: there is none, its arguments are wrong, or two cannot be combined.
    """
    return reduce(Variant.__and__, (_term(part.strip()) for part in _PLUS.split(text)))


def _term(text: str) -> Variant:
    elsewhere = _ELSEWHERE.fullmatch(text)
    if elsewhere is None:
        known: Mapping[str, Any] = {
            name: getattr(cute_attn, name) for name in (*BUILT_IN, *_ARGUMENTS)
        }
        expression = text
    else:
        known, expression = vars(_module(elsewhere["place"])), elsewhere["expression"]
    if not expression:
        raise ValueError("a variant is missing: one stands on each side of '+'")
    try:
        node = ast.parse(expression, mode="eval").body
        found = _value(node, known)
        if callable(found) and not isinstance(found, Variant):
            found = found()
    except KeyError as error:
        names = ", ".join(known if elsewhere else BUILT_IN)
        raise ValueError(
            f"variant {text!r}: there is no {error.args[0]!r}; it takes"
            f" {names if elsewhere is None else 'a name of ' + elsewhere['place']},"
            " with arguments as in alibi(32), or FILE.py:NAME"
        ) from None
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"variant {text!r}: {error}") from error
    if not isinstance(found, Variant):
        raise ValueError(f"variant {text!r} is a {type(found).__name__}, not a Variant")
    return found


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """A name, a call of one with such values, or a literal."""
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.Call):
        function: Callable[..., Any] = _value(node.func, known)
        named = {word.arg: _value(word.value, known) for word in node.keywords if word.arg}
        return function(*(_value(x, known) for x in node.args), **named)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise TypeError(f"{ast.unparse(node)!r} is neither a name nor a number or word") from None


def _module(place: str) -> Any:
    """The module of a file, or of a name that can be imported.

    Raises:
        ValueError: there is none.
    """
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ImportError as error:
            raise ValueError(f"variant of {place!r}: {error}") from error
    path = Path(place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"variant of {place!r}: there is no such file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
