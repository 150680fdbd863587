"""The manifest of a bundle, `manifest.json`: all that a program needs to plan and launch.

The classes are the format: `codec` writes and reads them, and `manifest.schema.json` is made from
them. A change of meaning, of a kernel's parameters or of the plan's layout raises `ABI_VERSION`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from cute_attn.export.codec import from_json, schema_of, to_json
from cute_attn.export.errors import BundleError

FORMAT = "cute_attn.bundle"
ABI_VERSION = 1


@dataclass(frozen=True)
class File:
    """One file of the bundle."""

    path: Annotated[str, "relative to the manifest, with /"]
    bytes: int
    sha256: Annotated[str, "64 hexadecimal digits"]


@dataclass(frozen=True)
class Parameter:
    """One field of a kernel's parameter struct."""

    name: str
    kind: Annotated[str, "tensor_map (128 bytes), pointer, i64, i32, u32 or f32"]
    offset: Annotated[int, "bytes from the begin of the struct"]
    bytes: int
    comment: str


@dataclass(frozen=True)
class ParameterStruct:
    """The one parameter of a kernel, a struct by value."""

    bytes: int
    alignment: Annotated[int, "of the struct in the host's memory; 64 where it holds tensor maps"]
    fields: tuple[Parameter, ...]


@dataclass(frozen=True)
class Term:
    """A number: value * times / divided_by, with 1 for a value that is null."""

    value: Annotated[str | None, "name of a value of the tensor, see TensorMap"]
    times: int = 1
    divided_by: int = 1


@dataclass(frozen=True)
class Dimension:
    """One dimension of a tensor map, from the innermost on."""

    size: Annotated[Term, "elements; 1 where it comes out as 0"]
    stride: Annotated[
        Term | None,
        "elements from one to the next, null for the innermost. A stride that names a value is 16"
        " bytes where the size is at most 1",
    ]
    box: Annotated[Term, "elements that one copy moves"]


@dataclass(frozen=True)
class TensorMap:
    """How a tensor map of the parameters is encoded (cuTensorMapEncodeTiled): no interleaving,
    element strides of 1, zeros outside.

    Values of q: tokens, heads, token_stride, head_stride. Of k and v: pages, rows (of a page;
    ragged: all, of one page), heads, page_stride, row_stride, head_stride, page_groups (rows / 8 of
    a single page, else page_stride / (8 * row_stride), or 0 if that is no whole number), groups
    ((pages - 1) * page_groups + rows / 8), box_rows (ragged: tile_kv; pages: gcd(page size,
    tile_kv), but 8 where the kernel has maps by groups and k or v has page_groups 0).
    """

    field: Annotated[str, "of the parameters"]
    tensor: Annotated[str, "q, k or v"]
    page_groups: Annotated[bool | None, "taken if the tensor's page_groups are not 0; null: always"]
    dtype: Annotated[str, "bfloat16 or float16"]
    element_bytes: int
    swizzle: Annotated[int, "bytes"]
    l2_promotion: Annotated[int, "bytes"]
    dimensions: tuple[Dimension, ...]


@dataclass(frozen=True)
class Costs:
    """What plans take work to cost; integers, see cute_attn/scheduler/cost.py."""

    tile_ns: int
    row_key_ps: int
    key_ps: int
    partial_row_ps: int
    merge_ns: int
    key_bytes: int
    masked_ns: int
    merge_row_ps: int


@dataclass(frozen=True)
class Attention:
    """What is special about an attention kernel."""

    schedule: Annotated[str, "kernel family"]
    dtype: Annotated[str, "of q, k, v and out: bf16 or fp16"]
    head_dim_qk: int
    head_dim_vo: int
    group: Annotated[int, "query heads per KV head"]
    loader: Annotated[str, "ragged, paged or gather"]
    page_size_multiple: Annotated[int | None, "page sizes are multiples of it; null: ragged KV"]
    variant: str
    tile_q: Annotated[int, "packed query rows of a tile"]
    tile_kv: Annotated[int, "keys of a KV block"]
    merge: Annotated[str | None, "kernel that follows; null: it merges split tiles itself"]
    tensor_maps: tuple[TensorMap, ...]
    costs: Costs


@dataclass(frozen=True)
class Compiler:
    """What made a cubin."""

    nvrtc: Annotated[str, "version"]
    ptxas: Annotated[str | None, "version; null: the assembler is NVRTC's own"]
    headers: Annotated[str, "digest of the CUDA and CuTe headers"]


@dataclass(frozen=True)
class Kernel:
    """One cubin and how it is launched."""

    name: Annotated[str, "entry symbol"]
    role: Annotated[str, "attention or merge"]
    arch: Annotated[str, "what it is compiled for"]
    capability: Annotated[tuple[int, ...], "major and least minor compute capability"]
    exact: Annotated[bool, "runs on that minor compute capability only"]
    cubin: Annotated[str, "path"]
    source: Annotated[str, "path; the generated CUDA C++"]
    compiler: Compiler
    registers: Annotated[int, "per thread, at entry"]
    stack_bytes: Annotated[int, "per thread"]
    spill_store_bytes: int
    spill_load_bytes: int
    block: Annotated[int, "threads in x; y and z are 1"]
    grid_y: Annotated[
        int, "blocks in y. In x: num_blocks of the plan, SMs * blocks_per_sm of the attention"
    ]
    smem_bytes: Annotated[int, "dynamic shared memory per block"]
    blocks_per_sm: Annotated[int, "thread blocks of an attention kernel per SM"]
    dependent_launch: Annotated[
        bool, "may be launched with programmatic stream serialization; it waits itself"
    ]
    parameters: ParameterStruct
    attention: Annotated[Attention | None, "of an attention kernel"]


@dataclass(frozen=True)
class Scalar:
    """A run-time number of a variant: a parameter of its kernels."""

    name: str
    kind: Annotated[str, "i32 or f32"]
    default: float
    live: Annotated[bool, "the parameter is a pointer to the number, in device memory"]
    comment: str


@dataclass(frozen=True)
class Choice:
    """A kernel for some steps: the first entry whose limits the step keeps is taken."""

    long: Annotated[bool, "for steps of many keys per query token, see Problem.long_keys"]
    most_rows: Annotated[int | None, "packed query rows of the longest request; null: any number"]
    most_tiles_per_sm: Annotated[int | None, "see Problem.decode_rows; null: any number"]
    kernel: str


@dataclass(frozen=True)
class Problem:
    """Steps that the bundle has kernels for, on one architecture.

    A step is long if it has query tokens and, over its requests, the sum of
    q_len * (min(kv_len, window_left + window_right + 1) - long_keys) is not negative.
    """

    arch: Annotated[str, "of the GPU"]
    capability: Annotated[tuple[int, ...], "compute capability of the GPU, major and minor"]
    dtype: str
    head_dim_qk: int
    head_dim_vo: int
    group: int
    variant: str
    page_size: Annotated[int | None, "that kernels were chosen for; null: ragged KV"]
    schedule: Annotated[str | None, "kernel family, where one was asked for"]
    scalars: tuple[Scalar, ...]
    window_left: Annotated[str | None, "C expression of the scalars; null: no limit"]
    window_right: Annotated[str | None, "C expression of the scalars; null: no limit"]
    sm_scale: Annotated[str, "C expression of sm_scale and the scalars for the parameter"]
    scale_log2: Annotated[str, "C expression of sm_scale and the scalars for the parameter"]
    decode_rows: Annotated[
        tuple[int, ...],
        "tiles per SM are ceil(requests with queries * ceil(rows / r) * KV heads / SMs), r the"
        " first of these that is not below the rows of the longest request, or the last",
    ]
    long_keys: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class PlanFormat:
    """The plan buffer, int32; sections follow each other in this order.

    starts and splits have num_blocks rows, cuts num_blocks + 1, requests max_requests + 1 (from a
    multiple of 8 on); then come listed_rounds x num_blocks uint16.
    """

    header: tuple[str, ...]
    starts: tuple[str, ...]
    splits: tuple[str, ...]
    cuts: tuple[str, ...]
    requests: tuple[str, ...]
    listed_rounds: Annotated[int, "most of them"]
    unbounded: Annotated[int, "a window without a limit"]


@dataclass(frozen=True)
class Workspace:
    """Device memory of one launch, in this order, each part a multiple of `alignment` bytes.

    arrivals (to be set to 0 once), partial_out: 4 * slots * tile_q * head_dim_vo, partial_lse:
    4 * slots * tile_q bytes; slots: 2 * (num_blocks - 1).
    """

    arrivals_bytes: int
    alignment: int


@dataclass(frozen=True)
class Manifest:
    """A bundle of attention kernels."""

    format: Annotated[str, "cute_attn.bundle"]
    abi_version: Annotated[int, "of parameters, plan and this file"]
    made_by: str
    costs_of: Annotated[str, "GPU that the costs of kernels were measured on"]
    required_cuda: Annotated[str, "CUDA version that the driver must speak, major.minor"]
    plan: PlanFormat
    workspace: Workspace
    problems: tuple[Problem, ...]
    kernels: tuple[Kernel, ...]
    files: Annotated[tuple[File, ...], "all files but this one, by path"]

    @cached_property
    def by_name(self) -> dict[str, Kernel]:
        """Kernels by entry symbol."""
        return {kernel.name: kernel for kernel in self.kernels}

    @property
    def archs(self) -> tuple[str, ...]:
        """Architectures of GPUs that it has kernels for."""
        return tuple(dict.fromkeys(problem.arch for problem in self.problems))


def dump(manifest: Manifest) -> bytes:
    """The file's contents; equal manifests, equal bytes."""
    return (json.dumps(to_json(manifest), indent=1) + "\n").encode()


def parse(text: bytes) -> Manifest:
    """Reads a manifest.

    Raises:
        BundleError: it is no JSON, of another format or ABI version, or breaks the schema.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise BundleError(f"manifest is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BundleError(f"manifest is not that of a bundle: it has no format {FORMAT!r}")
    if data.get("abi_version") != ABI_VERSION:
        raise BundleError(
            f"the bundle has ABI version {data.get('abi_version')!r}; this version of cute_attn"
            f" reads {ABI_VERSION}: export it again"
        )
    manifest = from_json(Manifest, data)
    _check_names(manifest)
    return manifest


def _check_names(manifest: Manifest) -> None:
    """Raises unless kernels and files that are named are there."""
    files = {file.path for file in manifest.files}
    for kernel in manifest.kernels:
        merge = kernel.attention and kernel.attention.merge
        if merge and merge not in manifest.by_name:
            raise BundleError(f"kernel {kernel.name} names the merge {merge}, which is not there")
        for path in (kernel.cubin, kernel.source):
            if path not in files:
                raise BundleError(f"kernel {kernel.name} names the file {path}, which is not there")
    for problem in manifest.problems:
        for choice in problem.choices:
            if choice.kernel not in manifest.by_name:
                raise BundleError(f"a problem names kernel {choice.kernel}, which is not there")


def schema() -> dict[str, Any]:
    """The JSON Schema of manifests."""
    return schema_of(Manifest, "Manifest of a cute_attn bundle")
