"""Small steps that the tests of tuning measure, and the kernels that they compare."""

from __future__ import annotations

from cute_attn import KernelSpec, Tile, TuneStep
from cute_attn.api.tune_space import Contest, contests
from cute_attn.scheduler.constants import H200
from cute_attn.tuning import Candidate

PROMPTS = TuneStep("prompts", (256,) * 16, (256,) * 16, 8, 2, 128, page_size=16)
DECODES = TuneStep("decodes", (1,) * 16, (1024,) * 16, 8, 2, 128, page_size=16)
STEPS = (PROMPTS, DECODES)

BAD = Candidate("hopper_tile", Tile(64, 48, 2, 256, 1, 72, 240))
"""One consumer warpgroup and small blocks: half of the tensor cores' rate."""


def small_contests(arch: str, num_sms: int) -> list[Contest]:
    """The table's kernels and two others of each step."""
    return contests(STEPS, arch, num_sms, most=2)


def bad_contest(arch: str, num_sms: int) -> Contest:
    """With a bad kernel as the default; sm_90a alone has it."""
    (found,) = contests([PROMPTS], arch, num_sms, most=2, defaults={PROMPTS.name: BAD})
    return found


def kernels(arch: str) -> list[KernelSpec]:
    """All of them on a GPU with as many SMs as an H200."""
    found = small_contests(arch, H200.sms)
    if arch == "sm_90a":
        found.append(bad_contest(arch, H200.sms))
    return list(dict.fromkeys(spec for one in found for spec in one.specs.values()))
