"""Main loops of real kernels, and what an SM holds of them."""

from __future__ import annotations

import pytest

from cute_attn import Kernel, Problem, Variant, alibi, build, causal, choose, full, soft_cap
from cute_attn.api.kernel import build_generated, merge_of
from cute_attn.runtime.instruction_kinds import mix


def kernel(
    arch: str, variant: Variant, *, rows: int | None = None, page_size: int | None = 16
) -> Kernel:
    return build(choose(Problem(arch, "bf16", 128, 128, 4, variant, page_size), rows=rows))


CASES = [
    ("sm_90a", causal(), None, 16),
    ("sm_90a", full(), None, None),
    ("sm_90a", soft_cap(), None, 1),
    ("sm_90a", causal(), 4, 16),
    ("sm_80", causal(), None, 16),
    ("sm_80", causal() & alibi(8), None, None),
    ("sm_86", full(), 4, 16),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_kernel_has_one(case: tuple[str, Variant, int | None, int | None]) -> None:
    arch, variant, rows, page_size = case
    found = kernel(arch, variant, rows=rows, page_size=page_size)
    code = found.machine_code
    main = code.main_loop
    assert main is not None and main in code.main_loops
    assert "other" not in mix(code.instructions), "an instruction that no kind knows"
    assert not main.spills
    assert len(main.usual) == sum(main.mix.values()) == sum(main.opcodes.values())
    assert set(main.usual) <= set(main.loop.instructions)
    assert found.spec is not None
    assert found.occupancy.blocks >= found.spec.tile.blocks_per_sm
    assert found.occupancy.blocks == found.generated.blocks_per_sm
    assert found.bytes_in_flight is not None and found.bytes_in_flight % 4096 == 0


def test_a_pass_of_the_hopper_kernel() -> None:
    """128 keys: eight k-steps of QK and of PV; a thread has 64 scores, an exponential each."""
    main = kernel("sm_90a", full(), page_size=None).machine_code.main_loop
    assert main is not None
    assert main.opcodes["HGMMA"] == 16 and main.opcodes["MUFU"] == 64
    assert main.opcodes["FMNMX"] == 0, "the second pass is not usual"


def test_masks_have_loops_of_their_own() -> None:
    code = kernel("sm_80", causal()).machine_code
    assert len(code.main_loops) == 2
    main, masked = sorted(code.main_loops, key=lambda found: len(found.usual))
    assert main is code.main_loop
    assert main.mix["tensor"] == masked.mix["tensor"]
    assert masked.mix["integer"] > main.mix["integer"]


def test_decode_kernels_copy_in_their_loop() -> None:
    found = kernel("sm_90a", causal(), rows=4)
    main = found.machine_code.main_loop
    assert main is not None and main.mix["async copy"] == 16
    # As ampere/tiles.py counts them: 96 KB per SM.
    assert found.bytes_in_flight is not None
    assert found.bytes_in_flight * found.occupancy.blocks == 96 << 10


def test_a_merge_has_none() -> None:
    merge = build_generated(merge_of(choose(CASES_MERGE, rows=None)))
    assert merge.machine_code.main_loop is None and merge.bytes_in_flight is None
    assert merge.occupancy.blocks > 1


CASES_MERGE = Problem("sm_80", "bf16", 128, 128, 4, causal(), 16)
