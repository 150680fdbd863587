"""From a step to the kernel that a database has for it."""

from __future__ import annotations

from collections import defaultdict

from cute_attn.tuning.database import Database, Entry
from cute_attn.tuning.kernel_class import KernelClass
from cute_attn.tuning.step import StepKey


class TunedTable:
    """Entries by class of kernels, and by step: the nearest one that has something to say.

    Steps between those that were measured take the entry of the nearest one, no more than a factor
    of two away in rows, keys and load each.
    """

    def __init__(self, database: Database) -> None:
        self._entries: dict[KernelClass, list[Entry]] = defaultdict(list)
        for (of_kernel, _), entry in sorted(database.entries.items(), key=lambda item: item[0]):
            self._entries[of_kernel].append(entry)
        self._nearest: dict[tuple[KernelClass, StepKey], Entry | None] = {}

    def __contains__(self, kernel_class: KernelClass) -> bool:
        """Whether some step takes another kernel of a class than the default."""
        return bool(self.offering(kernel_class))

    def offering(self, kernel_class: KernelClass) -> list[Entry]:
        """Entries of a class of which some step takes another kernel than the default."""
        return [entry for entry in self._entries.get(kernel_class, ()) if entry.offers]

    def nearest(self, kernel_class: KernelClass, key: StepKey) -> Entry | None:
        """The entry for a step; None: there is none."""
        place = (kernel_class, key)
        if place not in self._nearest:
            self._nearest[place] = self._find(kernel_class, key)
        return self._nearest[place]

    def _find(self, kernel_class: KernelClass, key: StepKey) -> Entry | None:
        best: tuple[float, Entry] | None = None
        for entry in self._entries.get(kernel_class, ()):
            distance = key.distance(entry.key)
            if distance is not None and (best is None or distance < best[0]):
                best = distance, entry
        return None if best is None else best[1]
