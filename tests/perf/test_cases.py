"""Benchmark cases: lengths, work and kernels."""

from __future__ import annotations

import itertools

import pytest

from perf import cases
from perf.cases import Case


def test_lengths() -> None:
    assert cases.lengths("c1024", 3) == [1024] * 3
    uniform = cases.lengths("u512-1024", 1000)
    assert 512 <= min(uniform) < 530 and 1010 < max(uniform) <= 1024
    zipf = cases.lengths("z2048", 16)
    assert sum(zipf) == 16 * 2048
    assert zipf == sorted(zipf, reverse=True)
    assert zipf[0] == pytest.approx(4 * zipf[3], rel=0.01)
    with pytest.raises(ValueError, match="kind"):
        cases.lengths("n5", 2)


def test_lengths_are_those_of_the_recorded_peers() -> None:
    """Totals that follow from the peers' GB/s and TFLOP/s."""
    assert sum(cases.lengths("u1-8192", 16)) == 72189
    assert sum(cases.lengths("u1-8192", 256)) == pytest.approx(996033, abs=20)
    squares = sum(n * (n + 1) for n in cases.lengths("z1024", 16))
    assert squares == pytest.approx(37.22e6, rel=1e-3)
    squares = sum(n * (n + 1) for n in cases.lengths("u512-1024", 16))
    assert squares == pytest.approx(10.389e6, rel=1e-3)


@pytest.mark.parametrize("is_causal", [True, False])
def test_flops_count_visible_pairs(is_causal: bool) -> None:
    shapes = [(1, 1), (5, 9), (9, 5), (3, 0), (0, 4), (7, 7)]
    case = Case(
        "A", "", tuple(q for q, _ in shapes), tuple(kv for _, kv in shapes), 4, 2, 8, 16, is_causal
    )
    pairs = sum(
        not is_causal or j <= i + kv - q
        for q, kv in shapes
        for i, j in itertools.product(range(q), range(kv))
    )
    assert case.flops == 4 * 8 * 4 * pairs


def every_case() -> list[Case]:
    return [*cases.prefill_dense(), *cases.prefill_paged(), *cases.decode(), *cases.steps()]


def test_names() -> None:
    names = {(case.sec, case.cfg) for case in every_case()}
    assert len(names) == len(every_case()) == 36 + 9 + 102 + 16
    for known in (
        ("A", "d128 full   s512"),
        ("A", "d64 causal s16384"),
        ("B", "b16 u512-1024 p1"),
        ("C", "32/8 p16 c8192 b64"),
        ("C", "32/8 d256 p16 c8192 b64"),
        ("T", "mooncake-800"),
    ):
        assert known in names


def test_dense_prefill_has_the_same_tokens_everywhere() -> None:
    for case in cases.prefill_dense():
        assert sum(case.q_lens) == cases.PREFILL_TOKENS
        assert case.num_qo_heads * case.head_dim == 2048


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_every_case_has_a_kernel(arch: str) -> None:
    specs = {case.spec(arch).name for case in every_case()}
    assert specs <= {spec.name for spec in cases.all_specs(arch)}
    assert len(specs) < 25
