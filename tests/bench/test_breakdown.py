"""A device's time by kind of work."""

import json

import pytest
from typer.testing import CliRunner

from torchcram.bench import breakdown
from torchcram.bench.whole import Size
from torchcram.cli.main import app

SIZE = Size(preset="tiny", slots=8, reads=0.2, tokens=64, vocabulary=32, bf16=False, compile=False)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_read_backward_events", "reads"),
        ("_scan_forward", "working memory"),
        ("_euler_step", "working memory"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma", "attention"),
        ("triton_poi_fused_cumsum_index_put_3", "choosing, listing and moving"),
        ("_find_bars", "choosing, listing and moving"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "products"),
        ("aten::addmm", "products"),
        ("triton_poi_fused_gelu_mul_7", "the rest"),
    ],
)
def test_names_tell_what_a_kernel_is_of(name, kind):
    assert breakdown.kind_of(name) == kind


def test_kinds_add_up_to_a_step():
    rows = list(breakdown.run(SIZE, [16], "cpu", top=2))
    for model in ("cram", "transformer"):
        for what in ("train", "prefill"):
            mine = [row for row in rows if (row["model"], row["what"]) == (model, what)]
            assert sum(row["share"] for row in mine if "kernel" not in row) == pytest.approx(1)
            assert len([row for row in mine if "kernel" in row]) == 2
            assert {"products"} <= {row["kind"] for row in mine}
    reading = {row["model"] for row in rows if row["kind"] == "reads"}
    assert reading == {"cram"}


def test_command(tmp_path):
    words = ["--lengths", "16", "--preset", "tiny", "--tokens", "32", "--device", "cpu"]
    found = CliRunner().invoke(app, ["bench", "breakdown", *words, "--json", str(tmp_path / "b.json")])
    assert found.exit_code == 0, found.output
    data = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    assert data["name"] == "bench-breakdown"
    assert {row["model"] for row in data["rows"]} == {"cram", "transformer"}
