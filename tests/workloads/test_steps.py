"""The shipped steps are what their README says they are."""

from __future__ import annotations

from cute_attn.workloads import load_steps

# Budget of new tokens and running requests of each trace's engine.
ENGINES = {"azure-chat": (2048, 128), "azure-code": (4096, 64), "mooncake": (2048, 48)}


def test_sixteen_steps_with_unique_names() -> None:
    steps = load_steps()
    assert len(steps) == 16
    assert len({step.name for step in steps}) == 16


def test_steps_obey_their_engine() -> None:
    for step in load_steps():
        trace, _, number = step.name.rpartition("-")
        budget, slots = ENGINES[trace]
        assert int(number) > 0
        assert 0 < len(step.requests) <= slots
        assert 0 < sum(step.q_lens) <= budget
        assert all(0 < q <= kv for q, kv in step.requests)


def test_fourteen_steps_mix_prefill_and_decode() -> None:
    kinds = [(step.prefill_rows > 0, 1 in step.q_lens) for step in load_steps()]
    assert kinds.count((True, True)) == 14
    assert kinds.count((False, True)) == 2


def test_known_totals() -> None:
    steps = {step.name: step for step in load_steps()}
    assert steps["azure-chat-900"].prefill_rows == 91
    assert steps["azure-code-300"].prefill_rows == 4047
    assert len(steps["mooncake-3800"].requests) == 48
    # KV of 8 heads of 128 in bf16: 3.59 GB.
    assert round(sum(steps["mooncake-3800"].kv_lens) * 8 * 128 * 2 * 2 / 1e9, 2) == 3.59
