"""The tensor map of Q in the argument block: whose it is, and when it is written again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cute_attn import PagedKV, RaggedKV
from cute_attn.api.tensor_maps import q_map
from cute_attn.codegen.smem_tile import SmemTile
from tests.api import conftest
from tests.api.conftest import fake_map

BF16 = torch.bfloat16
TILE_Q = 128


def zeros(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=BF16)


def prefill(fake_gpu: Any, tokens: int, group: int = 4, head_dim: int = 128) -> Any:
    """A batch of the Hopper tile kernel, planned for one request."""
    batch = fake_gpu.batch(2 * group, 2, head_dim, schedule="hopper_tile")
    return batch.plan([0, tokens], RaggedKV([0, 300]))


@pytest.mark.parametrize("group", [1, 2, 4, 8, 16, 64, 128])
@pytest.mark.parametrize(
    ("head_dim", "panel"), [(64, 64), (80, 32), (96, 32), (112, 64), (256, 64)]
)
def test_boxes_of_a_tile_are_its_panels(group: int, head_dim: int, panel: int) -> None:
    """A panel of the tile per box, all packed rows of it; strides of a fused QKV slice."""
    heads = 2 * group
    q = zeros(50, heads + 4, head_dim)[:, :heads]
    spec = q_map(q, group, TILE_Q // group)
    assert spec.dims == (head_dim, heads, 50)
    assert spec.strides_bytes == (2 * head_dim, 2 * (heads + 4) * head_dim)
    assert spec.box == (panel, group, TILE_Q // group) and spec.swizzle == 2 * panel
    assert spec.box_bytes == SmemTile(TILE_Q, panel).panel_bytes


def tile_q(batch: Any) -> int:
    """Packed rows of the planned kernel's tile."""
    rows: int = batch.kernels[0].spec.tile.q
    return rows


def test_strides_of_single_tokens_and_heads_say_nothing() -> None:
    """Whatever torch says of them, TMA checks multiples of 16 bytes."""
    one_head = torch.as_strided(zeros(1000), (5, 1, 64), (64, 3, 1))
    assert q_map(one_head, 1, TILE_Q).strides_bytes == (16, 128)
    one_token = torch.as_strided(zeros(1000), (1, 4, 64), (7, 64, 1))
    assert q_map(one_token, 4, TILE_Q // 4).strides_bytes == (128, 16)
    none = torch.as_strided(zeros(1000), (0, 4, 64), (7, 3, 1))
    assert q_map(none, 4, TILE_Q // 4).dims == (64, 4, 1)
    assert q_map(none, 4, TILE_Q // 4).strides_bytes == (16, 16)


@pytest.mark.parametrize("page_size", [None, 16, 3])
@pytest.mark.parametrize("group", [1, 4, 5])
def test_block_has_the_map_or_pointer_and_strides(
    fake_gpu: Any, group: int, page_size: int | None
) -> None:
    """The gather loader too takes Q by TMA; a group that does not divide the tile cannot."""
    heads = 2 * group
    batch = fake_gpu.batch(heads, 2, 128, schedule="hopper_tile")
    q, out = zeros(40, heads + 1, 128)[:, :heads], zeros(40, heads, 128)
    if page_size is None:
        batch.plan([0, 40], RaggedKV([0, 300]))
        batch.run(q, zeros(300, 2, 128), zeros(300, 2, 128), out=out)
    else:
        batch.plan([0, 40], PagedKV([0, 10], range(10), [page_size], page_size))
        batch.run(q, zeros(10, 2, page_size, 2, 128), out=out)
    (launch,) = fake_gpu.launches
    p = launch.params
    assert p["out"] == out.data_ptr() and p["out_token_stride"] == heads * 128
    if group == 5:
        assert "q_map" not in p
        assert (p["q"], p["q_token_stride"]) == (q.data_ptr(), (heads + 1) * 128)
    else:
        assert "q" not in p and "q_token_stride" not in p
        assert p["q_map"] == fake_map(q_map(q, group, tile_q(batch) // group), q.data_ptr())


def test_every_launch_has_the_map_of_its_q(fake_gpu: Any) -> None:
    """New addresses, new strides, new numbers of tokens, in several layers and plans."""
    batch = prefill(fake_gpu, 40)
    layers = [(zeros(300, 2, 128), zeros(300, 2, 128)) for _ in range(3)]
    known = [zeros(40, 8, 128) for _ in range(2)]
    steps = [
        (40, known[0]), (40, known[1]), (40, known[0]), (40, zeros(40, 12, 128)[:, :8]),
        (41, zeros(41, 8, 128)), (40, known[0]), (1, zeros(1, 8, 128)), (40, known[1]),
    ]  # fmt: skip
    tiles = set()  # one token has another kernel
    for tokens, q in steps:
        batch.plan([0, tokens], RaggedKV([0, 300]))
        for k, v in (*layers, *reversed(layers)):
            batch.run(q, k, v)
            expected = fake_map(q_map(q, 4, tile_q(batch) // 4), q.data_ptr())
            tiles.add(tile_q(batch))
            assert fake_gpu.launches[-1].params["q_map"] == expected
    assert tiles == {64, 128}
    moved = [(zeros(300, 2, 128), zeros(300, 2, 128)) for _ in range(2)]
    for (k, v), q in zip(moved, known, strict=True):  # blocks made from those of other addresses
        batch.run(q, k, v)
        expected = fake_map(q_map(q, 4, TILE_Q // 4), q.data_ptr())
        assert fake_gpu.launches[-1].params["q_map"] == expected


def test_a_run_encodes_no_map_that_is_known(fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def encode(self: conftest.FakeEncoder, pointer: int) -> bytes:
        encoded.append(pointer)
        return fake_map(self.spec, pointer)

    monkeypatch.setattr(conftest.FakeEncoder, "encode", encode)
    batch = prefill(fake_gpu, 40)
    k, v = zeros(300, 2, 128), zeros(300, 2, 128)
    warm = zeros(40, 8, 128)  # kept, so that no later q has its address
    batch.run(warm, k, v)
    encoded.clear()
    first, second, wide = zeros(40, 8, 128), zeros(40, 8, 128), zeros(40, 9, 128)
    for q in (first, first, second, second, first, wide[:, :8], first):
        batch.run(q, k, v, out=zeros(40, 8, 128))
    assert encoded == [x.data_ptr() for x in (first, second, wide)]
    batch.plan([0, 40], RaggedKV([0, 300]))  # as many tokens as before: the same map
    batch.run(first, k, v)
    assert len(encoded) == 3
    batch.plan([0, 39], RaggedKV([0, 300]))
    batch.run(first[:39], k, v)
    assert len(encoded) == 4


def test_no_tokens_have_a_map_of_spare_memory(fake_gpu: Any) -> None:
    """A block is launched all the same; its descriptor must be one that the driver takes."""
    batch = fake_gpu.batch(8, 2, 128, schedule="hopper_tile")
    batch.plan([0, 0], RaggedKV([0, 300]))
    k, v = zeros(300, 2, 128), zeros(300, 2, 128)
    for q in (zeros(0, 8, 128), zeros(10, 8, 129)[1:1, :, :128]):
        batch.run(q, k, v)
        address = int.from_bytes(fake_gpu.launches[-1].params["q_map"][:8], "little")
        assert address == fake_gpu.launches[-1].params["partial_out"] and address % 16 == 0


def test_a_captured_launch_keeps_the_map_it_was_captured_with(fake_gpu: Any) -> None:
    """Of all rows of the padded q, so that longer steps than the first see theirs."""
    batch = fake_gpu.batch(
        8, 2, 128, schedule="hopper_tile", cuda_graph=True, max_requests=8, max_pages=64
    )
    q, cache = zeros(64, 8, 128), zeros(20, 2, 16, 2, 128)
    batch.plan([0, 20], PagedKV([0, 2], [3, 1], [7], 16))
    fake_gpu.capturing = True
    batch.run(q, cache)
    fake_gpu.capturing = False
    batch.plan([0, 64], PagedKV([0, 2], [3, 1], [7], 16))
    batch.run(q, cache)
    before, after = (launch.params["q_map"] for launch in fake_gpu.launches)
    assert before == after == fake_map(q_map(q, 4, TILE_Q // 4), q.data_ptr())
