"""The benchmark cases: names, lengths, work and kernels, without a GPU.

Sections and names are those of the peers' records (perf/peers/h200.jsonl), so that rows join;
sections of our own say so in perf/README.md.
"""

from __future__ import annotations

from collections.abc import Collection

from cute_attn import KernelSpec, Problem, UnsupportedSpecError
from perf.cases.case import Case, lengths
from perf.cases.prefill import PREFILL_TOKENS, prefill, prefill_dense, prefill_paged
from perf.cases.serving import decode, few_tokens, latent, mixed, steps

__all__ = [
    "PREFILL_TOKENS",
    "Case",
    "all_cases",
    "all_problems",
    "all_specs",
    "decode",
    "few_tokens",
    "latent",
    "lengths",
    "mixed",
    "prefill",
    "prefill_dense",
    "prefill_paged",
    "steps",
]


_INVARIANT_SECTIONS = ("C", "Q", "T", "X")


def all_cases() -> list[Case]:
    """Cases of all benchmarks."""
    return [*prefill(), *decode(), *few_tokens(), *latent(), *steps(), *mixed()]


def all_specs(arch: str, sections: Collection[str] = ()) -> list[KernelSpec]:
    """Attention kernels of all benchmarks, or of some sections; none twice.

    Section A also with the Ampere-style tile kernel (bench_prefill --schedule), decode and steps
    also with the kernels of --batch-invariant. Cases that have no kernel on `arch` are left out.
    """
    wanted = [case for case in all_cases() if not sections or case.sec in sections]
    pairs: list[tuple[Case, str | None]] = [(case, None) for case in wanted]
    pairs += [(case, "ampere_tile") for case in wanted if case.sec == "A"]
    specs: dict[str, KernelSpec] = {}
    for case, schedule in pairs:
        try:
            spec = case.spec(arch, schedule)
        except UnsupportedSpecError:
            continue
        specs.setdefault(spec.name, spec)
        if case.sec in _INVARIANT_SECTIONS:
            specs |= {spec.name: spec for spec in case.invariant_specs(arch)}
    return list(specs.values())


def all_problems(arch: str, sections: Collection[str] = ()) -> list[Problem]:
    """What the kernels of all benchmarks, or of some sections, are chosen by; none twice."""
    wanted = [case for case in all_cases() if not sections or case.sec in sections]
    return list(dict.fromkeys(case.problem(arch) for case in wanted))
