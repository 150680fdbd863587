"""Listing, checking and pruning a cache directory, also beside processes that use it."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from cute_attn.runtime import CompileRequest, build_kernel, default_toolchain, forget_kernels
from cute_attn.runtime.cache import DiskCache
from cute_attn.runtime.cache_upkeep import (
    Entry,
    beyond,
    damage,
    entries,
    leftovers,
    outdated,
    remove,
    remove_leftover,
)

pytestmark = pytest.mark.usefixtures("compiler")
DAY = 86400.0


@pytest.fixture
def requests_(scale_source: str) -> list[CompileRequest]:
    return [CompileRequest(scale_source, "scale", arch) for arch in ("sm_80", "sm_86", "sm_90a")]


@pytest.fixture
def filled(requests_: list[CompileRequest], cache_dir: Path) -> Path:
    for request in requests_:
        build_kernel(request)
    forget_kernels()
    return cache_dir


def use_at(entry: Entry, seconds: float) -> None:
    os.utime(entry.path / "meta.json", (seconds, seconds))


def only(cache_dir: Path, arch: str = "sm_80") -> Entry:
    (entry,) = (entry for entry in entries(cache_dir) if entry.arch == arch)
    return entry


def test_entries_say_what_they_are(filled: Path) -> None:
    found = entries(filled)
    assert {entry.arch for entry in found} == {"sm_80", "sm_86", "sm_90a"}
    for entry in found:
        assert (entry.name, entry.toolchain) == ("scale", default_toolchain())
        assert entry.num_bytes == sum(file.stat().st_size for file in entry.path.iterdir())
        assert abs(entry.created - time.time()) < 120
        assert damage(entry) is None
    assert sum(entry.num_bytes for entry in found) == DiskCache(filled).usage()[1]


def test_no_directory_is_an_empty_cache(tmp_path: Path) -> None:
    assert entries(tmp_path / "none") == [] == leftovers(tmp_path / "none")


def test_a_look_up_is_a_use(filled: Path, requests_: list[CompileRequest]) -> None:
    for days, entry in enumerate(entries(filled), 1):
        use_at(entry, time.time() - days * DAY)
    before = entries(filled)
    least = before[0]
    build_kernel(next(r for r in requests_ if r.arch == least.arch))
    after = entries(filled)
    assert after[-1].path == least.path and [e.path for e in after[:2]] == [
        e.path for e in before[1:]
    ]
    assert after[-1].created == least.created


def test_a_carried_cache_is_not_touched(
    filled: Path,
    requests_: list[CompileRequest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    baked = filled.rename(tmp_path / "baked")
    use_at(only(baked), 1e9)
    monkeypatch.setenv("CUTE_ATTN_CACHE_PATH", str(baked))
    assert build_kernel(requests_[0]).from_cache
    assert only(baked).used == 1e9


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("kernel.cubin", b"cut", "3 bytes"),
        ("kernel.cubin", None, "kernel.cubin"),
        ("kernel.cu", b"int x;", "kernel.cu"),
        ("kernel.cu", None, "kernel.cu"),
        ("meta.json", b"{", "meta.json"),
        ("meta.json", b"{}", "meta.json"),
        ("meta.json", None, "meta.json"),
    ],
)
def test_damage_is_found(filled: Path, file: str, content: bytes | None, words: str) -> None:
    path = only(filled).path / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    problem = damage(only(filled))
    assert problem is not None and words in problem
    assert sum(damage(entry) is not None for entry in entries(filled)) == 1


def test_a_flipped_bit_and_a_wrong_place_are_damage(filled: Path) -> None:
    cubin = only(filled).path / "kernel.cubin"
    data = bytearray(cubin.read_bytes())
    data[len(data) // 2] ^= 1
    cubin.write_bytes(data)
    assert "sha256" in str(damage(only(filled)))
    moved = only(filled, "sm_86")
    moved.path.rename(moved.path.with_name("0" * 64))
    assert moved.key in str(damage(only(filled, "sm_86")))


def test_an_entry_that_goes_meanwhile_is_not_damaged(filled: Path) -> None:
    entry = only(filled)
    assert remove(filled, [entry]) == [entry]
    assert damage(entry) is None
    assert remove(filled, [entry]) == []


def test_outdated_are_other_compilers_and_other_headers(
    scale_source: str, cache_dir: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "own.hpp").write_text("// one\n")
    source = '#include "own.hpp"\n' + scale_source
    build_kernel(CompileRequest(source, "scale", "sm_80", (own,)))
    entry, here = only(cache_dir), (default_toolchain(),)
    assert outdated(entry, (own,), here) is None
    assert outdated(entry, (own,), ()) is None
    other = dataclasses.replace(default_toolchain(), nvrtc="1.2.3")
    assert "not installed" in str(outdated(entry, (own,), (other,)))
    assert outdated(entry, (tmp_path,), here) is None, "its headers are not ours to judge"
    (own / "own.hpp").write_text("// two\n")
    assert "headers" in str(outdated(entry, (own,), here))


def test_the_least_recently_used_go_first(filled: Path) -> None:
    for days, entry in enumerate(entries(filled), 1):
        use_at(entry, time.time() - days * DAY)
    found = entries(filled)
    total = sum(entry.num_bytes for entry in found)
    assert beyond(found, total) == []
    assert beyond(found, total - 1) == found[:1]
    assert beyond(found, found[-1].num_bytes) == found[:2]
    assert beyond(found, 0) == found


def test_what_is_being_compiled_stays(filled: Path) -> None:
    entry = only(filled)
    held = FileLock(filled / "v1/locks" / f"{entry.key}.lock")
    with held:
        assert remove(filled, [entry]) == []
    assert entry.path.is_dir()
    assert remove(filled, [entry]) == [entry]
    assert not entry.path.exists() and not list((filled / "v1/tmp").iterdir())


def test_leftovers_are_what_nobody_can_be_at(filled: Path) -> None:
    root, old = filled / "v1", time.time() - 2 * DAY
    (root / "quarantine").mkdir()
    (root / "quarantine/bad").mkdir()
    (root / "quarantine/bad/kernel.cubin").write_bytes(b"12345")
    for name, seconds in (("fresh", time.time()), ("dead", old)):
        (root / "tmp" / name).mkdir()
        os.utime(root / "tmp" / name, (seconds, seconds))
    for path in (root / "locks").iterdir():
        os.utime(path, (old, old))
    (root / "locks/new.lock").touch()
    found = leftovers(filled)
    assert [x.path.name for x in found if x.path.parent.name == "quarantine"] == ["bad"]
    assert [x.num_bytes for x in found if x.path.name == "bad"] == [5]
    assert [x.path.name for x in found if x.path.parent.name == "tmp"] == ["dead"]
    locks = [x for x in found if x.path.parent.name == "locks"]
    assert len(locks) == 3 and "new.lock" not in {x.path.name for x in locks}
    with FileLock(locks[0].path):
        assert [remove_leftover(x) for x in locks] == [False, True, True]
    assert all(remove_leftover(x) for x in found if x not in locks)
    assert not remove_leftover(found[0])
    assert len(entries(filled)) == 3


READER = """
import logging, sys, time
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
from cute_attn.runtime import CompileRequest, build_kernel, forget_kernels
request = CompileRequest(sys.argv[1], "scale", "sm_80")
end = time.time() + 3
while time.time() < end:
    forget_kernels()
    build_kernel(request)
print("done")
"""


def test_pruning_beside_readers_disturbs_nobody(
    filled: Path, scale_source: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They find the kernel or compile it; never half of one."""
    command = [sys.executable, "-c", READER, scale_source]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    removed = 0
    with caplog.at_level(logging.WARNING):
        while any(reader.poll() is None for reader in readers):
            removed += len(remove(filled, entries(filled)))
            time.sleep(0.001)
    assert [reader.communicate()[0] for reader in readers] == ["done\n"] * 2
    assert removed > 3 and not (filled / "v1/quarantine").exists()
    assert not caplog.records


def test_meta_records_what_upkeep_needs(filled: Path) -> None:
    meta = json.loads((only(filled).path / "meta.json").read_text())
    assert meta["own_headers"] == [] and len(meta["source"]["sha256"]) == 64
