"""What captured graphs hold on to: a step that a replay would read past is refused.

A graph that plans for itself (`plan_on_device` was captured too) depends on no later plan.
"""

from __future__ import annotations

from cute_attn.api.parameters import Parameters
from cute_attn.api.shape import refuse_kv
from cute_attn.api.step import AnyStep
from cute_attn.variants import Variant


class Captured:
    """Tensors that captured runs read and write.

    Args:
        variant: its scalars that are not live are part of what a graph keeps.

    Attributes:
        plans_itself: the plan of the next captured runs was captured too.
    """

    def __init__(self, variant: Variant) -> None:
        self.plans_itself = False
        self._frozen = tuple(s.name for s in variant.scalars if not s.live)
        self._rows: int | None = None  # query rows, the fewest
        self._kv: int | None = None  # KV rows or pages, the fewest
        self._table: int | None = None  # address of the page table
        self._scalars: list[dict[str, float | int]] = []  # of steps, live ones not among them
        self._band: tuple[int, int] | None = None  # of plans that are in graphs
        self._parameters: list[Parameters] = []  # graphs read their tensors

    def note(self, step: AnyStep, rows: int, kv: int, table: int, parameters: Parameters) -> None:
        """A run is being captured.

        Args:
            step: what it runs.
            rows: of its queries.
            kv: rows or pages of its KV.
            table: address of its page table.
            parameters: of the variant.
        """
        if parameters.tensors and all(p is not parameters for p in self._parameters):
            self._parameters.append(parameters)
        if self.plans_itself:
            return
        self._rows = rows if self._rows is None else min(rows, self._rows)
        self._kv = kv if self._kv is None else min(kv, self._kv)
        self._table = table
        scalars = self._kept(step)
        if scalars not in self._scalars:
            self._scalars.append(scalars)

    def note_plan(self, band: tuple[int, int] | None) -> None:
        """A plan on the device is being captured; `band`: of its step, if live scalars decide it
        for the kernels of the graph."""
        self.plans_itself, self._band = True, band

    def check(self, step: AnyStep) -> None:
        """Raises ValueError for a step that does not fit in the tensors, or has other scalars than
        any captured run."""
        if self._rows is not None and step.q_rows > self._rows:
            raise ValueError(
                f"qo_indptr[-1] is {step.q_rows}, but q had {self._rows} rows when a graph was"
                " captured; capture with as many rows as any step will have"
            )
        if self._kv is not None:
            refuse_kv(step, self._kv)
        self._check_scalars(self._kept(step), step.band)

    def check_tensors(self, parameters: Parameters) -> None:
        """Raises ValueError for tensors that no captured run reads."""
        if not self._parameters or self.plans_itself:
            return
        for name, x in parameters.tensors.items():
            if all(p[name] != x.data_ptr() for p in self._parameters):
                raise ValueError(
                    f"tensor {name!r} is another one than a captured graph reads; copy the new"
                    " values into that one"
                )

    def check_table(self, table: int) -> None:
        """Raises ValueError for a page table at another address than a captured run reads."""
        if self._table not in (None, table):
            raise ValueError(
                "kv_format has another page table than the captured graph reads; plan() copies it"
                " to one place, plan_on_device() uses it where it is: do not mix them, or capture"
                " plan_on_device() with run()"
            )

    def _kept(self, step: AnyStep) -> dict[str, float | int]:
        """Scalars of a step that a captured graph keeps."""
        return {name: step.scalars[name] for name in self._frozen}

    def _check_scalars(self, scalars: dict[str, float | int], band: tuple[int, int]) -> None:
        if self._scalars and scalars not in self._scalars:
            kept = self._scalars[-1]
            name = next(name for name in scalars if kept[name] != scalars[name])
            raise ValueError(
                f"scalar {name!r} is {scalars[name]}, but a captured graph keeps {kept[name]};"
                f" variant.live({name!r}) is the variant whose graphs see new values"
            )
        if self._band not in (None, band):
            raise ValueError(
                f"scalars change which keys are read: the band is {band}, but a captured"
                f" plan_on_device() plans for {self._band}; capture it again"
            )
