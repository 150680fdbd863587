"""Lists of kernels as data: axes whose product is compiled, and presets of axes.

An architecture here is that of the GPU to serve: for sm_90a the list holds Hopper kernels and the
decode kernel built for sm_90, as `BatchAttention` takes them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from cute_attn.api import KernelSpec, Problem
from cute_attn.api.dispatch import (
    AMPERE_DECODE,
    all_specs,
    emit,
    emitter_arch,
    spec_for,
)
from cute_attn.api.kernel import launched_with
from cute_attn.api.tuned_kernels import tuned_kernels
from cute_attn.cli.variants import variant_of
from cute_attn.codegen.kernels import emit_append
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.runtime.build import toolchain_named
from cute_attn.runtime.toolchain import Toolchain

RAGGED = 0
"""The page size that stands for ragged KV."""


@dataclass(frozen=True)
class Axes:
    """Every combination of these is wanted.

    Attributes:
        arch: of the GPUs: "sm_80" ... "sm_90a".
        dtype: "bf16", "fp16".
        head_dim: elements of q, k and v rows.
        group: query heads per KV head.
        page_size: tokens per page, `RAGGED` for ragged KV.
        variant: as `cli.variants` reads them; "causal+sliding_window" combines two.
        schedule: kernel families; empty: those that `BatchAttention` chooses between.
        append: RoPE of the cache append kernel ("half_split", "interleaved", None = without);
            empty: no append kernel.
    """

    arch: tuple[str, ...] = ("sm_80", "sm_86", "sm_89", "sm_90a")
    dtype: tuple[str, ...] = ("bf16",)
    head_dim: tuple[int, ...] = (128,)
    group: tuple[int, ...] = (4,)
    page_size: tuple[int, ...] = (RAGGED,)
    variant: tuple[str, ...] = ("causal",)
    schedule: tuple[str, ...] = ()
    append: tuple[str | None, ...] = ()


PRESETS: dict[str, Axes] = {
    # What `cute-attn demo` runs.
    "demo": Axes(arch=("sm_80", "sm_90a"), page_size=(16,)),
    # The tested matrix.
    "core": Axes(
        arch=("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"),
        dtype=("bf16", "fp16"),
        head_dim=(64, 128, 256),
        page_size=(RAGGED, 16, 1),
        variant=("full", "causal"),
    ),
    # Llama 3: 1B has head_dim 64; 8B (and 1B) 32/8 heads, 70B 64/8.
    "llama": Axes(head_dim=(64, 128), group=(4, 8), page_size=(16,), append=(None, "half_split")),
}


def problems(axes: Axes) -> Iterator[Problem]:
    """What the kernels are asked to solve."""
    for arch, dtype, dim, group, page_size, variant in product(
        axes.arch, axes.dtype, axes.head_dim, axes.group, axes.page_size, axes.variant
    ):
        yield Problem(arch, dtype, dim, dim, group, variant_of(variant), page_size or None)


def attention_specs(axes: Axes) -> list[KernelSpec]:
    """The attention kernels of the tile tables and of the tune databases, none twice.

    Raises:
        UnsupportedSpecError: one cannot be generated.
    """
    specs: list[KernelSpec] = []
    for problem in problems(axes):
        if axes.schedule:
            specs += [spec_for(problem, schedule) for schedule in axes.schedule]
        else:
            specs += all_specs(problem)
            specs += [spec for spec, _ in tuned_kernels(problem)]
    return list(dict.fromkeys(specs))


def generate(axes: Axes) -> list[GeneratedKernel]:
    """Source of all kernels: attention, what is launched with it, append; none twice."""
    kernels = with_merges(attention_specs(axes))
    for arch, dtype, dim, rope in product(axes.arch, axes.dtype, axes.head_dim, axes.append):
        kernels.append(emit_append(emitter_arch(arch, AMPERE_DECODE), dtype, dim, dim, rope))
    return unique(kernels)


def other_toolchains(axes: Axes) -> list[tuple[GeneratedKernel, Toolchain]]:
    """Kernels that the tune databases want made by another toolchain than the default one, where
    that is here."""
    found = {}
    for problem in problems(axes) if not axes.schedule else ():
        for spec, name in tuned_kernels(problem):
            toolchain = None if name is None else toolchain_named(name)
            if toolchain is not None:
                found[spec, toolchain] = emit(spec), toolchain
    return list(found.values())


def with_merges(specs: Iterable[KernelSpec]) -> list[GeneratedKernel]:
    """Each attention kernel, then what is launched with it; none twice."""
    kernels = []
    for spec in specs:
        kernels += [emit(spec), *launched_with(spec)]
    return unique(kernels)


def unique(kernels: Iterable[GeneratedKernel]) -> list[GeneratedKernel]:
    """One kernel per name (names hold a digest of all that differs)."""
    return list({kernel.name: kernel for kernel in kernels}.values())
