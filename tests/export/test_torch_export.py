"""What torch.export and AOTInductor do with the torch operators (docs/export.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cute_attn import BatchAttention, RaggedKV
from tests.export.compilers import needs_cxx


def planned(q_len: int = 5, kv_len: int = 30) -> BatchAttention:
    batch = BatchAttention(2, 2, 16, dtype=torch.float32, device="cpu")
    return batch.plan([0, q_len], RaggedKV([0, kv_len]))


def rows(q_len: int = 5, kv_len: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(q_len)
    return tuple(torch.randn(n, 2, 16, generator=draw) for n in (q_len, kv_len))


class Layer(torch.nn.Module):
    """A model with attention in it."""

    def __init__(self, handle: int) -> None:
        super().__init__()
        self.handle = handle

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        torch.ops.cute_attn.run(self.handle, q, k, 2 * k, out, None)
        return out + 1


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_follows_new_plans(strict: bool) -> None:
    batch = planned()
    count = torch.export.Dim("count", min=1, max=1 << 20)
    keys = torch.export.Dim("keys", min=1, max=1 << 20)
    program = torch.export.export(
        Layer(batch.handle), rows(), dynamic_shapes=({0: count}, {0: keys}), strict=strict
    )
    for sizes in ((5, 30), (7, 9)):
        q, k = rows(*sizes)
        batch.plan([0, sizes[0]], RaggedKV([0, sizes[1]]))
        assert torch.equal(program.module()(q, k), batch.run(q, k, 2 * k) + 1)


def test_a_saved_program_finds_its_object_by_the_handle(tmp_path: Path) -> None:
    batch, (q, k) = planned(), rows()
    program = torch.export.export(Layer(batch.handle), (q, k))
    torch.export.save(program, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    assert torch.equal(loaded(q, k), batch.run(q, k, 2 * k) + 1)
    handle = batch.handle
    del batch, program
    with pytest.raises(ValueError, match=f"handle is {handle}; it takes the handle of a living"):
        loaded(q, k)


@pytest.mark.slow
@needs_cxx
def test_aot_inductor_calls_the_operator(tmp_path: Path) -> None:
    """In a Python process, which knows the operator; a program without Python does not."""
    batch, (q, k) = planned(), rows()
    program = torch.export.export(Layer(batch.handle), (q, k))
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "layer.pt2")
    )
    found = torch._inductor.aoti_load_package(package)(q, k)
    torch.testing.assert_close(found, batch.run(q, k, 2 * k) + 1)
