"""Arrays of other libraries: taken by DLPack, and given."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from cute_attn import (
    BatchAttention,
    RaggedKV,
    attention,
    attention_sinks,
    causal,
    merge_states,
    single_decode,
    single_prefill,
    soft_cap,
)

Array = npt.NDArray[np.float32]


class Foreign:
    """An array of a library that torch does not know; DLPack is all that it offers."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Locked(Foreign):
    """One that cannot be passed on."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("held elsewhere")


def arrays(*sizes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(size, dtype=np.float32) for size in sizes]


@pytest.mark.parametrize("kind", [np.asarray, Foreign])
def test_one_shot_calls(kind: Any) -> None:
    q, k, v = arrays((2, 5, 4, 16), (2, 30, 2, 16), (2, 30, 2, 16))
    tq, tk, tv = (torch.from_numpy(x) for x in (q, k, v))
    assert torch.equal(attention(kind(q), kind(k), kind(v)), attention(tq, tk, tv))
    one = single_prefill(kind(q[0]), kind(k[0]), tv[0])
    assert torch.equal(one, single_prefill(tq[0], tk[0], tv[0]))
    last = single_decode(kind(q[0, -1]), kind(k[0]), kind(v[0]))
    assert torch.equal(last, single_decode(tq[0, -1], tk[0], tv[0]))


@pytest.mark.parametrize("grad_mode", [False, True])
def test_run_reads_and_writes_in_place(grad_mode: bool) -> None:
    q, k, v = arrays((5, 4, 16), (30, 2, 16), (30, 2, 16))
    out, lse = np.zeros((5, 4, 16), np.float32), np.zeros((5, 4), np.float32)
    variant = causal() & attention_sinks()
    batch = BatchAttention(4, 2, 16, dtype=torch.float32, variant=variant, device="cpu")
    batch.plan([0, 5], RaggedKV([0, 30]), tensors={"sink": np.ones(4, np.float32)})
    with torch.set_grad_enabled(grad_mode):
        got, got_lse = batch.run(Foreign(q), k, torch.from_numpy(v), out=out, lse=lse)
        expected = batch.run(*(torch.from_numpy(x) for x in (q, k, v)))
    assert got.data_ptr() == out.ctypes.data and got_lse.data_ptr() == lse.ctypes.data
    assert np.array_equal(out, expected.numpy())


def test_other_arguments_of_run_go_with_them() -> None:
    """Scale and scalars of the call, as with tensors."""
    q, k, v = arrays((5, 4, 16), (30, 2, 16), (30, 2, 16))
    variant = causal() & soft_cap()
    batch = BatchAttention(4, 2, 16, dtype=torch.float32, variant=variant, device="cpu")
    batch.plan([0, 5], RaggedKV([0, 30]))
    options: dict[str, Any] = {
        "sm_scale": 0.7,
        "scalars": {"logits_soft_cap": 2.0},
        "return_lse": True,
    }
    out, lse = batch.run(q, k, v, **options)
    want, want_lse = batch.run(*map(torch.from_numpy, (q, k, v)), **options)
    assert torch.equal(out, want) and torch.equal(lse, want_lse)
    assert not torch.equal(out, batch.run(*map(torch.from_numpy, (q, k, v))))


def test_merge_states_takes_arrays() -> None:
    v, lse = arrays((3, 4, 2, 8), (3, 4, 2))
    got = merge_states(v, Foreign(lse))
    for a, b in zip(got, merge_states(torch.from_numpy(v), torch.from_numpy(lse)), strict=True):
        assert torch.equal(a, b)


def test_results_go_out() -> None:
    (q,) = arrays((1, 5, 4, 16))
    out = attention(q, q, q)
    again = np.from_dlpack(out)
    assert again.ctypes.data == out.data_ptr() and again.shape == q.shape


def test_what_cannot_be_taken_is_named() -> None:
    q, k = arrays((5, 4, 16), (30, 2, 16))
    batch = BatchAttention(4, 2, 16, dtype=torch.float32, device="cpu")
    batch.plan([0, 5], RaggedKV([0, 30]))
    with pytest.raises(TypeError, match="k is a Locked that torch cannot take: held elsewhere"):
        batch.run(q, Locked(k), k)
    with pytest.raises(TypeError, match=r"q is a list; it takes a torch\.Tensor, or an array"):
        batch.run(q.tolist(), k, k)
    with pytest.raises(TypeError, match=r"v is a list; it takes a torch\.Tensor, or an array"):
        attention(q[None], q[None], q[None].tolist())
