"""The jinja2 environment of all templates: strict about undefined names, deterministic."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2


@cache
def _environment(folder: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: Path, **values: Any) -> str:
    """Text of the template file with `values` filled in; an undefined name raises."""
    return _environment(template.parent).get_template(template.name).render(**values)
