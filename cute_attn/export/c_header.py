"""`bundle.h`: the manifest as C tables, for programs that read no JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cute_attn.codegen.render import render
from cute_attn.export.manifest import ABI_VERSION, File, Kernel, Problem, Term, Workspace
from cute_attn.export.recipes import VALUES
from cute_attn.runtime.tensor_map import DATA_TYPES, L2_PROMOTIONS, SWIZZLES

_TEMPLATE = Path(__file__).parent / "templates" / "bundle.h.jinja"


def bundle_header(
    kernels: Iterable[Kernel],
    problems: Iterable[Problem],
    workspace: Workspace,
    required_cuda: str,
    files: Mapping[str, File],
) -> str:
    """The text of the header.

    Args:
        kernels: merges before the kernels that name them.
        problems, workspace, required_cuda: as in the manifest.
        files: the cubins by path.
    """
    kernels = tuple(kernels)
    major, minor = map(int, required_cuda.split("."))
    return render(
        _TEMPLATE,
        guard="CUTE_ATTN_BUNDLE_H_",
        kernels=kernels,
        numbers={kernel.name: number for number, kernel in enumerate(kernels)},
        problems=tuple(problems),
        workspace=workspace,
        abi_version=ABI_VERSION,
        required_cuda=1000 * major + 10 * minor,
        files=files,
        data_types={name: number for name, (number, _) in DATA_TYPES.items()},
        swizzles=SWIZZLES,
        l2_promotions=L2_PROMOTIONS,
        term=_term,
        flag=lambda value: -1 if value is None else int(value),
        number=lambda value: -1 if value is None else value,
        limit=_limit,
    )


def _term(term: Term | None) -> str:
    term = term or Term(None, 0)
    value = "-1" if term.value is None else f"CUTE_ATTN_{term.value.upper()}"
    assert term.value is None or term.value in VALUES
    return f"{{{value}, {term.times}, {term.divided_by}}}"


def _limit(text: str | None) -> str:
    if text is None:
        return "CUTE_ATTN_UNBOUNDED"
    most = "(double)CUTE_ATTN_UNBOUNDED"
    return f"(int32_t)(({text}) < {most} ? ({text}) : {most})"
