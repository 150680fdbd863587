"""Memory of a variant's live scalars: kernels read them there, so captured graphs see new values.

Every plan fills it, in one asynchronous copy of a few bytes if a value has changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from cute_attn.api.plan_buffer import PlanBuffer
from cute_attn.variants import Variant

_TYPES = {"f32": np.float32, "i32": np.int32}


class LiveScalars:
    """The live scalars of one variant, at addresses that do not change.

    Args:
        variant: has live scalars.
        device: a CUDA device.

    Attributes:
        addresses: of each, by name.
        in_band: whether the variant's band depends on one.
    """

    def __init__(self, variant: Variant, device: torch.device) -> None:
        live = [s for s in variant.scalars if s.live]
        self._kinds = {s.name: _TYPES[s.kind] for s in live}
        self._buffer = PlanBuffer(len(live), device)
        self.addresses = {s.name: self._buffer.address + 4 * i for i, s in enumerate(live)}
        self.in_band = not variant.band.scalars().isdisjoint(self._kinds)
        self._held: dict[str, float | int] | None = None

    def check_captured(self, values: Mapping[str, float | int]) -> None:
        """For a plan that is being captured, which copies nothing.

        Raises:
            ValueError: the memory holds other values.
        """
        for name in self._kinds:
            if self._held is not None and self._held[name] != values[name]:
                raise ValueError(
                    f"live scalar {name!r} is {values[name]}, but the last plan has left"
                    f" {self._held[name]}, and a plan that is captured does not change it: plan"
                    " with the new value outside the capture"
                )

    def write(self, values: Mapping[str, float | int]) -> None:
        """Sends the values of a step to the device on the current stream, without waiting.

        Args:
            values: of all scalars of the variant.
        """
        own = {name: values[name] for name in self._kinds}
        if own == self._held:
            return
        staged = self._buffer.stage()
        for i, (name, kind) in enumerate(self._kinds.items()):
            staged[i] = np.array(own[name], kind).view(np.int32)
        self._buffer.upload(len(own))
        self._held = own
