"""`load_bundle`: a bundle, verified, as the kernels of `BatchAttention`. Needs no compiler."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path, PurePosixPath

from cute_attn.abi import Field, ParameterBlock
from cute_attn.api.kernel import Kernel
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import KernelSpec
from cute_attn.export.describe import PLAN_FORMAT, WORKSPACE, parameter_struct
from cute_attn.export.errors import BundleError
from cute_attn.export.manifest import File, Manifest, parse
from cute_attn.export.manifest import Kernel as Entry
from cute_attn.export.write import MANIFEST
from cute_attn.runtime import CompiledKernel, CompileRequest, Resources, Toolchain


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Reads a bundle and verifies every file in it; needs neither a GPU nor a compiler.

        bundle = cute_attn.load_bundle("llama.bundle")
        batch = BatchAttention(32, 8, 128, variant="causal", bundle=bundle)

    Args:
        path: folder that `export_bundle` or `cute-attn export` has written.

    Raises:
        BundleError: it is no bundle, of another ABI version, or damaged; the message names the file
            or the entry.
    """
    folder = Path(path)
    file = folder / MANIFEST
    try:
        text = file.read_bytes()
    except OSError as error:
        raise BundleError(f"path is {folder}, which is no bundle: {error}") from error
    manifest = parse(text)
    for name, here, there in (
        ("plan", PLAN_FORMAT, manifest.plan),
        ("workspace", WORKSPACE, manifest.workspace),
    ):
        if here != there:
            raise BundleError(f"the {name} of the bundle is laid out otherwise: export it again")
    contents = {entry.path: _verified(folder, entry) for entry in manifest.files}
    return Bundle(folder, manifest, contents)


class Bundle:
    """Kernels of a bundle; `load_bundle` makes it.

    Attributes:
        path: the folder.
        manifest: what is in it.
    """

    def __init__(self, path: Path, manifest: Manifest, contents: dict[str, bytes]) -> None:
        self.path = path
        self.manifest = manifest
        self._contents = contents
        self._kernels: dict[str, Kernel] = {}

    def __repr__(self) -> str:
        return (
            f"Bundle({str(self.path)!r}, {len(self.manifest.kernels)} kernels for"
            f" {', '.join(self.manifest.archs)})"
        )

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, ready to be launched (`Kernel.launch`)."""
        return tuple(self.kernel(entry.name) for entry in self.manifest.kernels)

    def kernel(self, name: str) -> Kernel:
        """The kernel of an entry symbol.

        Raises:
            BundleError: it is not in the bundle.
        """
        entry = self.manifest.by_name.get(name)
        if entry is None:
            raise BundleError(
                f"bundle {self.path} has no kernel {name}: it was exported for"
                f" {self._problems()}, by {self.manifest.made_by}"
            )
        if name not in self._kernels:
            self._kernels[name] = self._made(entry)
        return self._kernels[name]

    def attention(self, spec: KernelSpec) -> Kernel:
        """The attention kernel of a spec; raises as `kernel`."""
        found = self.kernel(spec.name)
        return Kernel(found.generated, found.compiled, spec)

    def small(self, generated: GeneratedKernel) -> Kernel:
        """The merge that is generated here under the same name; raises as `kernel`."""
        return self.kernel(generated.name)

    def check_device(self, arch: str, name: str) -> None:
        """Raises BundleError if no kernel was exported for GPUs of `arch`; `name`: of the GPU."""
        if arch not in self.manifest.archs:
            raise BundleError(
                f"bundle {self.path} has code for {', '.join(self.manifest.archs)}, but {name} is"
                f" {arch}: export it with --arch {arch}"
            )

    def _problems(self) -> str:
        texts = (
            f"{p.arch} {p.dtype} head_dim {p.head_dim_qk} group {p.group} {p.variant}"
            f" {'ragged' if p.page_size is None else f'pages of {p.page_size}'}"
            for p in self.manifest.problems
        )
        return "; ".join(texts)

    def _made(self, entry: Entry) -> Kernel:
        fields = (Field(p.name, p.kind, p.comment) for p in entry.parameters.fields)
        try:
            params = ParameterBlock(tuple(fields))
        except ValueError as error:
            raise BundleError(f"parameters of {entry.name}: {error}") from error
        if parameter_struct(params) != entry.parameters:
            raise BundleError(f"parameters of {entry.name} are not where the C++ rules put them")
        source = self._contents[entry.source].decode()
        made = entry.compiler
        return Kernel(
            GeneratedKernel(
                name=entry.name,
                text=source,
                arch=entry.arch,
                threads=entry.block,
                smem_bytes=entry.smem_bytes,
                blocks_per_sm=entry.blocks_per_sm,
                params=params,
                include_dirs=(),
                dependent_launch=entry.dependent_launch,
            ),
            CompiledKernel(
                request=CompileRequest(source, entry.name, entry.arch),
                toolchain=Toolchain(made.nvrtc, made.ptxas, made.headers),
                cubin=self._contents[entry.cubin],
                log="",
                resources=Resources(
                    registers=entry.registers,
                    stack_bytes=entry.stack_bytes,
                    spill_store_bytes=entry.spill_store_bytes,
                    spill_load_bytes=entry.spill_load_bytes,
                ),
                compile_seconds=0.0,
                from_cache=True,
            ),
        )


def _verified(folder: Path, entry: File) -> bytes:
    """Contents of a file of the bundle.

    Raises:
        BundleError: it is outside of the folder, missing, or another one than was exported.
    """
    name = entry.path
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts:
        raise BundleError(f"the manifest names the file {name!r}, which is outside of the bundle")
    try:
        data = (folder / place).read_bytes()
    except OSError as error:
        raise BundleError(f"bundle {folder} lacks {name}: {error}") from error
    if len(data) != entry.bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise BundleError(
            f"{folder / place} ({len(data)} bytes) is not the file that was exported"
            f" ({entry.bytes} bytes)"
        )
    return data
