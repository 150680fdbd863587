"""Random delays in a generated kernel, a test of its synchronisation.

A kernel whose warps wait for each other as they must gives the same bits however long each of them
takes between two steps. `with_delays` puts a sleep of random length before every statement that
orders or moves something between warps, so that they meet in orders that do not occur otherwise:
producers late or early, warps of a warpgroup apart, stages released long after they were read.
"""

from __future__ import annotations

import re
from pathlib import Path

_HEADERS = Path(__file__).parent / "include"
_OWN_HEADER = re.compile(r"#include <(cute_attn/hopper/(?!atoms)\w+\.hpp)>\n")
INCLUDE = "#include <cute_attn/hopper/random_delay.hpp>\n"

# Beginnings of the statements that get a delay, in words of the templates.
POINTS = {
    "a ring's barrier, waited for": (
        r"(?:smem\.\w+\[[\w.]+\](?:\[[\w()]+\])?|full|empty\[[\w.]+\])\.wait\("
    ),
    "a full barrier, arrived at": r"(?:smem\.\w+\[[\w.]+\]|full)\.arrive(?:_and_expect_tx)?\(",
    "a stage, released": r"empty\.arrive\(",
    "an item, published": r"publish_item<|smem\.item\[.*\] = |record = ",
    "a TMA copy": r"cute::SM90_TMA_LOAD_\dD::copy\(",
    "a copy by cp.async": r"Rows\w?::copy\(|Queries::load\(|copy_panels<",
    "a copy, reported": r"arrive_when_copied\(|cute::cp_async_wait<",
    "a product, issued": r"issue_(?:qk|pv|shared_pv)<",
    "a product, waited for": r"cute::warpgroup_wait<",
    "V rows, zeroed": r"zero_rows<",
    "a fence": r"__threadfence(?:_block)?\(\)|cutlass::arch::fence_view_async_shared\(\)",
    "a named barrier": r"cutlass::arch::NamedBarrier::sync\(|barrier_sync\(|sync_of<|arrive_of<",
    "probabilities, shared": r"share_probabilities\(|rows\.(?:leave|publish)\(",
    "output rows": r"store_row(?:_by_lines<[^>]*>)?\(|Output::(?:write_\w+|merge)\(",
    "a piece": r"store_partial_row<[^>]*>\(|merges\.(?:arrive|find_share)\(",
}

_PLACES = re.compile(rf"( +)(?:if \([^;]*?\) )?(?:{'|'.join(POINTS.values())})")
_STATEMENT_ENDS = (";", "{", "}")


def expand(text: str) -> str:
    """The kernel with the Hopper headers' text in place of their first inclusion."""
    seen: set[str] = set()

    def header(include: re.Match[str]) -> str:
        if include[1] in seen:
            return ""
        seen.add(include[1])
        content = (_HEADERS / include[1]).read_text().replace("#pragma once\n", "")
        return _OWN_HEADER.sub(header, content)

    return _OWN_HEADER.sub(header, text)


def places(text: str) -> dict[int, str]:
    """Lines (from 0) of a kernel before which a delay goes, with their indentation."""
    found = {}
    before = ""  # the last line that is code
    for number, line in enumerate(text.split("\n")):
        code = line.partition("//")[0].rstrip()
        if before.endswith(_STATEMENT_ENDS) and (match := _PLACES.match(line)):
            found[number] = match[1]
        before = code or before
    return found


def with_delays(text: str) -> str:
    """The kernel with a numbered `random_delay` at every place."""
    at = places(text)
    lines = []
    for number, line in enumerate(text.split("\n")):
        if number in at:
            lines.append(f"{at[number]}random_delay({number});")
        lines.append(line)
    first = "#include <cute_attn/hopper/"
    return "\n".join(lines).replace(first, INCLUDE + first, 1)
