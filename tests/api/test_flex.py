"""`from_flex`: FlexAttention's functions as they are, against the same functions under vmap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks

from cute_attn import TraceError, Variant, attention, from_flex

HEADS, LENGTH, DIM = 4, 48, 16
Mod = Callable[..., Any]


def causal_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def near(size: int) -> Mod:
    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.abs(q_idx - kv_idx) <= size

    return window


def packed(inner: Mod, lengths: list[int]) -> Mod:
    """Documents one behind the other, each with its own positions."""
    starts = torch.tensor([0, *lengths]).cumsum(0)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        own = document[q_idx]
        inside = inner(b, h, q_idx - starts[own], kv_idx - starts[document[kv_idx]])
        return (own == document[kv_idx]) & inside

    return mask


def squares(width: int, reach: int) -> Mod:
    """Neighbours in an image of `width` columns."""

    def place(index: Any) -> tuple[Any, Any]:
        return index // width, index % width

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        (q_y, q_x), (kv_y, kv_x) = place(q_idx), place(kv_idx)
        middle = q_x.clamp(reach, width - 1 - reach)
        return ((middle - kv_x).abs() <= reach) & ((q_y - kv_y).abs() <= reach)

    return mask


def some_are_global(seen: torch.Tensor) -> Mod:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (seen[q_idx] | seen[kv_idx]) & causal_mask(b, h, q_idx, kv_idx)

    return or_masks(mask, and_masks(causal_mask, near(3)))


def bounds_of_images(bounds: torch.Tensor) -> Mod:
    """A row of a tensor, used twice."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        row = bounds[kv_idx // 12]
        return (q_idx >= row[0]) & (q_idx < row[1])

    return mask


def chosen(lists: torch.Tensor, width: int) -> Mod:
    """Key blocks by number, some for each block of queries."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        block = kv_idx // width
        return (lists[b, h, q_idx // width] == block.unsqueeze(-1)).any(-1) | (q_idx == kv_idx)

    return mask


def apart(places: torch.Tensor) -> Mod:
    """Distance of points in space."""

    def bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        way = places[q_idx] - places[kv_idx]
        return score - way.abs().amax(-1) - torch.sqrt((way * way).sum(dim=-1) + 0.01) * (h + 1)

    return bias


def products(left: torch.Tensor, right: torch.Tensor) -> Mod:
    """A further product of rows, as of the rotary part of latent attention."""

    def bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        inner = torch.dot(left[b, h, q_idx], right[b, h // 2, kv_idx])
        return score + 0.3 * inner + torch.where(right[b, 0, kv_idx] > 0, 0.1, -0.2).mean(-1)

    return bias


def soft_cap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 2.0 * torch.tanh(score / 2.0)


def slopes_of(heads: int) -> Mod:
    def bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + torch.exp2(-((h + 1) * 8.0 / heads)) * (kv_idx - q_idx)

    return bias


def table_of(table: torch.Tensor) -> Mod:
    scale = torch.tensor(0.5)

    def bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + scale * table[h, q_idx - kv_idx + LENGTH - 1]

    return bias


def gelu_of_rows(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    gate = torch.nn.functional.gelu(score) + math.floor(q_idx / 5) * 0.01
    return torch.log(gate + 1.0)


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def floor_free(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """`gelu_of_rows` as vmap takes it."""
    return torch.log(torch.nn.functional.gelu(score) + torch.floor(q_idx / 5) * 0.01 + 1.0)


CASES: dict[str, tuple[Mod | None, Mod | None]] = {
    "causal": (None, causal_mask),
    "window": (None, and_masks(causal_mask, near(7))),
    "noop": (None, noop_mask),
    "documents": (None, packed(causal_mask, [11, 20, 17])),
    "images": (None, squares(8, 1)),
    "global": (None, some_are_global(random(3, LENGTH) > 1)),
    "intervals": (None, bounds_of_images(torch.tensor([[0, 30], [5, 40], [20, 48], [0, 48]]))),
    "chosen": (None, chosen(torch.rand(2, HEADS, 4, 8).argsort(-1)[..., :3] // 2, 12)),
    "apart": (apart(random(6, LENGTH, 3)), causal_mask),
    "products": (products(random(7, 2, HEADS, LENGTH, 8), random(8, 2, 2, LENGTH, 8)), causal_mask),
    "soft_cap": (soft_cap, causal_mask),
    "alibi": (slopes_of(HEADS), causal_mask),
    "table": (table_of(random(4, HEADS, 2 * LENGTH)), None),
    "doubles": (table_of(random(4, HEADS, 2 * LENGTH).double()), None),
    "gelu": (gelu_of_rows, None),
}


def over_all(mod: Mod, *first: torch.Tensor) -> torch.Tensor:
    """A mod at every (b, h, q_idx, kv_idx)."""
    own = (0,) * len(first)
    for axis in (3, 2, 1, 0):
        mod = torch.vmap(mod, in_dims=(*own, *(0 if i == axis else None for i in range(4))))
    places = [torch.arange(n) for n in (2, HEADS, LENGTH, LENGTH)]
    return mod(*first, *places)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_against_the_mods_under_vmap(name: str) -> None:
    score_mod, mask_mod = CASES[name]
    q, k, v = (random(seed, 2, LENGTH, HEADS, DIM) for seed in range(3))
    out = attention(q, k, v, variant=from_flex(score_mod, mask_mod))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k).double() * DIM**-0.5
    if score_mod is not None:
        scores = over_all(floor_free if score_mod is gelu_of_rows else score_mod, scores)
    if mask_mod is not None:
        scores = scores.masked_fill(~over_all(mask_mod), -torch.inf)
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).nan_to_num(0.0), v.double())
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def test_what_is_derived() -> None:
    variant = from_flex(slopes_of(HEADS), and_masks(causal_mask, near(7)))
    assert variant.band.resolve({}) == (7, 0) and variant.name == "and_mask_bias"
    assert from_flex(mask_mod=lambda b, h, q, k: q >= k).name == "flex"
    assert from_flex(mask_mod=causal_mask, name="mine").name == "mine"
    documents = from_flex(mask_mod=packed(causal_mask, [3, 45]))
    assert [(t.name, t.kind, t.dims) for t in documents.tensors] == [
        ("document", "i32", 1),
        ("starts", "i32", 1),
    ]


def test_captured_tensors_are_read_where_they_are() -> None:
    table = random(4, HEADS, 2 * LENGTH)
    variant = from_flex(table_of(table))
    assert variant == from_flex(table_of(table)) != from_flex(table_of(table.clone()))
    q, k, v = (random(seed, 1, LENGTH, HEADS, DIM) for seed in range(3))
    before = attention(q, k, v, variant=variant)
    other = attention(q, k, v, variant=variant, tensors={"table": table * 2})
    table *= 2
    assert torch.equal(attention(q, k, v, variant=variant), other)
    assert not torch.allclose(before, other)


def test_one_tensor_in_both_functions_and_names_that_are_taken() -> None:
    k = torch.arange(LENGTH) % 3

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return k[q_idx] == k[kv_idx]

    def score(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + k[kv_idx]

    variant = from_flex(score, mask)
    assert [t.name for t in variant.tensors] == ["k1"]
    d = lse = torch.ones(LENGTH)
    variant = from_flex(lambda score, b, h, q_idx, kv_idx: score * d[q_idx])
    assert [t.name for t in variant.tensors] == ["d1"] and lse is d


def test_errors() -> None:
    with pytest.raises(ValueError, match="score_mod and mask_mod are None"):
        from_flex()
    rows = random(5, LENGTH, 8)

    def sorted_rows(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + torch.sort(rows[q_idx])[0]

    with pytest.raises(TraceError, match=r"torch\.sort of a row of rows cannot be") as caught:
        from_flex(sorted_rows)
    assert "return score + torch.sort(rows[q_idx])[0]" in str(caught.value)
    with pytest.raises(TraceError, match="function returns a row of rows"):
        from_flex(lambda score, b, h, q_idx, kv_idx: score + rows[q_idx])
    spectrum = torch.zeros(LENGTH, dtype=torch.complex64)
    with pytest.raises(TraceError, match=r"spectrum has dtype torch\.complex64"):
        from_flex(mask_mod=lambda b, h, q, k: spectrum[q] == spectrum[k])
    with pytest.raises(TraceError, match="let from_flex"):
        Variant("v", mask=lambda b, h, q, k: spectrum[q] == 0)
