"""The examples of docs/formats.md run, show what they say, and are right; links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def dense(q: Any, k: Any, v: Any, seen: Any) -> torch.Tensor:
    """Softmax over what `seen`, (query heads, rows, keys), lets be seen."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.float().transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
    scores = q.float().transpose(0, 1) @ keys.transpose(1, 2) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores.masked_fill(~seen.bool(), -torch.inf), -1)
    return (weights @ values).transpose(0, 1)


def near(out: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.allclose(out.float(), want, atol=2e-2)


def test_the_examples_run() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    for code in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
        assert printed.getvalue().splitlines() == said

    q, k, v = (names[name] for name in "qkv")
    assert near(names["out"], dense(q, k, v, names["dense"].expand(8, -1, -1)))
    assert near(names["out_masked"], dense(names["rows"], k, v, names["lower"].expand(8, -1, -1)))
    for request, head in torch.cartesian_prod(torch.arange(2), torch.arange(2)).tolist():
        used = names["cache"][names["chosen"][request, head], :, :, head]
        length, rows = names["seq_lens"][request, head], slice(4 * head, 4 * head + 4)
        keys, values = (used[:, i].flatten(0, 1)[:length, None] for i in range(2))
        token = names["tokens"][request, None, rows]
        want = dense(token, keys, values, torch.ones(4, 1, int(length)))
        assert near(names["out_selected"][request, rows], want[0])
    seen = torch.zeros(8, 8, 64)
    seen[:4, :4, 32:48] = seen[:4, 4:, :16] = seen[:4, 4:, 48:] = seen[4:] = 1
    assert near(names["out_heads"], dense(q, k, v, seen))
    sizes = (([2, 6], [16, 32, 16]), ([5, 3], [48, 16, 0]))
    of_heads = [
        own.repeat_interleave(torch.tensor(r), 0).repeat_interleave(torch.tensor(c), 1)
        for own, (r, c) in zip(names["seen"], sizes, strict=True)
    ]
    assert near(
        names["out_clusters"], dense(q, k, v, torch.stack(of_heads).repeat_interleave(4, 0))
    )


def test_links_lead_somewhere() -> None:
    for page in (PAGE, PAGE.with_name("composable_formats.md")):
        links = re.findall(r"\]\(((?!http)[^)#]+)[^)]*\)", page.read_text())
        assert links
        for link in links:
            assert (page.parent / link).exists(), link
