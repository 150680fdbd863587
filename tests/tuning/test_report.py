"""`cute-attn tune --report`: the picture, and what tells winners from the tables' kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cute_attn.tuning import Database, files, landscape
from cute_attn.tuning.reasons import reasons

SHIPPED = Path(files.__file__).parent / "data" / "nvidia-h200-132-sms.json"


def test_reasons_are_differences_of_tiles() -> None:
    entries = {entry.step: entry for entry in files.read(SHIPPED).entries.values()}
    entry = entries["prefill d64 bf16 32/8 ragged causal 64 x 128"]
    assert entry.taken is not None
    wide = replace(entry.taken.candidate.tile, q=192, kv=128, threads=512, stages=2, q_stages=2)
    assert entry.taken.candidate.tile == replace(wide, q_in_registers=False)
    words = "; ".join(reasons(entry))
    # 512 rows in three tiles of 192: 576 of them. 64 requests x 8 heads x 3 tiles on 132 SMs.
    assert "rows computed, of those there are, 1.12, not 1.00" in words
    assert "query tiles per thread block 12.0, not 16.0" in words
    assert "keys per step" not in words  # the same
    assert f"{entry.measured[0].predicted_us / entry.taken.predicted_us:.2f} x" in words
    assert reasons(replace(entry, winner=None)) == []


def test_the_picture_has_every_step_and_marks_what_is_taken() -> None:
    pytest.importorskip("matplotlib")
    database = files.read(SHIPPED)
    (axes, _) = landscape.draw(database).axes
    steps = [label.get_text() for label in axes.get_yticklabels()]
    assert sorted(steps) == sorted(entry.step for entry in database.entries.values())
    taken = [text for text in axes.texts if text.get_text().endswith("taken")]
    assert len(taken) == sum(entry.winner is not None for entry in database.entries.values())
    at_one = [text for text in axes.texts if "\n1.000 ±" in text.get_text()]
    assert len(at_one) >= len(steps)  # the tables' kernels


def test_without_entries_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="no entries"):
        landscape.draw(Database("NVIDIA H200", 132, "sm_90a", {}))
