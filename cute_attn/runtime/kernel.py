"""A compiled kernel as a thing to look at and to run: source, cubin, SASS, resources, and its
module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from cute_attn.runtime.compiler import Compiled, CompileRequest, compile_ptx
from cute_attn.runtime.disassemble import disassemble
from cute_attn.runtime.log import Resources
from cute_attn.runtime.module import Module
from cute_attn.runtime.toolchain import Toolchain


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel, compiled now or earlier.

    Attributes:
        request: what was asked for.
        toolchain: what made the cubin (recorded only, without tools, if it came from elsewhere).
        cubin: the machine code, an ELF file.
        log: the compiler's log.
        resources: registers, memory, spills as the assembler reported them.
        compile_seconds: wall time of the compile, whenever it was.
        from_cache: False if this process asked a compiler for it.
    """

    request: CompileRequest
    toolchain: Toolchain
    cubin: bytes = field(repr=False)
    log: str = field(repr=False)
    resources: Resources
    compile_seconds: float
    from_cache: bool

    @classmethod
    def of(cls, compiled: Compiled) -> CompiledKernel:
        return cls(
            request=compiled.request,
            toolchain=compiled.toolchain,
            cubin=compiled.cubin,
            log=compiled.log,
            resources=compiled.resources,
            compile_seconds=compiled.seconds,
            from_cache=False,
        )

    @property
    def source(self) -> str:
        """The generated CUDA C++."""
        return self.request.source

    @property
    def name(self) -> str:
        """The entry's symbol."""
        return self.request.name

    @property
    def arch(self) -> str:
        return self.request.arch

    @cached_property
    def sass(self) -> str:
        """Disassembly; raises ToolchainError (with the line to install) if there is no
        disassembler.
        """
        return disassemble(self.cubin)

    @cached_property
    def ptx(self) -> str:
        """PTX of the same source, made on demand; ToolchainError where nothing can compile."""
        return compile_ptx(self.request)

    @cached_property
    def module(self) -> Module:
        """The kernel in the driver; nothing is loaded before `Module.load`."""
        return Module(self.cubin, self.name, self.arch)

    def lint(self) -> list[str]:
        """Reasons against shipping this kernel (see `Resources.lint`); empty when clean."""
        return self.resources.lint()
