"""From a spec to a kernel that can be looked at and launched: `build`, and `warmup` for many.

kernel = cute_attn.build(spec, kv=64, stages=3)    # tile overrides for experiments
print(kernel.source, kernel.resources, kernel.sass)
arguments = kernel.arguments()                     # the parameter struct, to fill in
kernel.launch(grid, stream, arguments)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, cached_property, lru_cache
from typing import Any

from cute_attn.api import dispatch
from cute_attn.api.arguments import Arguments
from cute_attn.api.machine_code import MachineCode
from cute_attn.codegen.hooks import users_lines
from cute_attn.codegen.kernels import emit_block_ranges, emit_merge, range_tables
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime.build import build_kernel, toolchain_in_use, toolchain_named
from cute_attn.runtime.compiler import CompileRequest
from cute_attn.runtime.errors import CompileError
from cute_attn.runtime.kernel import CompiledKernel
from cute_attn.runtime.launch import Launcher
from cute_attn.runtime.log import Resources
from cute_attn.runtime.occupancy import Occupancy, occupancy
from cute_attn.runtime.pool import compile_many
from cute_attn.runtime.toolchain import Toolchain


class Kernel:
    """A generated and compiled kernel.

    Attributes:
        generated: source text, block size, shared memory and parameter layout.
        compiled: cubin, log and toolchain.
        spec: what it was generated from; None for the small kernels (merge, append).
    """

    def __init__(
        self, generated: GeneratedKernel, compiled: CompiledKernel, spec: KernelSpec | None = None
    ) -> None:
        self.generated = generated
        self.compiled = compiled
        self.spec = spec
        self._launchers: dict[tuple[int, bool], Launcher] = {}

    def __repr__(self) -> str:
        return f"Kernel({self.name}, {self.resources.registers} registers)"

    @property
    def name(self) -> str:
        """Entry symbol, as a profiler shows it."""
        return self.generated.name

    @property
    def source(self) -> str:
        """The generated CUDA C++."""
        return self.generated.text

    @property
    def sass(self) -> str:
        """Disassembly; ToolchainError if there is no disassembler (extra `sass`)."""
        return self.compiled.sass

    @property
    def ptx(self) -> str:
        """PTX of the source."""
        return self.compiled.ptx

    @property
    def resources(self) -> Resources:
        """Registers, shared memory and spills, as the assembler reported them."""
        return self.compiled.resources

    @cached_property
    def machine_code(self) -> MachineCode:
        """The disassembly, its main loops found; the errors of `sass`."""
        return MachineCode(self.sass)

    @property
    def occupancy(self) -> Occupancy:
        """Blocks that an SM of the architecture holds, and what limits them."""
        return occupancy(
            self.generated.arch,
            threads=self.generated.threads,
            registers=self.resources.registers,
            smem_bytes=self.generated.smem_bytes + self.resources.static_smem_bytes,
        )

    @property
    def bytes_in_flight(self) -> int | None:
        """Bytes of K and V that one block's copies have on their way while it computes on a block
        of keys; None where that is not known (kernels of users, small kernels)."""
        return None if self.spec is None else dispatch.bytes_in_flight(self.spec)

    def lint(self) -> list[str]:
        """Reasons against shipping this kernel; empty when it is clean."""
        return self.compiled.lint()

    def launcher(self, device: int = 0, *, overlap: bool = True) -> Launcher:
        """The launch path on GPU `device`; loads the module at the first call.

        Args:
            device: ordinal of the GPU.
            overlap: the kernel may start before the launch ahead of it in the stream has ended, if
                it was written for that.

        Raises:
            DriverError: no driver, or the GPU cannot run the kernel.
        """
        found = self._launchers.get((device, overlap))
        if found is None:
            generated, module = self.generated, self.compiled.module
            found = Launcher(
                module,
                generated.threads,
                generated.smem_bytes,
                pdl=overlap and generated.dependent_launch,
                device=device,
            )
            # The driver loads lazily; the occupancy query makes it load now, not under capture.
            module.max_blocks_per_sm(generated.threads, generated.smem_bytes, device)
            self._launchers[device, overlap] = found
        return found

    def arguments(self) -> Arguments:
        """A zeroed parameter struct of this kernel."""
        return Arguments(self.generated.params)

    def launch(
        self,
        grid: int | tuple[int, int, int],
        stream: int,
        arguments: Arguments,
        device: int = 0,
    ) -> None:
        """Launches `grid` blocks on `stream` (a CUstream as int; torch: `stream.cuda_stream`)."""
        self.launcher(device).launch(grid, stream, arguments.address)


def request_of(generated: GeneratedKernel, toolchain: Toolchain | None = None) -> CompileRequest:
    """What the runtime is asked to compile; `toolchain` None: by the default one."""
    return CompileRequest(
        source=generated.text,
        name=generated.name,
        arch=generated.arch,
        include_dirs=generated.include_dirs,
        toolchain=toolchain,
    )


def build(spec: KernelSpec, **tile: Any) -> Kernel:
    """Generates and compiles the kernel of a spec (from the cache, if it is there).

    Args:
        spec: the kernel; `cute_attn.choose` gives the one a batch would take.
        tile: fields of the tile to override: q, kv, stages, threads, blocks_per_sm,
            producer_registers, consumer_registers.

    Returns:
        the kernel; the same object for the same spec within a process.

    Raises:
        UnsupportedSpecError: no such kernel can be generated; the reasons are in the message.
        CompileError: it does not compile.
        ToolchainError: nothing here can compile (NVRTC is missing); the message says what to
            install.
        CacheMissError: CUTE_ATTN_NO_COMPILE=1 and it is in no cache.
    """
    return _build(dispatch.with_tile(spec, **tile) if tile else spec)


@cache
def _build(spec: KernelSpec) -> Kernel:
    generated = dispatch.emit(spec)
    try:
        return Kernel(generated, build_kernel(request_of(generated)), spec)
    except CompileError as error:
        raise in_users_lines(error, spec) from None


@cache
def build_with(spec: KernelSpec, toolchain: str) -> Kernel:
    """`build` with a toolchain of this name; with the default one, where there is none such here
    and none is recorded in the caches."""
    chosen = toolchain_named(toolchain)
    if chosen is None or chosen == toolchain_in_use():
        return build(spec)
    generated = dispatch.emit(spec)
    try:
        return Kernel(generated, build_kernel(request_of(generated, chosen)), spec)
    except CompileError as error:
        raise in_users_lines(error, spec) from None


def in_users_lines(error: CompileError, spec: KernelSpec | GeneratedKernel) -> CompileError:
    """With file and line of the variant's C++ text, if the error is there."""
    if not isinstance(spec, KernelSpec):
        return error
    return error.rewritten(lambda text: users_lines(text, spec.variant))


@lru_cache(maxsize=256)
def build_generated(generated: GeneratedKernel) -> Kernel:
    """Compiles one of the small kernels; the errors of `build`."""
    return Kernel(generated, build_kernel(request_of(generated)))


def warmup(
    specs: Iterable[KernelSpec | GeneratedKernel],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int, CompiledKernel | Exception], None] | None = None,
) -> list[CompiledKernel]:
    """Compiles many kernels in parallel processes, so that later calls find them in the cache.

    With a spec come the small kernels that its launches need (`launched_with`).

    Args:
        specs: specs, or generated kernels.
        jobs: processes; None takes as many as CPUs and free memory allow.
        progress: called as progress(done, total, result) after each kernel, all included.

    Returns:
        the kernels in the order of `specs`, without those that come with them.

    Raises:
        UnsupportedSpecError: a spec cannot be generated; nothing is compiled then.
        CompileError, ToolchainError: of the first kernel that failed, after all were tried.
    """
    specs = list(specs)
    generated = [dispatch.emit(s) if isinstance(s, KernelSpec) else s for s in specs]
    attention = [s for s in specs if isinstance(s, KernelSpec)]
    small = [kernel for spec in attention for kernel in launched_with(spec)]
    requests = [request_of(g) for g in [*generated, *dict.fromkeys(small)]]
    compiled = []
    for i, result in enumerate(compile_many(requests, jobs, progress)):
        if isinstance(result, CompileError) and i < len(specs):
            raise in_users_lines(result, specs[i])
        if isinstance(result, Exception):
            raise result
        compiled.append(result)
    return compiled[: len(specs)]


def launched_with(spec: KernelSpec) -> list[GeneratedKernel]:
    """The small kernels that are launched with that of `spec`: ranges of tensors ahead of it, a
    merge behind it."""
    kernels = [] if spec.fuses_merge else [merge_of(spec)]
    if range_tables(spec.variant):
        arch = dispatch.emitter_arch(spec.arch, dispatch.AMPERE_DECODE)
        kernels.append(emit_block_ranges(arch, spec.variant))
    return kernels


def merge_of(spec: KernelSpec) -> GeneratedKernel:
    """The merge that follows the kernel of `spec`."""
    return emit_merge(
        spec.arch,
        spec.dtype,
        spec.head_dim_vo,
        spec.tile.q,
        spec.group,
        spec.variant,
        per_head=spec.per_head,
    )
