"""Why a kernel won: what its tile makes of the step, beside what the table's does."""

from __future__ import annotations

from cute_attn.ampere.tiles import bytes_in_flight as ampere_bytes
from cute_attn.hopper.tiles import bytes_in_flight as hopper_bytes
from cute_attn.tuning.candidate import Candidate
from cute_attn.tuning.database import Entry
from cute_attn.tuning.kernel_class import KernelClass
from cute_attn.tuning.step import rows_per_sm


def reasons(entry: Entry) -> list[str]:
    """What tells the winner from the default: numbers of both, the winner's first, in words.

    Every number follows from tile and lengths, none is a guess at causes; what weighed most is the
    reader's to see. Empty if the default stays.
    """
    if entry.taken is None:
        return []
    default, taken = entry.measured[0], entry.taken
    pairs = [(name, *(text(entry, m.candidate) for m in (taken, default))) for name, text in _FACTS]
    words = [f"{name} {won}, not {lost}" for name, won, lost in pairs if won != lost]
    predicted = default.predicted_us / taken.predicted_us
    words.append(f"the cost model had expected {predicted:.2f} x")
    return words


def _tiles(entry: Entry, candidate: Candidate) -> str:
    """Query tiles per thread block that can run at once, of all SMs."""
    computed = rows_per_sm(entry.key) * entry.computed_share(candidate)
    return f"{computed / candidate.tile.q / candidate.tile.blocks_per_sm:.1f}"


def _computed(entry: Entry, candidate: Candidate) -> str:
    return f"{entry.computed_share(candidate):.2f}"


def _keys(_: Entry, candidate: Candidate) -> str:
    return str(candidate.tile.kv)


def _warps(_: Entry, candidate: Candidate) -> str:
    tile = candidate.tile
    blocks = f"{tile.blocks_per_sm} thread block{'s' if tile.blocks_per_sm > 1 else ''}"
    return f"{tile.threads * tile.blocks_per_sm // 32} ({blocks})"


def _queries(_: Entry, candidate: Candidate) -> str:
    tile = candidate.tile
    if tile.q_in_registers:
        return "in registers"
    return "in two tiles" if tile.q_stages > 1 else "in one tile"


def _ahead(entry: Entry, candidate: Candidate) -> str:
    found = candidate.tile.blocks_per_sm * _bytes_in_flight(entry.kernel_class, candidate)
    return f"{found / 1024:.0f} KB"


def _bytes_in_flight(of_kernel: KernelClass, candidate: Candidate) -> int:
    dims = of_kernel.head_dim_qk, of_kernel.head_dim_vo
    if candidate.schedule == "hopper_tile":
        return hopper_bytes(candidate.tile, *dims)
    return ampere_bytes(candidate.schedule, candidate.tile, dims[0])


def _family(_: Entry, candidate: Candidate) -> str:
    return candidate.schedule


def _compiler(entry: Entry, candidate: Candidate) -> str:
    return candidate.toolchain or str(entry.made.get("toolchain", "the default"))


_FACTS = (
    ("kernel", _family),
    ("compiler", _compiler),
    ("query tiles per thread block", _tiles),
    ("rows computed, of those there are,", _computed),
    ("keys per step", _keys),
    ("queries", _queries),
    ("warps per SM", _warps),
    ("K and V on their way per SM", _ahead),
)
