# SPDX-License-Identifier: Apache-2.0
"""Formats with scales of their own, against the code of those who train with them."""

import csv
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from bundled_traces import TRACES

import dlsim
from dlsim.arrays import (
    decode,
    delayed_scales,
    encode_scaled,
    measure_scaled,
    quantize_scaled,
)

# Made by the functions of TransformerEngine 2.20 (quantization.py with a true division, as its
# kernel has; reference_nvfp4.py), run alone.
GOLDEN = Path(__file__).parents[1] / "data" / "scaled" / "transformer_engine.npz"
ELEMENTS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


def _golden(kind: str) -> list[tuple[list[str], np.ndarray]]:
    with np.load(GOLDEN) as data:
        return [(key.split()[1:], data[key]) for key in data.files if key.startswith(kind)]


@pytest.mark.parametrize(("key", "data"), _golden("delayed"), ids=lambda value: str(value)[:40])
def test_delayed_scaling_is_transformer_engines(key: list[str], data: np.ndarray) -> None:
    history, decides, margin, backward = key
    format = f"fp8-delayed:history={history},decides={decides},margin={margin}"
    largest, scales = data
    assert delayed_scales(largest, format, backward=backward == "1") == scales.tolist()


def test_nvfp4_is_transformer_engines() -> None:
    data = {tuple(key): array for key, array in _golden("nvfp4")}
    for kind in "0123":
        found = encode_scaled(data[kind, "values"], "nvfp4")
        np.testing.assert_array_equal(found.scales, data[kind, "scales"])
        np.testing.assert_array_equal(found.codes, data[kind, "codes"])


@pytest.mark.parametrize("element", ELEMENTS)
def test_elements_are_those_of_ml_dtypes(element: str) -> None:
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    found = encode_scaled(values, f"mxfp8:forward={element}")
    exponents = found.scales.astype(int) - 127
    scaled = values * np.exp2(-exponents).astype(np.float32)
    expected = scaled.astype(ELEMENTS[element])
    np.testing.assert_array_equal(found.codes, expected.view(np.uint8))
    np.testing.assert_array_equal(
        found.decode(), expected.astype(np.float32) * np.exp2(exponents).astype(np.float32)
    )


def _samples() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    normal = random.standard_normal((128, 256)).astype(np.float32)
    bits = random.integers(0, 2**32, normal.shape, dtype=np.uint64).astype(np.uint32)
    anything = bits.view(np.float32)
    return {
        "normal": normal,
        "wide": normal * np.exp2(random.integers(-20, 20, (128, 1))).astype(np.float32),
        "any": np.where(np.isfinite(anything), anything, 0).astype(np.float32),
        "powers": np.exp2(random.integers(-126, 127, normal.shape)).astype(np.float32),
        "zeros": np.where(random.random(normal.shape) < 0.9, 0, normal).astype(np.float32),
    }


@pytest.mark.parametrize("rule", ["floor", "even", "up"])
@pytest.mark.parametrize("format", ["mxfp8", "mxfp8:e5m2", "mxfp6-e2m3", "mxfp6-e3m2", "mxfp4"])
def test_blocks_are_those_of_torchao(format: str, rule: str) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    constants = pytest.importorskip("torchao.prototype.mx_formats.constants")
    import torch

    name, _, element = format.partition(":")
    elements = {
        "mxfp8": torch.float8_e5m2 if element else torch.float8_e4m3fn,
        "mxfp6-e2m3": constants.DTYPE_FP6_E2M3,
        "mxfp6-e3m2": constants.DTYPE_FP6_E3M2,
        "mxfp4": torch.float4_e2m1fn_x2,
    }
    mode = {"floor": "FLOOR", "even": "EVEN", "up": "RCEIL"}[rule]
    for values in _samples().values():
        scales, codes = mx.to_mx(
            torch.from_numpy(values), elements[name], 32, mx.ScaleCalculationMode[mode]
        )
        found = encode_scaled(values, f"{name}:rule={rule}" + (",forward=e5m2" if element else ""))
        expected = codes.view(torch.uint8).numpy()
        if name == "mxfp4":
            expected = np.stack([expected & 15, expected >> 4], -1)
        np.testing.assert_array_equal(found.scales, scales.view(torch.uint8).numpy())
        np.testing.assert_array_equal(found.codes, expected.reshape(values.shape))


@pytest.mark.parametrize("shape", [(128, 256), (300, 130), (1, 5)])
@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_square_blocks_are_those_of_transformer_engine(element: str, shape: tuple) -> None:
    """The rule of its Float8BlockScaling for weights, written with NumPy."""
    random = np.random.default_rng(5)
    values = random.standard_normal(shape) * np.exp2(random.integers(-60, 20, shape))
    values = values.astype(np.float32)
    values[:128, 128:] = 0
    rows, columns = (-(-length // 128) for length in shape)
    padded = np.zeros((rows * 128, columns * 128), np.float32)
    padded[: shape[0], : shape[1]] = values
    tiles = padded.reshape(rows, 128, columns, 128)
    largest = np.abs(tiles).max(axis=(1, 3))
    limit = np.float32(ml_dtypes.finfo(ELEMENTS[element]).max)
    with np.errstate(divide="ignore"):
        scales = np.where(largest == 0, np.float32(1), limit / largest)
    scales = (scales.view(np.uint32) & 0xFF800000).view(np.float32)  # a power of two
    scaled = np.clip(tiles * scales[:, None, :, None], -limit, limit)
    codes = scaled.astype(ELEMENTS[element]).view(np.uint8).reshape(padded.shape)
    found = encode_scaled(values, f"fp8-block:forward={element}", axis=None)
    np.testing.assert_array_equal(found.codes, codes[: shape[0], : shape[1]])
    np.testing.assert_array_equal(found.scales, scales)
    decoded = codes.view(ELEMENTS[element]).astype(np.float32).reshape(tiles.shape)
    decoded = (decoded / scales[:, None, :, None]).reshape(padded.shape)
    np.testing.assert_array_equal(found.decode(), decoded[: shape[0], : shape[1]])


def test_fp8_scales_are_those_of_torchao() -> None:
    utils = pytest.importorskip("torchao.float8.float8_utils")
    config = pytest.importorskip("torchao.float8.config")
    import torch

    for values in _samples().values():
        tensor = torch.from_numpy(values)
        for backward, element in ((False, torch.float8_e4m3fn), (True, torch.float8_e5m2)):
            scale = utils.tensor_to_scale(tensor, element)
            codes = utils.to_fp8_saturated(tensor * scale, element).view(torch.uint8).numpy()
            found = encode_scaled(values, "fp8-current", backward=backward)
            assert found.scales.item() == scale.item()
            np.testing.assert_array_equal(found.codes, codes)
        for axis in (-1, 0):
            scale = utils.tensor_to_scale(
                tensor,
                torch.float8_e4m3fn,
                scaling_granularity=config.ScalingGranularity.AXISWISE,
                axiswise_dim=axis,
                round_scales_to_power_of_2=True,
            )
            codes = utils.to_fp8_saturated(tensor * scale, torch.float8_e4m3fn)
            found = encode_scaled(values, "fp8-rowwise", axis=axis)
            np.testing.assert_array_equal(found.scales.ravel(), scale.numpy().ravel())
            np.testing.assert_array_equal(found.codes, codes.view(torch.uint8).numpy())


def test_arrays_of_any_shape_and_kind() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(2).standard_normal((3, 5, 40)).astype(np.float32)
    found = encode_scaled(values, "mxfp8")
    assert found.codes.shape == values.shape
    assert found.scales.shape == (15, 2)
    assert encode_scaled(values, "mxfp8", axis=0).scales.shape == (1, 40)
    result = quantize_scaled(torch.from_numpy(values), "mxfp8")
    np.testing.assert_array_equal(result.numpy(), found.decode())
    np.testing.assert_array_equal(quantize_scaled(values[0, 0], "nvfp4").shape, (40,))
    assert quantize_scaled(np.empty((0, 4), np.float32), "mxfp4").shape == (0, 4)
    given = encode_scaled(values, "fp8-delayed", scale=4.0)
    np.testing.assert_array_equal(decode(given.codes, "fp8-e4m3") / 4, given.decode())
    lost = measure_scaled(values, "mxfp4")
    assert 0.005 < lost["stats"]["error_sum_of_squares"] / lost["stats"]["sum_of_squares"] < 0.02


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("mxfp9",), "unknown name"),
        (("mxfp8:rule=down",), "bad rule"),
        (("mxfp8", 1), "axis"),
        (("fp8-rowwise", None), "no blocks"),
        (("mxfp8", -1, 2.0), "scale"),
        (("fp8-delayed", -1, -1.0), "scale"),
    ],
)
def test_bad_arguments(arguments: tuple, problem: str) -> None:
    format, axis, scale = (*arguments, -1, None)[:3] if len(arguments) < 3 else arguments
    with pytest.raises(dlsim.UsageError, match=problem):
        encode_scaled(np.ones((2, 3, 4), np.float32), format, axis=axis, scale=scale)


def test_a_replay_has_a_line_for_each_format() -> None:
    trace = TRACES / "t5-stream"
    result = dlsim.replay(trace, formats=["mxfp8", "fp8-delayed"], quiet=True)
    verdict = result.verdict
    assert [one.format for one in verdict.formats] == ["mxfp8", "fp8-delayed"]
    assert verdict.lines[0].startswith("mxfp8        trains: forward values lose")
    assert verdict.lines[-1].startswith("Based on outputs of modules, parameters and gradients")
    found = result["verdict"]["formats"][0]["scaled"]
    assert found["block"] == 32
    step = dlsim.open_trace(trace)[0]
    for tensor in found["tensors"]:
        if tensor["role"] == "grad":
            assert not tensor["judged"]
    weight = next(one for one in found["tensors"] if one["name"] == "head.weight.value")
    values = np.asarray(step.tensors["head.weight.value"])
    lost = measure_scaled(values, "mxfp8")["stats"]
    assert weight["row"]["elements"] == 5 * values.size
    assert lost["elements"] == values.size


def test_parameters_have_square_blocks_in_fp8_block() -> None:
    trace = TRACES / "t5-stream"
    result = dlsim.replay(trace, formats=["fp8-block"], quiet=True)
    found = result["verdict"]["formats"][0]["scaled"]["tensors"]
    for tensor in found:
        assert (tensor["column"] is None) == (tensor["role"] == "value")
    name = "head.weight.value"
    steps = [np.asarray(step.tensors[name]) for step in dlsim.open_trace(trace)]
    errors = [measure_scaled(value, "fp8-block", axis=None)["stats"] for value in steps]
    weight = next(tensor for tensor in found if tensor["name"] == name)
    lost = [stats["error_sum_of_squares"] / stats["sum_of_squares"] for stats in errors]
    assert weight["mean_harm"] == pytest.approx(sum(lost) / len(lost), rel=1e-12)


def test_delayed_scales_need_each_step() -> None:
    with_gaps = dlsim.replay(TRACES / "t5-stream", formats=["fp8-delayed"], quiet=True)
    assert "cannot be judged: its scales follow" in with_gaps.verdict.lines[0]
    each = dlsim.replay(TRACES / "cnn-digits", formats=["fp8-delayed"], quiet=True)
    assert "trains as far as gradients show" in each.verdict.lines[0]


def test_scaled_formats_beside_others_change_nothing_of_them() -> None:
    trace = TRACES / "cnn-digits"
    alone = dlsim.replay(trace, formats=["fp16"], quiet=True)
    together = dlsim.replay(trace, formats=["fp16", "mxfp8"], quiet=True)
    assert together["runs"] == alone["runs"]
    assert together["verdict"]["formats"][0] == alone["verdict"]["formats"][0]
    assert len(together["verdict"]["lines"]) == len(alone["verdict"]["lines"]) + 1


def test_expectations_are_about_scaled_formats_too() -> None:
    expect = ["backward_harm<0.001", "nvfp4: clipped==0", "mxfp?: worst_forward_harm<0.01"]
    found = dlsim.replay(
        TRACES / "t5-stream", formats=["mxfp8", "nvfp4"], expect=expect, quiet=True
    )
    judged = {format.format: format for format in found.verdict.formats}
    harms = {name: verdict.mean_harm for name, verdict in judged.items()}
    checked = [(one.run, one.expression, one.holds) for one in found.expectations]
    assert checked == [
        ("mxfp8", expect[0], True),
        ("mxfp8", expect[2], True),
        ("nvfp4", expect[0], False),
        ("nvfp4", expect[1], found.expectations[3].found == 0),
    ]
    assert [found.expectations[i].found for i in (0, 2)] == [harms["mxfp8"], harms["nvfp4"]]


def test_runs_and_scaled_formats_are_asked_for_their_own_figures(tmp_path: Path) -> None:
    trace, formats = TRACES / "cnn-digits", ["fp16", "mxfp8"]
    expect = ["skipped_steps<=99", "backward_failures==0"]
    found = dlsim.replay(trace, formats=formats, policies="torch", expect=expect, quiet=True)
    assert [one.run for one in found.expectations] == ["fp16/torch", "mxfp8"]
    for wrong in ("mxfp8: skipped_steps<=9", "fp16/*: clipped==0", "mxfp4: clipped==0"):
        with pytest.raises(dlsim.UsageError, match="--expect"):
            dlsim.replay(trace, formats=formats, policies="torch", expect=wrong, quiet=True)
    # What cannot be judged meets nothing.
    gaps = dlsim.replay(
        TRACES / "t5-stream", formats=["fp8-delayed"], expect="clipped>=0", quiet=True
    )
    assert [one.holds for one in gaps.expectations] == [False]
    # A profile has no values: what a configuration asks for is not judged there.
    profile, script = tmp_path / "run.profile", tmp_path / "train.sh"
    dlsim.profile(trace, output=profile, quiet=True)
    script.write_text("pretrain_gpt.py --num-layers 2 --hidden-size 8 --bf16 --fp4-format e2m1\n")
    assert dlsim.replay(trace, config=script, expect="nvfp4: clipped>=0", quiet=True).expectations
    with pytest.raises(dlsim.UsageError, match="no such run"):
        dlsim.replay(profile, config=script, expect="nvfp4: clipped>=0", quiet=True)


def test_a_csv_file_has_the_counters_of_the_result(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    formats = ["fp8-current", "mxfp4"]
    found = dlsim.replay(TRACES / "t5-stream", formats=formats, csv=path, quiet=True)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    axes = {format: {row["axis"] for row in rows if row["format"] == format} for format in formats}
    assert axes == {"fp8-current": {"row"}, "mxfp4": {"row", "column"}}
    for entry in found["verdict"]["formats"]:
        steps = {step["step"] for step in entry["scaled"]["steps"]}
        for tensor in entry["scaled"]["tensors"]:
            for axis in axes[entry["format"]]:
                of = [
                    row
                    for row in rows
                    if (row["format"], row["tensor"], row["axis"])
                    == (entry["format"], tensor["name"], axis)
                ]
                assert {int(row["step"]) for row in of} <= steps
                assert {row["judged"] for row in of} == {str(int(tensor["judged"]))}
                for counter in ("elements", "underflow", "overflow"):
                    assert sum(int(row[counter]) for row in of) == tensor[axis][counter]
    current = [row for row in rows if row["format"] == "fp8-current"]
    assert all(row["min_scale"] == row["max_scale"] for row in current)


def test_a_configuration_names_a_format(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "pretrain_gpt.py --num-layers 2 --hidden-size 8 --bf16 --fp8-format e4m3 "
        "--fp8-recipe mxfp8\n"
    )
    found = dlsim.replay(TRACES / "cnn-digits", config=script, quiet=True).verdict
    assert [one.format for one in found.formats] == ["bf16", "mxfp8:backward=e4m3"]


def test_accelerate_passes_on_what_differs_from_its_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    if not hasattr(dataclasses, "TERecipeKwargs"):
        pytest.skip("an older Accelerate")
    monkeypatch.setattr(dataclasses, "is_transformer_engine_available", lambda: True)
    for value, passed in (("most_recent", {}), ("max", {"amax_compute_algo": "max"})):
        monkeypatch.setenv("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", value)
        assert dataclasses.TERecipeKwargs().to_kwargs() == passed
    # Keys that the questionnaire writes.
    monkeypatch.setenv("ACCELERATE_FP8_AMAX_HISTORY_LENGTH", "8")
    assert dataclasses.TERecipeKwargs().to_kwargs() == {"amax_compute_algo": "max"}


def test_recipes_of_torchao_are_these_formats() -> None:
    config = pytest.importorskip("torchao.float8.config")
    for recipe, sharing, backward, power in (
        ("tensorwise", "tensorwise", "float8_e5m2", False),
        ("rowwise", "axiswise", "float8_e4m3fn", True),
    ):
        made = config.Float8LinearConfig.from_recipe_name(recipe)
        of_input, of_gradient = made.cast_config_input, made.cast_config_grad_output
        assert of_input.scaling_granularity.value == sharing
        assert str(of_input.target_dtype) == "torch.float8_e4m3fn"
        assert str(of_gradient.target_dtype) == f"torch.{backward}"
        assert made.round_scales_to_power_of_2 is power
        assert made.cast_config_weight_for_grad_input == made.cast_config_weight
    mixed = config.Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp")
    assert mixed.cast_config_input_for_grad_weight.scaling_type.value == "disabled"


def test_a_profile_answers_for_the_formats_that_it_was_made_for(tmp_path: Path) -> None:
    profile = tmp_path / "run.profile"
    dlsim.profile(TRACES / "cnn-digits", output=profile, scaled_formats=["mxfp8"], quiet=True)
    result = dlsim.replay(profile, formats=["mxfp8"], quiet=True)
    expected = dlsim.replay(TRACES / "cnn-digits", formats=["mxfp8"], quiet=True)
    assert result["verdict"] == expected["verdict"]
    with pytest.raises(
        dlsim.InputError, match="the profile does not hold nvfp4, expected mxfp8, or a trace"
    ):
        dlsim.replay(profile, formats=["nvfp4"], quiet=True)
