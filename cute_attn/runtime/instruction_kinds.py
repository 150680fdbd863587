"""What kind of work an instruction is, and which unit executes those of single lanes.

The kinds are what an attention loop can be bound by: tensor cores, special functions, float32,
integers, memory, synchronisation, control (names as in NVIDIA's "CUDA Binary Utilities",
instruction set references).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from cute_attn.runtime.sass import Instruction

# (kind, unit or "", pattern of the whole opcode); the first match wins.
_KINDS: tuple[tuple[str, str, str], ...] = (
    ("tensor", "", r"HGMMA|QGMMA|IGMMA|BGMMA|HMMA|QMMA|IMMA|BMMA|DMMA"),
    ("mufu", "MUFU", r"MUFU"),
    ("async copy", "", r"LDGSTS|UTMA\w+|UBLKCP|UBLKPF|UBLKRED"),
    ("global", "LOAD", r"LDG|LD"),
    ("global", "", r"STG|ST|ATOMG?|REDG?|CCTLL?|CCTLT"),
    ("shared", "LOAD", r"LDS|LDSM"),
    ("shared", "", r"STS|STSM|ATOMS"),
    ("local", "LOAD", r"LDL"),
    ("local", "", r"STL"),
    ("constant", "", r"LDC|LDCU|ULDC"),
    ("sync", "", r"BAR|SYNCS|ARRIVES|WARPGROUP|WARPGROUPSET|DEPBAR|LDGDEPBAR|WARPSYNC|MEMBAR|FENCE"
                 r"|ERRBAR|CGAERRBAR|NANOSLEEP|ELECT|ACQBULK|PREEXIT|ENDCOLLECTIVE|USETMAXREG|B2R"
                 r"|UCGABAR_\w+"),
    ("convert", "MUFU", r"F2F|F2I|I2F|I2I|FRND"),
    ("convert", "INT", r"I2FP"),
    ("convert", "", r"U?F2FP|F2IP|I2IP"),
    ("half", "", r"HADD2|HFMA2|HMUL2|HMNMX2|HSET2|HSETP2"),
    ("fp32", "FP32", r"FADD2?|FMUL2?|FFMA2?|FMNMX3?|FSEL|FSETP?|FCHK|FSWZADD|FRED"),
    ("exchange", "", r"SHFL|VOTEU?|REDUX|MATCH"),
    ("move", "INT", r"SEL|PRMT"),
    ("move", "", r"U?MOV|IMAD\.MOV(?:\..*)?|CS2R|S2R|S2UR|R2UR|USEL|UPRMT|MOVM|U?P2R|R2P"),
    ("control", "", r"BRA|BRX|BRXU|JMP|JMX|EXIT|CALL|RET|BSSY|BSYNC|BREAK|BMOV|YIELD|NOP|BPT|KILL"
                    r"|RPCMOV"),
    ("integer", "INT", r"IADD3?|IMAD|IMUL|ISETP|LEA|LOP3|SHF|PLOP3|VIADD|VIADDMNMX|IABS|IMNMX"
                       r"|VIMNMX3?|BREV|FLO|POPC|BMSK|SGXT|ISCADD|LOP|SHL|SHR|IDP|VABSDIFF4?|XMAD"),
    ("integer", "", r"UIADD3?|UIMAD|UISETP|ULEA|ULOP3|USHF|UPLOP3|UVIMNMX3?|UIABS|UIMNMX|UBREV|UFLO"
                    r"|UPOPC|UBMSK|USGXT|LEPC|GETLMEMBASE"),
)  # fmt: skip
KINDS = (*dict.fromkeys(kind for kind, _, _ in _KINDS), "other")
"""In the order in which they are shown."""
UNITS = ("FP32", "MUFU", "INT", "LOAD")
"""FFMA and what is like it; special functions and the conversions that share their unit; integers,
selections and permutations; loads. Uniform instructions have none."""

_PATTERNS = [(kind, unit, re.compile(pattern)) for kind, unit, pattern in _KINDS]


def kind_of(instruction: Instruction) -> str:
    """One of `KINDS`."""
    return _found(instruction)[0]


def unit_of(instruction: Instruction) -> str:
    """One of `UNITS`, or ""."""
    return _found(instruction)[1]


def _found(instruction: Instruction) -> tuple[str, str]:
    for kind, unit, pattern in _PATTERNS:
        if pattern.fullmatch(instruction.name) or pattern.fullmatch(instruction.opcode):
            return kind, unit
    return "other", ""


def mix(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How many instructions of each kind there are; kinds without any are left out."""
    counts = Counter(map(kind_of, instructions))
    return {kind: counts[kind] for kind in KINDS if counts[kind]}
