"""What kind of work an instruction is: tensor cores, special functions, float32, integers, memory,
synchronisation, control.

The kinds are the pipes and units that an attention loop can be bound by (names as in NVIDIA's
"CUDA Binary Utilities", instruction set references).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from cute_attn.runtime.sass import Instruction

# First match wins; of the whole opcode.
_KINDS: tuple[tuple[str, str], ...] = (
    ("tensor", r"HGMMA|QGMMA|IGMMA|BGMMA|HMMA|QMMA|IMMA|BMMA|DMMA"),
    ("mufu", r"MUFU"),
    ("async copy", r"LDGSTS|UTMA\w+|UBLKCP|UBLKPF|UBLKRED"),
    ("global", r"LDG|STG|LD|ST|ATOMG?|REDG?|CCTLL?|CCTLT"),
    ("shared", r"LDS|LDSM|STS|STSM|ATOMS"),
    ("local", r"LDL|STL"),
    ("constant", r"LDC|LDCU|ULDC"),
    ("sync", r"BAR|SYNCS|ARRIVES|WARPGROUP|WARPGROUPSET|DEPBAR|LDGDEPBAR|WARPSYNC|MEMBAR|FENCE"
             r"|ERRBAR|CGAERRBAR|NANOSLEEP|ELECT|ACQBULK|PREEXIT|ENDCOLLECTIVE|USETMAXREG|B2R"
             r"|UCGABAR_\w+"),
    ("convert", r"F2F|F2FP|F2I|F2IP|I2F|I2FP|I2I|I2IP|FRND|UF2FP"),
    ("half", r"HADD2|HFMA2|HMUL2|HMNMX2|HSET2|HSETP2"),
    ("fp32", r"FADD2?|FMUL2?|FFMA2?|FMNMX3?|FSEL|FSETP?|FCHK|FSWZADD|FRED"),
    ("exchange", r"SHFL|VOTEU?|REDUX|MATCH"),
    ("move", r"U?MOV|IMAD\.MOV(?:\..*)?|CS2R|S2R|S2UR|R2UR|U?SEL|U?PRMT|MOVM|U?P2R|R2P"),
    ("control", r"BRA|BRX|BRXU|JMP|JMX|EXIT|CALL|RET|BSSY|BSYNC|BREAK|BMOV|YIELD|NOP|BPT|KILL"
                r"|RPCMOV"),
    ("integer", r"U?IADD3?|U?IMAD|U?ISETP|U?LEA|U?LOP3|U?SHF|U?PLOP3|VIADD|VIADDMNMX|U?IABS|U?IMNMX"
                r"|U?VIMNMX3?|U?BREV|U?FLO|U?POPC|U?BMSK|U?SGXT|ISCADD|LOP|SHL|SHR|IDP|VABSDIFF4?"
                r"|UIADD3|LEPC|GETLMEMBASE|XMAD"),
)  # fmt: skip
KINDS = (*(kind for kind, _ in _KINDS), "other")
"""In the order in which they are shown."""

_PATTERNS = [(kind, re.compile(pattern)) for kind, pattern in _KINDS]


def kind_of(instruction: Instruction) -> str:
    """One of `KINDS`."""
    for kind, pattern in _PATTERNS:
        if pattern.fullmatch(instruction.name) or pattern.fullmatch(instruction.opcode):
            return kind
    return "other"


def mix(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How many instructions of each kind there are; kinds without any are left out."""
    counts = Counter(map(kind_of, instructions))
    return {kind: counts[kind] for kind in KINDS if counts[kind]}
