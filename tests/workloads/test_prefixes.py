"""The shipped prompts are what their README says they are."""

from __future__ import annotations

from cute_attn.workloads import BLOCK_TOKENS, load_prefixes


def test_batches_of_64_requests() -> None:
    batches = load_prefixes()
    assert [batch.name for batch in batches] == ["mooncake-0", "mooncake-4000", "mooncake-8000"]
    for batch in batches:
        assert len(batch.lengths) == len(batch.blocks) == 64
        for length, blocks in zip(batch.lengths, batch.blocks, strict=True):
            assert len(blocks) == -(-length // BLOCK_TOKENS)


def test_equal_blocks_are_behind_equal_ones() -> None:
    for batch in load_prefixes():
        before: dict[int, tuple[int, ...]] = {}
        for blocks in batch.blocks:
            for i, block in enumerate(blocks):
                assert before.setdefault(block, blocks[:i]) == blocks[:i]
        assert len(before) < sum(map(len, batch.blocks))
