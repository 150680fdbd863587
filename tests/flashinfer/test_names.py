"""Names, argument order and defaults are FlashInfer's; the page names all of them."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import cute_attn.flashinfer as flashinfer
from cute_attn.flashinfer.unsupported import INSTEAD
from tests.flashinfer.cases import Cache, random, workspace

_HERE = Path(__file__).parent
_PAGE = (_HERE.parents[1] / "docs" / "flashinfer.md").read_text()
# Of FlashInfer 0.6.18, read from its sources: parameters in order, with their defaults.
SIGNATURES = json.loads((_HERE / "signatures.json").read_text())


def found(name: str) -> Any:
    """The object of ours."""
    holder, _, method = name.partition(".")
    owner = getattr(flashinfer, holder, None) or getattr(flashinfer.sparse, holder)
    return getattr(owner, method) if method else owner


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments(name: str) -> None:
    """Those of FlashInfer come in its order with its defaults; ours may have more behind them."""
    parameters = inspect.signature(found(name)).parameters.values()
    own = [p for p in parameters if p.name != "self" and p.kind not in (p.VAR_POSITIONAL,)]
    by_name = {p.name: p for p in own}
    last = -1
    for text in SIGNATURES[name]:
        argument, _, default = text.partition(" = ")
        assert argument in by_name, f"{argument} is missing"
        parameter = by_name[argument]
        if argument != "window_right":  # by name only, as ours
            assert own.index(parameter) > last, f"{argument} comes too early"
            last = own.index(parameter)
        if default:
            assert parameter.default == eval(default, {"torch": torch}), argument
        else:
            assert parameter.default is inspect.Parameter.empty, argument


def test_the_page_names_everything() -> None:
    public = [n for n in flashinfer.__all__ if not isinstance(getattr(flashinfer, n), ModuleType)]
    patterns = [re.escape(n).replace(r"\*", r"\w*") for n in re.findall(r"`([\w*.]+)`", _PAGE)]
    patterns.append("single_prefill_with_kv_cache_return_lse")
    for name in [*public, *INSTEAD]:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), (
            f"{name} is not on the page"
        )


def test_the_example_of_the_page_runs() -> None:
    cache = Cache([33, 7], 8, 128, 16, dtype=torch.bfloat16)
    layers = [
        SimpleNamespace(q=random(i, 2, 32, 128, dtype=torch.bfloat16), kv_cache=cache.whole)
        for i in range(2)
    ]
    names = dict(zip(("indptr", "indices", "last_page_len"), cache.index, strict=True))
    given = {"torch": torch, "workspace": workspace(), "layers": layers, **names}
    (code,) = re.findall(r"```python\n(.*?)```", _PAGE, re.S)
    exec(code, given)
    assert all(layer.out.shape == (2, 32, 128) for layer in layers)


def test_names_that_are_not_served_can_be_imported() -> None:
    for name in INSTEAD:
        stand_in = getattr(flashinfer, name)
        with pytest.raises(NotImplementedError, match=name):
            stand_in(1, x=2)
    for module in (flashinfer.decode, flashinfer.prefill, flashinfer.page, flashinfer.mla):
        with pytest.raises(NotImplementedError, match="has no trtllm_batch_decode_with_kv_cache:"):
            module.trtllm_batch_decode_with_kv_cache()
        with pytest.raises(AttributeError, match=rf"{module.__name__}.* no attribute 'rmsnorm'"):
            module.rmsnorm  # noqa: B018
