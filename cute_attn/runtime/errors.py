"""The errors of the runtime, one class per thing a caller can do something about.

Every message says what was wanted, what was found and what to do; none needs a traceback to be
understood. All of them are raised before anything is launched.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class ToolchainError(RuntimeError):
    """No usable NVRTC, headers or assembler; the message ends with the line to install what is
    missing.
    """


class CompileError(RuntimeError):
    """NVRTC or ptxas refused a source.

    Attributes:
        log: the whole compiler log.
        source_path: where the source was dumped for inspection, or None if no directory was
        writable. errors: the first error messages of the log, each possibly several lines long.
    """

    def __init__(
        self,
        message: str,
        *,
        log: str = "",
        source_path: Path | None = None,
        errors: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.log = log
        self.source_path = source_path
        self.errors = errors

    def rewritten(self, rewrite: Callable[[str], str]) -> CompileError:
        """The same error with `rewrite` applied to its texts, e.g. to name other lines."""
        return CompileError(
            rewrite(str(self)),
            log=rewrite(self.log),
            source_path=self.source_path,
            errors=tuple(map(rewrite, self.errors)),
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Compile workers send this through a pipe; the default drops keyword arguments.
        return _rebuild_compile_error, (str(self), self.log, self.source_path, self.errors)


def _rebuild_compile_error(
    message: str, log: str, source_path: Path | None, errors: tuple[str, ...]
) -> CompileError:
    return CompileError(message, log=log, source_path=source_path, errors=errors)


class CacheMissError(RuntimeError):
    """A kernel is in no cache although ``CUTE_ATTN_NO_COMPILE=1`` forbids compiling it."""


class DriverError(RuntimeError):
    """A CUDA driver call failed; ``code`` is the CUresult, or None if there is no driver."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return DriverError, (str(self), self.code)
