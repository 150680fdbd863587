"""What captured graphs hold on to: a step that a replay would read past is refused.

A graph that plans for itself (`plan_on_device` was captured too) depends on no later plan.
"""

from __future__ import annotations

from cute_attn.api.parameters import Parameters
from cute_attn.api.shape import refuse_kv
from cute_attn.api.step import AnyStep


class Captured:
    """Tensors that captured runs read and write.

    Attributes:
        plans_itself: the plan of the next captured runs was captured too.
    """

    def __init__(self) -> None:
        self.plans_itself = False
        self._rows: int | None = None  # query rows, the fewest
        self._kv: int | None = None  # KV rows or pages, the fewest
        self._table: int | None = None  # address of the page table
        self._parameters: list[Parameters] = []  # graphs read their tensors

    def note(self, rows: int, kv: int, table: int, parameters: Parameters) -> None:
        """A run is being captured.

        Args:
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

    def check(self, step: AnyStep) -> None:
        """Raises ValueError for a step that does not fit in the tensors."""
        if self._rows is not None and step.q_rows > self._rows:
            raise ValueError(
                f"qo_indptr[-1] is {step.q_rows}, but q had {self._rows} rows when a graph was"
                " captured; capture with as many rows as any step will have"
            )
        if self._kv is not None:
            refuse_kv(step, self._kv)

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
