"""Machine code taken apart: instructions, loops in the flow of control, kinds of work."""

from __future__ import annotations

import pytest

from cute_attn.runtime.instruction_kinds import KINDS, kind_of, mix, unit_of
from cute_attn.runtime.sass import Loop, loops, parse

# An outer loop from .L_x_1 with an inner one from .L_x_2, whose seldom taken part stands behind
# both, at .L_x_5, and branches back into it; and a loop that waits, at .L_x_3.
TEXT = """
	.section	.text.kernel,"ax",@progbits
kernel:
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   S2R R0, SR_TID.X ;
.L_x_2:
        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0030*/                   MUFU.EX2 R3, R3 ;
        /*0040*/              @!P0 BRA `(.L_x_5) ;
        /*0050*/                   FADD.FTZ R3, R3, R4 ;
.L_x_4:
        /*0060*/               @P1 BRA `(.L_x_2) ;
.L_x_3:
        /*0070*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2 ;
        /*0080*/              @!P0 BRA `(.L_x_3) ;
        /*0090*/               @P2 BRA `(.L_x_1) ;
        /*00a0*/                   EXIT ;
.L_x_5:
        /*00b0*/                   FMNMX.FTZ R3, R3, R5, !PT ;
        /*00c0*/                   FMNMX.FTZ R3, R3, R6, !PT ;
        /*00d0*/                   BRA `(.L_x_4) ;
.L_x_6:
        /*00e0*/                   BRA `(.L_x_6) ;
        /*00f0*/                   NOP ;
"""


def by_first(found: list[Loop]) -> dict[int, Loop]:
    return {loop.first.address: loop for loop in found}


def test_instructions() -> None:
    instructions, labels = parse(TEXT)
    assert len(instructions) == 16 and labels[".L_x_2"] == 2
    product = instructions[2]
    assert (product.name, product.modifiers) == ("HGMMA", ".64x128x16.F32.BF16")
    assert TEXT.splitlines()[product.line].endswith("gdesc[UR4], R24 ;")
    branch = instructions[4]
    assert (branch.predicate, branch.target) == ("!P0", ".L_x_5")
    assert branch.falls_through and not instructions[-2].falls_through


def test_loops_are_found_in_the_flow_of_control() -> None:
    found = by_first(loops(TEXT))
    assert set(found) == {0x10, 0x20, 0x70}, "what cannot be reached is no loop"
    outer, inner, wait = found[0x10], found[0x20], found[0x70]
    assert outer.contains(inner) and outer.contains(wait) and not inner.contains(wait)
    assert [one.address for one in inner.instructions] == [
        0x20, 0x30, 0x40, 0x50, 0x60, 0xB0, 0xC0, 0xD0
    ]  # fmt: skip
    assert len(wait.instructions) == 2


def test_the_heaviest_pass() -> None:
    inner = by_first(loops(TEXT))[0x20]
    shortest = inner.heaviest_pass(lambda one: (-1,))
    assert [one.address for one in shortest] == [0x20, 0x30, 0x40, 0x50, 0x60]
    searching = inner.heaviest_pass(lambda one: (int(one.name == "FMNMX"), -1))
    assert [one.address for one in searching] == [0x20, 0x30, 0x40, 0xB0, 0xC0, 0xD0, 0x60]
    outer = by_first(loops(TEXT))[0x10].heaviest_pass(lambda one: (-1,))
    assert [one.name for one in outer].count("HGMMA") == 1, "an inner loop is passed once"


def test_no_code_has_no_loops() -> None:
    assert loops("") == [] == loops(".text.kernel:\n")


def test_kinds() -> None:
    instructions = parse(TEXT)[0]
    assert mix(instructions) == {
        "tensor": 1, "mufu": 1, "constant": 1, "sync": 1, "fp32": 3, "move": 1, "control": 8
    }  # fmt: skip

    def kind(text: str) -> str:
        return kind_of(parse(f"        /*0000*/                   {text} ;")[0][0])

    assert kind("IMAD.MOV.U32 R1, RZ, RZ, R2") == "move"
    assert kind("IMAD.WIDE R1, R2, R3, R4") == "integer"
    assert kind("LDSM.16.M88.4 R1, [R2]") == "shared"
    assert kind("LDGSTS.E.BYPASS.128 [R1], [R2.64]") == "async copy"
    assert kind("LDL R1, [R2]") == "local"
    assert kind("FLY.AWAY R1") == "other" == KINDS[-1]


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("FFMA.FTZ R1, R2, R3, R4", "FP32"),
        ("MUFU.EX2 R1, R2", "MUFU"),
        ("I2F.S64 R1, R2", "MUFU"),
        ("I2FP.F32.S32 R1, R2", "INT"),
        ("PRMT R1, R2, 0x1, R3", "INT"),
        ("UPRMT UR1, UR2, 0x1, UR3", ""),
        ("IMAD.WIDE R1, R2, R3, R4", "INT"),
        ("IMAD.MOV.U32 R1, RZ, RZ, R2", ""),
        ("UIADD3 UR1, UR2, UR3, URZ", ""),
        ("LDG.E R1, [R2.64]", "LOAD"),
        ("STG.E [R2.64], R1", ""),
    ],
)
def test_units(text: str, unit: str) -> None:
    (instruction,) = parse(f"        /*0000*/                   {text} ;")[0]
    assert unit_of(instruction) == unit
