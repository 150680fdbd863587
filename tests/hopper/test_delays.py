"""Where the delays of a debugging kernel go, and that the kernel is otherwise the plain one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cute_attn import build, choose
from cute_attn.api.dispatch import Problem, emit
from cute_attn.codegen.spec import KernelSpec
from cute_attn.hopper.delays import INCLUDE, POINTS, expand, with_delays
from cute_attn.runtime import count_opcodes
from cute_attn.variants import Variant, causal, full, rope

DELAY = re.compile(r" *random_delay\(\d+\);\n")


def spec(
    page_size: int | None,
    group: int = 4,
    head_dim: int = 128,
    variant: Variant | None = None,
) -> KernelSpec:
    variant = variant or causal()
    problem = Problem("sm_90a", "bf16", head_dim, head_dim, group, variant, page_size)
    return choose(problem, rows=None)


SPECS = [spec(*case) for case in ((None,), (None, 3), (16,), (3,), (3, 3), (3, 4, 256))]
SPECS += [spec(16, variant=causal() & rope()), spec(3, variant=rope())]
SPECS += [
    choose(Problem("sm_90a", "bf16", 576, 512, group, causal(), page_size), rows=None)
    for group, page_size in ((128, 64), (12, 1))
]


@pytest.mark.parametrize("plain", SPECS, ids=lambda s: s.name)
def test_without_its_delays_it_is_the_plain_kernel(plain: KernelSpec) -> None:
    delayed = replace(plain, delays=True)
    text = emit(delayed).text
    assert len(DELAY.findall(text)) >= 30 and text.count(INCLUDE) == 1
    assert "random_delay" not in emit(plain).text
    without = DELAY.sub("", text).replace(INCLUDE, "")
    assert without.replace(delayed.name, plain.name) == expand(emit(plain).text)


def test_every_delay_has_a_place_of_its_own() -> None:
    places = re.findall(r"random_delay\((\d+)\);", emit(replace(SPECS[0], delays=True)).text)
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("point", POINTS)
def test_every_point_occurs(point: str) -> None:
    """A template that words it otherwise would lose the delay without a sign."""
    delayed = re.compile(rf"random_delay\(\d+\);\n +(?:if \(.*\) )?(?:{POINTS[point]})")
    assert any(delayed.search(emit(replace(s, delays=True)).text) for s in SPECS)


@pytest.mark.parametrize("plain", SPECS, ids=lambda s: s.name)
def test_everything_that_orders_warps_is_delayed(plain: KernelSpec) -> None:
    """Every wait, arrival, fence, product and bulk copy of the source, found by its name alone."""
    text = emit(replace(plain, delays=True)).text
    words = r"\.wait\(|\.arrive(?:_and_expect_tx)?\(|arrive_when_copied\(smem|NamedBarrier::sync\("
    words += r"|fence_view_async_shared\(|threadfence\(|issue_(?:qk|pv)<|warpgroup_wait<|TMA_LOAD_"
    words += r"|sync_of<\w+(?:, \d+)?>\(|arrive_of<\w+>\(|barrier_sync\(k|issue_shared_pv<"
    lines = text.split("\n")
    found = [i for i, line in enumerate(lines) if re.search(words, line.partition("//")[0])]
    assert len(found) >= 20
    assert [lines[i] for i in found if "random_delay" not in lines[i - 1]] == []


def test_statements_stay_whole() -> None:
    """No delay between a condition or a loop's head and its body, nor inside of an expression."""
    text = "\n".join(
        (
            "#include <cute_attn/hopper/ring.hpp>",
            "void f() {",
            "  if (a)",
            "    full.wait(0);",
            "  bool const landed =",
            "      full.wait(1);",
            "  full.wait(2);  // waits",
            "  // full.wait(3);",
            "  if (!landed) full.wait(4);",
            "}",
        )
    )
    delayed = re.findall(r"random_delay\(\d+\);\n +(.*)", with_delays(text))
    assert delayed == ["full.wait(2);  // waits", "if (!landed) full.wait(4);"]


def test_products_still_overlap_and_the_arithmetic_is_the_same() -> None:
    """A delay between issue and wait must not make the assembler serialise the products; and other
    contractions of multiplications and additions would be other bits."""
    plain = replace(spec(None), variant=full())
    kernel = build(replace(plain, delays=True))
    assert kernel.resources.performance_warnings == ()
    with_them, without = count_opcodes(kernel.sass), count_opcodes(build(plain).sass)
    assert with_them["NANOSLEEP"] >= without["NANOSLEEP"] + 30  # barrier loops have some, too
    for name in ("HGMMA", "FFMA", "FADD", "FMNMX", "MUFU"):
        assert with_them[name] == without[name], name
    # Rows are scaled and packed, two by two, in one place for both kinds of output or in two.
    more = {name: with_them[name] - without[name] for name in ("FMUL", "F2FP")}
    assert more["FMUL"] == 2 * more["F2FP"] >= 0
