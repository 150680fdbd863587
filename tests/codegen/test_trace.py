"""Kernels that keep time: what is added to their source and machine code, and that others have none
of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cute_attn import Problem, Variant, build, causal, choose, full, prefix_lm, supports
from cute_attn.api.dispatch import emit
from cute_attn.codegen.spec import KernelSpec

Case = tuple[str, int, int, Variant, int | None, int | None, str | None]

# arch, head dims, variant, page size, rows, schedule: every way in which an item ends
CASES: list[Case] = [
    ("sm_90a", 128, 128, causal(), 16, None, None),
    ("sm_90a", 128, 128, causal(), 1, None, None),
    ("sm_90a", 256, 256, full(), None, None, None),
    ("sm_90a", 192, 128, full(), None, None, None),
    ("sm_90a", 128, 128, prefix_lm(), 16, None, None),
    ("sm_90a", 128, 128, causal(), 16, 4, None),
    ("sm_80", 128, 128, causal(), 16, None, None),
    ("sm_80", 64, 64, prefix_lm(), None, None, None),
    ("sm_90a", 64, 64, prefix_lm(), 16, 8, None),
]


def spec_of(case: Case) -> KernelSpec:
    arch, qk, vo, variant, page_size, rows, schedule = case
    problem = Problem(arch, "bf16", qk, vo, 4, variant, page_size)
    return choose(problem, rows=rows, schedule=schedule)


def name(case: Case) -> str:
    return spec_of(case).name.rsplit("_", 1)[0]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_other_kernels_have_none_of_it(case: Case) -> None:
    spec = spec_of(case)
    plain, traced = emit(spec), emit(replace(spec, trace=True))
    assert not any(word in plain.text for word in OWN)
    assert not any(field.startswith("trace") for field in plain.params.offsets)
    assert {"trace_words", "trace_items"} <= traced.params.offsets.keys()
    assert traced.name == plain.name.replace(f"_{spec.arch}_", f"_trace_{spec.arch}_")
    assert others(traced.text.replace("_trace_sm", "_sm")) == others(plain.text)


OWN = ("Tracer", "trace_words", "trace_items", "trace.hpp", "as the first")
OFFSETS = ("AT(", "sizeof(Params)")  # asserted; they move


def others(text: str) -> list[str]:
    """Words of code that is not about time."""
    lines = (line for line in text.split("\n") if not any(word in line for word in OWN + OFFSETS))
    return " ".join(line.split("//")[0] for line in lines).replace("(", " ( ").split()


@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_event_is_noted(case: Case) -> None:
    spec = spec_of(case)
    text = emit(replace(spec, trace=True)).text
    for word in ("kTraceBegin", "kTraceKeys", "kTraceProducts", "kTraceWritten"):
        assert word in text
    assert ("kTraceMerged" in text) == (spec.schedule == "ampere_decode")
    assert ("kTraceMergeEnd" in text) == (spec.schedule == "hopper_tile")
    for call in ("Tracer::begin(", "Tracer::end(", "Tracer::name("):
        assert call in text


@pytest.mark.parametrize("case", CASES[:1] + CASES[2:3] + CASES[5:7], ids=name)
def test_machine_code(case: Case) -> None:
    spec = spec_of(case)
    traced, plain = build(replace(spec, trace=True)), build(spec)
    assert traced.lint() == plain.lint() == []
    assert traced.sass.count("SR_CLOCKLO") >= plain.sass.count("SR_CLOCKLO") + 6  # waits look, too
    assert "SR_GLOBALTIMER" in traced.sass and "SR_GLOBALTIMER" not in plain.sass
    loops = traced.machine_code.main_loop, plain.machine_code.main_loop
    assert loops[0] is not None and loops[1] is not None
    assert loops[0].mix["tensor"] == loops[1].mix["tensor"]
    stores = [found.mix.get("global", 0) for found in loops]
    assert stores[0] == stores[1], "nothing is noted in the main loop"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name)
def test_all_compile_clean(case: Case) -> None:
    assert build(replace(spec_of(case), trace=True)).lint() == []


def test_schedules_of_users_keep_no_time() -> None:
    spec = replace(spec_of(CASES[0]), schedule="mine", trace=True)
    assert any("trace is True; 'mine' has none" in reason for reason in spec.basic_reasons())
    assert supports(replace(spec, schedule="hopper_tile")) == []
