"""The manifest: its schema, strictness in reading, and the layout of parameters."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cute_attn.api import dispatch
from cute_attn.export import BundleError
from cute_attn.export.codec import to_json
from cute_attn.export.manifest import dump, parse, schema
from cute_attn.export.problems import cells_of
from cute_attn.export.write import SCHEMA
from tests.export.conftest import PROBLEMS


@pytest.fixture(scope="module")
def data(bundle_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle_path / "manifest.json").read_bytes())
    return found


def test_the_schema_in_the_repository_is_that_of_the_code() -> None:
    assert SCHEMA.read_text() == json.dumps(schema(), indent=1) + "\n"
    jsonschema.Draft202012Validator.check_schema(schema())


def test_a_manifest_keeps_the_schema(data: dict[str, Any]) -> None:
    jsonschema.validate(data, schema())


def test_what_is_written_is_read_again(bundle_path: Path) -> None:
    text = (bundle_path / "manifest.json").read_bytes()
    assert dump(parse(text)) == text


def without_block(data: dict[str, Any]) -> None:
    del data["kernels"][0]["block"]


def with_a_word_for_a_number(data: dict[str, Any]) -> None:
    data["kernels"][0]["block"] = "128"


def with_true_for_a_number(data: dict[str, Any]) -> None:
    data["kernels"][0]["smem_bytes"] = True


def with_a_key_more(data: dict[str, Any]) -> None:
    data["workspace"]["colour"] = 1


def without_files(data: dict[str, Any]) -> None:
    data["files"] = None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_block, r"kernels\[0\] lacks 'block'"),
        (with_a_word_for_a_number, r"kernels\[0\]\.block is '128'; .* integer"),
        (with_true_for_a_number, r"kernels\[0\]\.smem_bytes is True"),
        (with_a_key_more, "workspace has 'colour', which is unknown"),
        (without_files, "files is None; .* array"),
    ],
)
def test_what_breaks_the_schema_is_refused(
    data: dict[str, Any], change: Callable[[dict[str, Any]], None], words: str
) -> None:
    broken = json.loads(json.dumps(data))
    change(broken)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema())
    with pytest.raises(BundleError, match=words):
        parse(json.dumps(broken).encode())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("format", "zip", "no format"),
        ("abi_version", 2, "ABI version 2; this version of cute_attn reads 1"),
    ],
)
def test_another_format_is_refused(data: dict[str, Any], key: str, value: Any, words: str) -> None:
    with pytest.raises(BundleError, match=words):
        parse(json.dumps({**data, key: value}).encode())


def test_names_that_lead_nowhere_are_refused(data: dict[str, Any]) -> None:
    for keys in (("problems", 0, "choices", 0, "kernel"), ("kernels", 0, "cubin")):
        broken = place = json.loads(json.dumps(data))
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = "elsewhere"
        with pytest.raises(BundleError, match="elsewhere, which is not there"):
            parse(json.dumps(broken).encode())


def test_parameters_are_where_the_host_packs_them(bundle_path: Path) -> None:
    manifest = parse((bundle_path / "manifest.json").read_bytes())
    for problem in PROBLEMS:
        for spec in dispatch.all_specs(problem):
            params = dispatch.emit(spec).params
            kernel = manifest.by_name[spec.name]
            struct = kernel.parameters
            assert (struct.bytes, struct.alignment) == (params.size, params.alignment)
            assert [field.name for field in struct.fields] == list(params.offsets)
            for field in struct.fields:
                own = getattr(params.structure, field.name)
                assert (field.offset, field.bytes) == (own.offset, own.size)
            assert ctypes.sizeof(params.structure) == struct.bytes


def test_choices_are_those_of_a_batch(bundle_path: Path) -> None:
    manifest = parse((bundle_path / "manifest.json").read_bytes())
    for asked, entry in zip(PROBLEMS, manifest.problems, strict=True):
        assert len(cells_of(asked)) == len(entry.choices)
        for rows in (1, 4, 8, 9, 16, 17, 64, 65, 100, 5000):
            for tiles in (0, 1, 2, 4, 5, 50):
                for long in (False, True):
                    wanted = dispatch.choose(asked, rows=rows, tiles_per_sm=tiles, long=long)
                    found = next(
                        c.kernel
                        for c in entry.choices
                        if c.long == long
                        and (c.most_rows is None or rows <= c.most_rows)
                        and (c.most_tiles_per_sm is None or tiles <= c.most_tiles_per_sm)
                    )
                    assert found == wanted.name


def test_every_number_of_a_kernel_is_there(bundle_path: Path) -> None:
    manifest = parse((bundle_path / "manifest.json").read_bytes())
    for spec in dispatch.all_specs(PROBLEMS[1]):
        generated, kernel = dispatch.emit(spec), manifest.by_name[spec.name]
        assert kernel.block == generated.threads
        assert kernel.smem_bytes == generated.smem_bytes
        assert kernel.blocks_per_sm == spec.tile.blocks_per_sm
        assert kernel.dependent_launch == generated.dependent_launch
        assert kernel.attention is not None
        assert (kernel.attention.tile_q, kernel.attention.tile_kv) == (spec.tile.q, spec.tile.kv)
        assert bool(kernel.attention.tensor_maps) == (spec.schedule == "hopper_tile")
    assert to_json(manifest)["plan"]["listed_rounds"] == 16
