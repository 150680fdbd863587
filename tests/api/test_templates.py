"""`register_template`, from outside the package: a template in a folder of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cute_attn import (
    KernelSpec,
    PagedKV,
    Problem,
    RaggedKV,
    Tile,
    UnsupportedSpecError,
    Variant,
    attention_sinks,
    build,
    causal,
    choose,
    full,
    register_template,
    sigmoid_attention,
    sliding_window,
    soft_cap,
    warmup,
)
from cute_attn.api.dispatch import emit
from cute_attn.api.launches import cost_of
from cute_attn.codegen.registered import REGISTERED
from cute_attn.runtime.errors import CompileError

EXAMPLE = Path(__file__).parents[2] / "examples" / "row_per_thread.cu.jinja"
TILE = Tile(q=64, kv=32, stages=1, threads=64)
HOOKS = ("mask", "logits", "row_state", "output")
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What a test registers ends with it."""
    before = dict(REGISTERED)
    yield
    REGISTERED.clear()
    REGISTERED.update(before)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """The example's template as a user's own file."""
    path = tmp_path / "mine.cu.jinja"
    path.write_text(EXAMPLE.read_text())
    return path


def register(name: str, template: Path, **options: Any) -> None:
    defaults = {"tiles": {64: TILE}, "archs": ["sm_80", "sm_90"], "loaders": ["ragged", "paged"]}
    register_template(name, template, **{"hooks": HOOKS, **defaults, **options})


def spec(
    name: str,
    variant: Variant | None = None,
    *,
    arch: str = "sm_90a",
    dims: tuple[int, int] = (64, 64),
    page_size: int | None = None,
    dtype: str = "bf16",
) -> KernelSpec:
    problem = Problem(arch, dtype, *dims, 4, variant or causal(), page_size)
    return choose(problem, rows=None, schedule=name)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("page_size", [None, 5])
def test_it_compiles_with_every_hook(template: Path, arch: str, page_size: int | None) -> None:
    register("everything", template)
    scaled = Variant("scaled", output=lambda out, b, h, q, d: out * d)
    variant = causal() & soft_cap() & sliding_window() & attention_sinks() & scaled
    own = spec("everything", variant, arch=arch, page_size=page_size)
    assert own.arch == arch.removesuffix("a") and own.tile == TILE and not own.fuses_merge
    kernel = build(own)
    assert kernel.lint() == [] and kernel.name.startswith("everything_bf16_d64_")
    assert ("page_table" in kernel.source) == (page_size is not None)
    plain = emit(spec("everything", full(), arch=arch)).text
    assert "variant_" not in plain and "finish" not in plain


def test_it_serves_a_batch(fake_gpu: Any, template: Path) -> None:
    """Its own kernel, planned with its tile, and the merge kernel for what was split."""
    register("serves", template)
    batch = fake_gpu.batch(8, 2, 64, variant=causal() & attention_sinks(), schedule="serves")
    sink = torch.zeros(8)
    batch.plan([0, 10], RaggedKV([0, 8000]), tensors={"sink": sink})
    assert batch.last_plan.num_split_tiles > 0
    q, k = (torch.zeros(n, h, 64, dtype=BF16) for n, h in ((10, 8), (8000, 2)))
    out, lse = batch.run(q, k, k, return_lse=True)
    attend, merge = fake_gpu.launches
    assert attend.name.startswith("serves_bf16_d64_ragged_g4_causal_sinks_sm_90")
    assert merge.name.startswith("merge_bf16_d64_q64_g4_finish_")
    assert attend.grid == batch.last_plan.layout.num_blocks == 4  # an SM has one block
    for name, value in {
        "q": q.data_ptr(), "k": k.data_ptr(), "v": k.data_ptr(), "out": out.data_ptr(),
        "lse": lse.data_ptr(), "sink": sink.data_ptr(), "k_token_stride": 128,
    }.items():  # fmt: skip
        assert attend.params[name] == value, name
    assert batch.explain() and batch.workspace_size() > 0
    (kernel, _) = batch.kernels
    assert kernel.spec is not None and kernel.spec.schedule == "serves"


def test_pages_and_batch_invariance(fake_gpu: Any, template: Path) -> None:
    register("pages", template)
    batch = fake_gpu.batch(8, 2, 64, schedule="pages", batch_invariant=True)
    batch.plan([0, 1], PagedKV([0, 3], [2, 1, 0], [4], 5))
    batch.run(torch.zeros(1, 8, 64, dtype=BF16), torch.zeros(3, 2, 5, 2, 64, dtype=BF16))
    params = fake_gpu.launches[0].params
    assert params["page_size"] == 5 and params["num_pages"] == 3 and params["page_table"] != 0


def test_keys_and_values_by_tensor_maps(fake_gpu: Any, tmp_path: Path) -> None:
    path = tmp_path / "maps.cu.jinja"
    path.write_text("// {{ name }}\n#include <cute/arch/copy_sm90_desc.hpp>\n"
                    "using Element = unsigned short;\n{{ params_struct }}\n"
                    'extern "C" __global__ void {{ name }}(const __grid_constant__ Params p) {}\n'
                    )  # fmt: skip
    register("maps", path, archs=["sm_90a"], tensor_maps=True, hooks=["mask"])
    own = spec("maps", page_size=16)
    assert own.arch == "sm_90a"
    names = [field.name for field in emit(own).params.fields]
    assert {"k_map", "v_map", "box_rows"} <= set(names) and "k_token_stride" not in names
    assert build(own).lint() == []
    batch = fake_gpu.batch(8, 2, 64, schedule="maps")
    batch.plan([0, 1], PagedKV([0, 3], [2, 1, 0], [4], 16))
    batch.run(torch.zeros(1, 8, 64, dtype=BF16), torch.zeros(3, 2, 16, 2, 64, dtype=BF16))
    params = fake_gpu.launches[0].params
    assert params["box_rows"] == 16 and any(params["k_map"])
    with pytest.raises(UnsupportedSpecError, match="page_size is 8; tensor maps take multiples"):
        spec("maps", page_size=8)


def test_own_headers_and_values(tmp_path: Path, template: Path) -> None:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "mine.hpp").write_text("constexpr int kMine = 3;\n")
    template.write_text("#include <mine.hpp>\nstatic_assert(kMine == {{ three }});\n"
                        + template.read_text())  # fmt: skip
    register(
        "headers",
        template,
        include_dirs=[tmp_path / "headers"],
        values=lambda spec: {"three": spec.tile.q // 21},
        smem_bytes=lambda spec: 1024 * spec.tile.stages,
    )
    own = spec("headers")
    assert build(own).lint() == [] and emit(own).smem_bytes == 1024
    (compiled,) = warmup([own], jobs=1)
    assert compiled.name == own.name


def test_costs_are_those_of_another_schedule(template: Path) -> None:
    register("as_tile", template)
    register("as_decode", template, costs_like="ampere_decode")
    tile, decode = (cost_of(spec(name)) for name in ("as_tile", "as_decode"))
    assert tile != decode


def test_what_it_does_not_serve(template: Path) -> None:
    def refused(message: str, own: str, *args: Any, **kwargs: Any) -> None:
        with pytest.raises(UnsupportedSpecError, match=message):
            spec(own, *args, **kwargs)

    register("plain", template, hooks=(), loaders=["ragged"])
    refused(r"causal' has a mask hook; plain was registered with hooks=\(\)", "plain")
    refused("loader is 'paged'; plain was registered for ragged", "plain", full(), page_size=16)
    refused(r"is \(80, 80\); plain was registered for \(64, 64\)", "plain", full(), dims=(80, 80))
    refused("arch is 'sm_86'; plain was registered for sm_80, sm_90", "plain", full(), arch="sm_86")
    refused("dtype is 'fp8'", "plain", full(), dtype="fp8")
    register("hooked", template)
    refused("'sigmoid' has no softmax; hooked was registered with softmax_off=False", "hooked",
            sigmoid_attention(4))  # fmt: skip
    register("large", template, smem_bytes=1 << 20)
    refused("1048576 bytes of shared memory; a block has 166912", "large", arch="sm_80")
    register("picky", template, supports=lambda spec: [f"group is {spec.group}; not mine"])
    refused("group is 4; not mine", "picky")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"schedule": "hopper_tile"}, ValueError, "is 'hopper_tile'; there is one of this name"),
        ({"schedule": "my kernel"}, ValueError, "'my kernel'; it takes a C identifier"),
        ({"template": "nowhere.jinja"}, ValueError, "template is 'nowhere.jinja', which is no"),
        ({"archs": ["sm_75"]}, ValueError, "archs is 'sm_75'; it takes 'sm_80' or"),
        ({"archs": "sm_80"}, TypeError, "archs is 'sm_80'; it takes a sequence"),
        ({"archs": []}, ValueError, r"archs is \[\].* at least one each"),
        ({"loaders": ["gather"]}, ValueError, "loaders is 'gather'; it takes 'ragged' or 'paged'"),
        ({"hooks": ["scores"]}, ValueError, "hooks is 'scores'; it takes 'mask' or"),
        ({"tiles": {}}, ValueError, "tiles is empty"),
        ({"tiles": {64: 3}}, TypeError, r"tiles\[64\] is a int; it takes a Tile"),
        ({"tiles": {64: Tile(0, 32, 1, 64)}}, ValueError, r"tiles\[64\]\.q"),
        ({"tiles": {64: Tile(64, 32, 1, 2048)}}, ValueError, "threads is 2048; a block has up"),
        ({"tensor_maps": True}, ValueError, "archs has 'sm_80', which has no tensor maps"),
        ({"costs_like": "mine"}, ValueError, "costs_like is 'mine'; it takes 'hopper_tile' or"),
    ],
)
def test_bad_arguments(
    template: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {
        "schedule": "bad", "template": template, "tiles": {64: TILE}, "archs": ["sm_80"],
    }  # fmt: skip
    with pytest.raises(error, match=message):
        register_template(**{**arguments, **change})
    assert "bad" not in REGISTERED


def test_errors_of_templates_show_their_place(tmp_path: Path, fake_gpu: Any) -> None:
    path = tmp_path / "wrong.cu.jinja"
    path.write_text("// {{ name }}\n{% if %}\n")
    register("syntax", path)
    with pytest.raises(ValueError, match=r"wrong\.cu\.jinja, line 2: "):
        emit(spec("syntax"))
    path = tmp_path / "unknown.cu.jinja"
    path.write_text("// {{ nam }}\n")
    register("unknown", path)
    with pytest.raises(ValueError, match=r"unknown\.cu\.jinja: 'nam' is undefined"):
        emit(spec("unknown"))
    path = tmp_path / "cpp.cu.jinja"
    path.write_text('extern "C" __global__ void {{ name }}() { nothing(); }\n')
    register("cpp", path)
    with pytest.raises(CompileError, match='identifier "nothing" is undefined'):
        build(spec("cpp"))
    with pytest.raises(ValueError, match="schedule is 'nobodys'; it takes 'hopper_tile' or"):
        fake_gpu.batch(8, 2, 64).__class__(8, 2, 64, schedule="nobodys", device="cpu")
