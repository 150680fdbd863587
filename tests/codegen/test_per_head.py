"""Kernels for plans in which every KV head has its own record: they differ from others in how items
are found, and in nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cute_attn import Problem, Variant, build, causal, choose, full, prefix_lm, supports
from cute_attn.api.dispatch import emit
from cute_attn.api.kernel import build_generated, launched_with, merge_of
from cute_attn.codegen.spec import KernelSpec

Case = tuple[str, int, Variant, int, int | None, str | None]

# arch, head_dim, variant, page size, rows, schedule: every emitter and loader
CASES: list[Case] = [
    ("sm_90a", 128, causal(), 16, None, None),
    ("sm_90a", 128, full(), 1, None, None),
    ("sm_90a", 256, full(), 16, None, None),
    ("sm_90a", 128, prefix_lm(), 16, None, None),
    ("sm_90a", 128, full(), 16, 4, None),
    ("sm_80", 128, causal(), 16, None, None),
    ("sm_80", 64, full(), 16, 8, None),
]


def spec_of(case: Case) -> KernelSpec:
    arch, dim, variant, page_size, rows, schedule = case
    problem = Problem(arch, "bf16", dim, dim, 4, variant, page_size, per_head=True)
    return choose(problem, rows=rows, schedule=schedule)


def name(case: Case) -> str:
    return spec_of(case).name.rsplit("_", 1)[0]


def code(text: str) -> list[str]:
    """Words, without comments and includes."""
    lines = (line.split("//")[0] for line in text.split("\n") if not line.startswith("#include"))
    return " ".join(lines).replace("(", " ( ").split()


@pytest.mark.parametrize("case", CASES, ids=name)
def test_only_the_walker_is_another_one(case: Case) -> None:
    spec = spec_of(case)
    own, plain = emit(spec), emit(replace(spec, per_head=False))
    assert own.name == plain.name.replace(f"_{spec.arch}_", f"_per_head_{spec.arch}_")
    assert own.params.offsets == plain.params.offsets
    walked = own.text.replace("_per_head_sm", "_sm")
    assert code(walked) != code(plain.text)
    walked = walked.replace(", HeadWalker", "").replace("HeadWalker", "WorkWalker")
    assert code(walked) == code(plain.text)
    assert "head_walker.hpp" in own.text and "head_walker.hpp" not in plain.text


def test_the_merge_that_follows_knows_the_heads() -> None:
    spec = spec_of(CASES[5])
    own, plain = merge_of(spec), merge_of(replace(spec, per_head=False))
    assert launched_with(spec) == [own]
    assert own.name != plain.name and "per_head" in own.name
    assert "take_kv_head(request, params.num_kv_heads)" in own.text
    assert "take_kv_head" not in plain.text
    assert build_generated(own).lint() == []


@pytest.mark.parametrize("case", CASES[:2] + CASES[4:6], ids=name)
def test_registers_are_the_same(case: Case) -> None:
    spec = spec_of(case)
    own, plain = build(spec), build(replace(spec, per_head=False))
    assert own.lint() == plain.lint() == []
    assert own.resources.registers <= plain.resources.registers + 8
    assert own.occupancy.blocks == plain.occupancy.blocks


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name)
def test_all_compile_clean(case: Case) -> None:
    spec = spec_of(case)
    assert build(spec).lint() == []
    assert build(replace(spec, trace=True)).lint() == []


def test_what_has_none() -> None:
    spec = spec_of(CASES[4])
    assert supports(spec) == []
    both = replace(spec, fixed_pieces=True)
    assert any("per_head and fixed_pieces are True" in reason for reason in supports(both))
    mine = replace(spec, schedule="mine").basic_reasons()
    assert any("per_head is True; 'mine' takes one table per request" in x for x in mine)
