"""docs/export.md names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from cute_attn.codegen.source import INCLUDE_DIR as KERNEL_HEADERS
from cute_attn.export import load_bundle
from cute_attn.export.write import INCLUDE_DIR, SHARED_HEADER

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "export.md").read_text()


def test_names_of_the_page_are_in_the_headers() -> None:
    files = [*INCLUDE_DIR.rglob("*.h*"), KERNEL_HEADERS / SHARED_HEADER]
    text = "".join(file.read_text() for file in files)
    names = set(re.findall(r"`(?:cute_attn_planner::)?((?:cute_attn|CUTE_ATTN)_\w+)", PAGE))
    names |= {"plan_batch", "requests_of", "WorkspaceSizes", "plan_capacity", "derive"}
    assert len(names) > 9
    for name in names - {"cute_attn_planner"}:
        assert re.search(rf"\b{name}\b", text), name
        assert name in PAGE


def test_links_and_files_of_the_page_are_there(bundle_path: Path) -> None:
    for target in re.findall(r"\]\(\.\./([^)#]+)\)", PAGE):
        assert (ROOT / target).exists(), target
    listing = re.findall(r"^    (\S+)  +", PAGE, re.MULTILINE)
    assert listing
    for name in listing:
        places = [bundle_path / name, bundle_path / "include/cute_attn_bundle" / name]
        assert any(place.exists() for place in places), name
    assert load_bundle(bundle_path).manifest.required_cuda in {"12.0", "13.0"}
