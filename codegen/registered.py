"""Kernel templates that users bring: what a registered schedule can do, and its source.

A template is a jinja2 file of CUDA C++ with one entry, `extern "C" __global__ void {{ name }}(const
__grid_constant__ Params params)`. It takes its work from the plan through `work.hpp`; what is split
it leaves as partial results to the merge kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from cute_attn.abi import ParameterBlock
from cute_attn.codegen.attention_params import attention_params
from cute_attn.codegen.hooks import (
    cpp_band,
    cpp_hooks,
    cpp_row_hooks,
    hidden_score,
    hook_headers,
    number_lines,
)
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel
from cute_attn.codegen.spec import (
    BLOCK_SMEM,
    KernelSpec,
    Tile,
    UnsupportedSpecError,
    has_dependent_launch,
)


@dataclass(frozen=True)
class RegisteredTemplate:
    """A schedule of a user; its fields are the arguments of `cute_attn.register_template`."""

    schedule: str
    template: Path
    tiles: Mapping[tuple[int, int], Tile]
    archs: tuple[str, ...]
    smem_bytes: Callable[[KernelSpec], int]
    values: Callable[[KernelSpec], Mapping[str, Any]] | None
    include_dirs: tuple[Path, ...]
    loaders: tuple[str, ...]
    tensor_maps: bool
    hooks: tuple[str, ...]
    softmax_off: bool
    dependent_launch: bool
    supports: Callable[[KernelSpec], list[str]] | None
    costs_like: str

    def reasons(self, spec: KernelSpec) -> list[str]:
        """Reasons why no kernel can be generated for `spec`; empty = it can."""
        reasons = spec.basic_reasons()
        for name, value, known in (
            ("arch", spec.arch, self.archs),
            ("loader", spec.loader, self.loaders),
            ("(head_dim_qk, head_dim_vo)", (spec.head_dim_qk, spec.head_dim_vo), self.tiles),
        ):
            if value not in known:
                takes = ", ".join(map(str, known))
                reasons.append(f"{name} is {value!r}; {self.schedule} was registered for {takes}")
        missing = [role for role in spec.variant.hooks if role not in self.hooks]
        if missing:
            reasons.append(
                f"variant {spec.variant.name!r} has a {missing[0]} hook; {self.schedule} was"
                f" registered with hooks={self.hooks}"
            )
        if not spec.variant.softmax and not self.softmax_off:
            reasons.append(
                f"variant {spec.variant.name!r} has no softmax; {self.schedule} was registered"
                " with softmax_off=False"
            )
        if not reasons and self.supports is not None:
            reasons = list(self.supports(spec))
        if not reasons and (used := self.smem_bytes(spec)) > BLOCK_SMEM[spec.arch]:
            reasons = [f"{used} bytes of shared memory; a block has {BLOCK_SMEM[spec.arch]}"]
        return reasons

    def params_of(self, spec: KernelSpec) -> ParameterBlock:
        """Layout of the struct that the spec's kernel takes."""
        return attention_params(
            tma=self.tensor_maps,
            paged=spec.loader == "paged",
            variant=spec.variant,
            fused_merge=spec.fuses_merge,
        )

    def emit(self, spec: KernelSpec) -> GeneratedKernel:
        """Generates the kernel.

        Raises:
            UnsupportedSpecError: `reasons(spec)` has some.
            ValueError: the template cannot be rendered; with its line, if that is known.
        """
        if reasons := self.reasons(spec):
            raise UnsupportedSpecError(spec.name, reasons)
        params, variant, smem = self.params_of(spec), spec.variant, self.smem_bytes(spec)
        band_left, band_right = cpp_band(variant.band, variant.scalars)
        values = {
            "name": spec.name,
            "spec": spec,
            "variant": variant,
            "element": f"cute_attn::{spec.dtype}",
            "params_struct": cpp_struct(params),
            "hooks": cpp_hooks(variant),
            "row_hooks": cpp_row_hooks(variant),
            "hook_headers": hook_headers(variant),
            "hidden": hidden_score(variant),
            "band_left": band_left,
            "band_right": band_right,
            "smem_bytes": smem,
            **(self.values(spec) if self.values is not None else {}),
        }
        try:
            text = render(self.template, **values)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"{error.filename}, line {error.lineno}: {error.message}") from error
        except jinja2.TemplateError as error:
            raise ValueError(f"template {self.template}: {error.message}") from error
        return GeneratedKernel.of_spec(
            spec,
            number_lines(text),
            smem,
            params,
            (*self.include_dirs, INCLUDE_DIR),
            dependent_launch=self.dependent_launch and has_dependent_launch(spec.arch),
        )


REGISTERED: dict[str, RegisteredTemplate] = {}
"""By schedule."""
