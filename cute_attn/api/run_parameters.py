"""The variant's parameters that runs of a `BatchAttention` take: those planned, or others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cute_attn.api.parameters import Parameters, bind
from cute_attn.api.shape import BatchShape
from cute_attn.api.step import AnyStep


class RunParameters:
    """Parameters of the last plan, and what runs have put over them.

    Argument blocks compare `Parameters` by identity, so equal ones stay the same object.

    Args:
        shape: of the calls, the variant among it.
        take: told of parameters before they are run with (`Backend.take_parameters`).

    Attributes:
        planned: what runs take that name no others; it keeps its tensors alive.
    """

    def __init__(self, shape: BatchShape, take: Callable[[Parameters], None]) -> None:
        self._shape, self._take = shape, take
        self.planned = Parameters({})
        self._overrides: dict[tuple[Any, ...], Parameters] = {}

    def bind(
        self,
        step: AnyStep,
        tensors: Mapping[str, torch.Tensor] | None,
        scalars: dict[str, float | int] | None = None,
        sm_scale: float | None = None,
        v_scale: float | None = None,
    ) -> Parameters:
        """As `parameters.bind`; `scalars`: others than those of the step."""
        values = step.scalars if scalars is None else scalars
        parameters = bind(self._shape, values, tensors, step, sm_scale, v_scale)
        self._take(parameters)
        return parameters

    def plan(self, parameters: Parameters) -> None:
        """What runs take from now on."""
        other = parameters != self.planned or parameters.scalars != self.planned.scalars
        if other or parameters.tensors or parameters.missing:
            self.planned = parameters
            self._overrides.clear()

    def over(
        self,
        step: AnyStep,
        scalars: Mapping[str, float | int],
        tensors: Mapping[str, torch.Tensor] | None,
        sm_scale: float | None = None,
        v_scale: float | None = None,
    ) -> Parameters:
        """Planned parameters overlaid; without tensors the same object for the same values.

        Raises:
            TypeError, ValueError, IndexError: see `BatchAttention.run`.
        """
        key = (sm_scale, v_scale, *sorted(scalars.items()))
        found = self._overrides.get(key) if tensors is None else None
        if found is None:
            variant, planned = self._shape.variant, self.planned
            values = variant.values({**planned.scalars, **scalars})
            for s in variant.scalars:
                if s.live and values[s.name] != planned.scalars[s.name]:
                    raise ValueError(
                        f"scalar {s.name!r} is live: kernels read what plan() was given, which is"
                        f" {planned.scalars[s.name]}; give {values[s.name]} to plan()"
                    )
            if variant.band.resolve(values) != step.band:
                raise ValueError(
                    f"scalars {dict(scalars)} change which keys are read (planned for"
                    f" {planned.scalars}); give them to plan()"
                )
            given = {**planned.tensors, **(tensors or {})} or None
            found = self.bind(step, given, values, sm_scale, v_scale)
            if tensors is None:
                self._overrides[key] = found
        return found
