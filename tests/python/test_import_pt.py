# SPDX-License-Identifier: Apache-2.0
"""Import of files of torch.save: same bits, no code run, one line for what is bad."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from import_cases import (
    one_error_line,
    random_gradients,
    read_step,
    replayed,
    run_dlsim,
    same_bits,
    write_step,
)

from dlsim.importers import import_pt

# PyTorch 1.13 loads tensors, whole numbers and text only, and knows no 8-bit types.
IS_OLD = not hasattr(torch, "float8_e4m3fn")


def save(path: Path, tree: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tree, path)
    return path


def test_values_are_those_of_the_source_bit_for_bit(tmp_path: Path) -> None:
    values = random_gradients(1, 7, 5)
    values[0] = [np.nan, np.inf, -np.inf, -0.0, 1e-45]
    tree = {
        "f32.grad": torch.from_numpy(values),
        "f16.grad": torch.from_numpy(values).half(),
        "f64.grad": torch.from_numpy(values).double() / 3,
        "bf16.grad": torch.from_numpy(values).bfloat16(),
        "turned.grad": torch.from_numpy(values).t(),
        "scalar.grad": torch.tensor(2.5),
        "empty.grad": torch.empty(0, 3),
    }
    save(tmp_path / "in" / "grads_7.pt", tree)
    import_pt(tmp_path / "in", tmp_path / "out")
    from safetensors.torch import load_file

    got = load_file(tmp_path / "out" / "step-00000007.safetensors")
    assert sorted(got) == sorted(tree)
    for name, tensor in tree.items():
        assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape
        whole = tensor.contiguous()
        bits = torch.int16 if whole.element_size() == 2 else torch.int32
        if whole.dim() and whole.numel():
            assert torch.equal(got[name].view(bits), whole.view(bits)), name


@pytest.mark.parametrize("output", ["out", "out.profile"])
def test_replays_like_the_same_data_recorded_natively(tmp_path: Path, output: str) -> None:
    for step in (2, 11, 100):
        tensors = {f"layer{i}.grad": random_gradients(step + i, 50, 3) for i in range(3)}
        tensors["x.act_grad"] = random_gradients(step, 40)
        write_step(tmp_path / "native", step, tensors)
        save(tmp_path / "in" / f"{step}.pth", {k: torch.from_numpy(v) for k, v in tensors.items()})
    import_pt(tmp_path / "in", tmp_path / output)
    native, policies = tmp_path / "native", ["torch", "cerebras"]
    if output.endswith(".profile"):
        native, policies = tmp_path / "native.profile", ["torch", "cerebras-2.10"]
        assert run_dlsim("profile", tmp_path / "native", "-o", native).returncode == 0
    options = ["--format", "fp16", "--format", "cb16"]
    for policy in policies:
        options += ["--policy", policy]
    assert replayed(tmp_path / output, *options) == replayed(native, *options)


def test_nested_dicts_and_lists_get_dotted_names_and_key_chooses_a_part(tmp_path: Path) -> None:
    one, two, three = (torch.full((2,), float(i)) for i in (1, 2, 3))
    tree = {"state": {"grads": {"a": {"b": one}, "list": [two, {7: three}]}}, "other": one}
    save(tmp_path / "s1.pt", tree)
    import_pt(tmp_path / "s1.pt", tmp_path / "all")
    import_pt(tmp_path / "s1.pt", tmp_path / "part", key="state.grads")
    assert sorted(read_step(tmp_path / "part", "step-00000001")) == ["a.b", "list.0", "list.1.7"]
    names = read_step(tmp_path / "all", "step-00000001")
    assert sorted(names) == [
        "other",
        *(f"state.grads.{name}" for name in ("a.b", "list.0", "list.1.7")),
    ]


def test_a_lone_tensor_is_named_after_its_file(tmp_path: Path) -> None:
    save(tmp_path / "fc1-grad_000012.pt", torch.ones(3))
    import_pt(tmp_path / "fc1-grad_000012.pt", tmp_path / "out")
    assert list(read_step(tmp_path / "out", "step-00000012")) == ["fc1_grad"]


def test_step_numbers_from_names_files_and_the_option(tmp_path: Path) -> None:
    tree = {"w": torch.ones(1)}
    save(tmp_path / "a" / "run3_step20_final.pt", tree)
    assert import_pt(tmp_path / "a", tmp_path / "o1").first_step == 20
    save(tmp_path / "b" / "x.pt", {**tree, "step": 44})
    assert import_pt(tmp_path / "b", tmp_path / "o3").first_step == 44
    save(tmp_path / "c" / "e10.pt", tree)
    save(tmp_path / "c" / "e9.pt", tree)
    counted = import_pt(tmp_path / "c", tmp_path / "o4", step=5)
    assert (counted.first_step, counted.last_step) == (5, 6)


def test_ranks_and_micro_steps_keep_their_places(tmp_path: Path) -> None:
    for rank in (0, 1):
        for micro in (0, 1):
            values = torch.full((2,), 10.0 * rank + micro)
            save(tmp_path / "in" / f"rank_{rank}" / f"step4_micro{micro}.pt", {"w.grad": values})
    import_pt(tmp_path / "in", tmp_path / "out")
    names = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert names == [
        f"step-00000004.rank-0000{r}.micro-0{m}.safetensors" for r in (0, 1) for m in (0, 1)
    ]
    got = read_step(tmp_path / "out", "step-00000004.rank-00001.micro-01")
    assert got["w.grad"].tolist() == [11.0, 11.0]
    run = replayed(tmp_path / "out", "--format", "fp16", "--policy", "static")
    assert run[0]["summary"]["steps"] == 1


def test_a_loss_scale_is_written_down_and_divided_out(tmp_path: Path) -> None:
    values = random_gradients(3, 100)
    write_step(tmp_path / "native", 1, {"w": values})
    save(tmp_path / "step1.pt", {"w": torch.from_numpy(values * np.float32(1024))})
    import_pt(tmp_path / "step1.pt", tmp_path / "out", grad_scale=1024)
    options = ("--format", "fp16", "--policy", "static")
    assert replayed(tmp_path / "out", *options) == replayed(tmp_path / "native", *options)
    line = one_error_line(
        run_dlsim("import", "pt", tmp_path / "step1.pt", "-o", tmp_path / "o", "--grad-scale", "0"),
        2,
    )
    assert "grad_scale" in line


def test_activation_gradients_by_glob(tmp_path: Path) -> None:
    save(tmp_path / "1.pt", {"h.0": torch.ones(2), "w": torch.ones(2), "z.act_grad": torch.ones(1)})
    import_pt(tmp_path / "1.pt", tmp_path / "out", act_grad="h.*")
    run = replayed(tmp_path / "out", "--format", "fp16", "--policy", "static")[0]
    roles = {tensor["name"]: tensor["role"] for tensor in run["tensors"]}
    assert roles == {"h.0": "act_grad", "w": "grad", "z.act_grad": "act_grad"}


def test_names_with_odd_characters_survive(tmp_path: Path) -> None:
    names = ["a/b c", 'quote"\\', "<script>", "tab\tnew\nline", "\u00e9\u4e2d", "-o", "..", "a,b"]
    save(tmp_path / "1.pt", {name: torch.ones(1) for name in names})
    import_pt(tmp_path / "1.pt", tmp_path / "out")
    assert sorted(read_step(tmp_path / "out", "step-00000001")) == sorted(names)
    assert run_dlsim("info", tmp_path / "out").returncode == 0


class _Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("is_archive", [True, False])
def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path, is_archive: bool) -> None:
    marker = tmp_path / "marker"
    path, options = tmp_path / "step1.pt", {"_use_new_zipfile_serialization": is_archive}
    torch.save({"w": torch.ones(2), "x": _Hostile(marker)}, path, **options)
    line = one_error_line(run_dlsim("import", "pt", path, "-o", tmp_path / "out"), 3)
    assert "refused: it refers to posix.mkdir, expected tensors" in line
    assert not marker.exists() and not (tmp_path / "out").exists()
    torch.load(path, weights_only=False)
    assert marker.exists(), "the file would have been harmless: the test proves nothing"


@pytest.mark.skipif(IS_OLD, reason="needs a newer PyTorch")
def test_what_is_no_gradient_is_left_out_or_metadata(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    tree = {
        "model": model.state_dict(),
        "parameter": model.weight,
        "loss": 0.25,
        "flags": [True, None, 2**40, -7, "text", b"bytes", (1, (2, 3))],
        "size": torch.Size([2, 3]),
        "again": [model.bias, model.bias],
        "sparse": torch.ones(2, 2).to_sparse(),
        "count": torch.arange(3),
    }
    imported = import_pt(save(tmp_path / "step1.pt", tree), tmp_path / "out")
    got = read_step(tmp_path / "out", "step-00000001")
    bias, weight = (p.detach().numpy() for p in (model.bias, model.weight))
    want = {"again.0": bias, "again.1": bias, "model.bias": bias, "model.weight": weight}
    want["parameter"] = weight
    assert sorted(got) == sorted(want)
    assert all(same_bits(got[name], want[name]) for name in want)
    assert len(imported.notes) == 2
    info = run_dlsim("info", tmp_path / "out", "--json").stdout
    assert '"loss":"0.25"' in info.replace('": "', '":"')


def test_views_are_read_as_they_look(tmp_path: Path) -> None:
    base = torch.from_numpy(random_gradients(2, 60))
    tree = {
        "part": base[7:19],
        "steps": base[3::4],
        "turned": base.view(3, 4, 5).permute(2, 0, 1),
        "row": base.view(6, 10)[:, 4],
        "repeated": base[5].expand(4, 2),
        "none": base[10:10],
    }
    save(tmp_path / "step1.pt", tree)
    import_pt(tmp_path / "step1.pt", tmp_path / "out")
    got = read_step(tmp_path / "out", "step-00000001")
    for name, tensor in tree.items():
        assert same_bits(got[name], tensor.contiguous().numpy()), name


@pytest.mark.skipif(IS_OLD, reason="needs a newer PyTorch")
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_floats_become_float32(tmp_path: Path, name: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    tensor = torch.from_numpy(codes).view(getattr(torch, name)).reshape(16, 16)
    import_pt(save(tmp_path / "step1.pt", {"w": tensor}), tmp_path / "out")
    got = read_step(tmp_path / "out", "step-00000001")["w"]
    want = codes.view(getattr(ml_dtypes, name)).astype(np.float32).reshape(16, 16)
    assert got.dtype == np.float32 and np.array_equal(got, want, equal_nan=True)


def test_numbers_of_layers_and_files_of_other_shapes_are_no_steps(tmp_path: Path) -> None:
    for number in (1, 2):
        save(tmp_path / "layers" / f"conv{number}.pt", torch.full((2,), float(number)))
        save(tmp_path / "shapes" / f"x{number}.pt", {"grad": torch.ones(number, 3)})
        save(tmp_path / "steps" / f"x{number}.pt", {"grad": torch.ones(2, 3)})
    save(tmp_path / "layers" / "out.pt", torch.ones(5))
    found = import_pt(tmp_path / "layers", tmp_path / "o1")
    got = read_step(tmp_path / "o1", "step-00000000")
    assert {name: list(values) for name, values in got.items()} == {
        "conv1": [1, 1],
        "conv2": [2, 2],
        "out": [1] * 5,
    }
    assert found.steps == 1 and "count tensors, not steps" in found.notes[0]
    import_pt(tmp_path / "shapes", tmp_path / "o2")
    assert sorted(read_step(tmp_path / "o2", "step-00000000")) == ["x1.grad", "x2.grad"]
    assert import_pt(tmp_path / "steps", tmp_path / "o3").steps == 2
    for number in (1, 2):  # shards of ranks, and batches of other lengths
        for rank in (0, 1):
            tree = {"w.grad": torch.ones(2 + rank), "x.act_grad": torch.ones(number)}
            save(tmp_path / "ranks" / f"rank_{rank}" / f"grads_{number}.pt", tree)
    assert import_pt(tmp_path / "ranks", tmp_path / "o5").last_step == 2
    assert import_pt(tmp_path / "layers", tmp_path / "o4", step=7).last_step == 9  # as was asked


@pytest.mark.skipif(IS_OLD, reason="needs a newer PyTorch")
def test_states_of_optimizers_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    grads = {name: p.grad for name, p in model.named_parameters()}
    path = save(tmp_path / "step1.pt", {"optimizer": state, "grads": grads})
    for key in ("", "optimizer", "optimizer.state"):
        line = one_error_line(
            run_dlsim("import", "pt", path, "-o", tmp_path / "out", "--key", key), 3
        )
        assert "is the state of an optimizer, expected gradients, or --key" in line
    moments = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    by_kind = save(tmp_path / "moments1.pt", {"exp_avg": moments, "exp_avg_sq": moments})
    line = one_error_line(run_dlsim("import", "pt", by_kind, "-o", tmp_path / "out"), 3)
    assert "exp_avg.weight is the state of an optimizer" in line
    import_pt(path, tmp_path / "out", key="grads")
    assert sorted(read_step(tmp_path / "out", "step-00000001")) == ["bias", "weight"]


@pytest.mark.parametrize("ranks", [["rank"], ["rank0"], ["rank0", "rank1"]])
def test_dumps_of_msprobe_have_a_tensor_per_file(tmp_path: Path, ranks: list[str]) -> None:
    """The layout is that of MindStudio's documentation, "Precision Data Collection in PyTorch"."""
    roles = {
        "Module.layer.0.conv.Conv2d.parameters_grad.weight": ("layer.0.conv.weight.grad", "grad"),
        "Module.conv.Conv2d.backward.0.input.0": ("conv.backward.0.input.0.act_grad", "act_grad"),
        "Module.conv.Conv2d.forward.0.output.0": ("conv.forward.0.output.0.act", "act"),
        "Functional.linear.1.backward.output.0": (
            "Functional.linear.1.backward.output.0.act_grad",
            "act_grad",
        ),
    }
    for step in (3, 20):
        for rank in ranks:
            for i, name in enumerate(roles):
                values = torch.full((2, 3), float(step + i))
                save(tmp_path / f"in/step{step}/{rank}/dump_tensor_data/{name}.pt", values)
    found = import_pt(tmp_path / "in", tmp_path / "out")
    assert (found.steps, found.first_step, found.last_step, found.tensors) == (2, 3, 20, 4)
    of_rank = ".rank-00001" if len(ranks) > 1 else ""
    got = read_step(tmp_path / "out", f"step-00000020{of_rank}")
    assert {name: values[0, 0] for name, values in got.items()} == {
        name: 20 + i for i, (name, _) in enumerate(roles.values())
    }
    run = replayed(tmp_path / "out", "--format", "fp16", "--policy", "static")[0]
    assert {t["name"]: t["role"] for t in run["tensors"]} == dict(roles.values())


def test_files_in_a_folder_of_a_step_are_its_tensors(tmp_path: Path) -> None:
    for step in (5, 12):
        for name in ("fc.weight", "fc.bias"):
            save(tmp_path / f"in/step_{step}" / f"{name}.pt", torch.full((2,), float(step)))
    import_pt(tmp_path / "in", tmp_path / "out")
    got = read_step(tmp_path / "out", "step-00000012")
    assert {name: values[0] for name, values in got.items()} == {"fc.weight": 12, "fc.bias": 12}


def _bad_files(directory: Path) -> dict[str, Path]:
    whole = save(directory / "whole1.pt", {"w": torch.ones(1000)}).read_bytes()
    blobs = {
        "empty": b"",
        "text": b"not a pickle\n" * 20,
        "cut": whole[: len(whole) // 2],
        "damaged": whole[:100] + bytes(200) + whole[300:],
        "plain pickle": pickle.dumps({"w": [1.0, 2.0]}),
        "stop": b".",
        "deep": b"\x80\x02" + b"]" * 50 + b"a" * 49 + b".",
    }
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(directory / "script1.pt"))
    assert whole[:2] == b"PK"
    for name, blob in blobs.items():
        (directory / f"{name}1.pt").write_bytes(blob)
    save(directory / "numbers1.pt", {"w": torch.arange(4)})
    save(directory / "nothing1.pt", {})
    huge = torch.ones(1).expand(1 << 20, 1 << 20)
    save(directory / "expanded1.pt", {"w": huge})
    return {p.stem[:-1]: p for p in directory.glob("*.pt") if not p.stem.startswith("whole")}


def test_what_is_bad_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, path in _bad_files(tmp_path / "in").items():
        with pytest.raises(ValueError, match=path.name) as raised:
            import_pt(path, tmp_path / "out")
        assert len(str(raised.value).splitlines()) == 1, name
        assert sorted(p.name for p in tmp_path.iterdir()) == ["in"], name


def test_two_files_of_one_step_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a" / "step_7.pt", {"w": torch.ones(1)})
    save(tmp_path / "a" / "step_07.pt", {"w": torch.ones(1)})
    with pytest.raises(ValueError, match="is step 7, as is"):
        import_pt(tmp_path / "a", tmp_path / "out")


def test_an_existing_output_stays_unless_forced(tmp_path: Path) -> None:
    path = save(tmp_path / "step1.pt", {"w": torch.ones(1)})
    output = tmp_path / "out"
    import_pt(path, output)
    before = (output / "step-00000001.safetensors").read_bytes()
    save(path, {"w": torch.zeros(1)})
    with pytest.raises(ValueError, match="exists already"):
        import_pt(path, output)
    assert (output / "step-00000001.safetensors").read_bytes() == before
    import_pt(path, output, force=True)
    assert read_step(output, "step-00000001")["w"].tolist() == [0.0]
    (output / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="holds more than a trace"):
        import_pt(path, output, force=True)
    assert (output / "thesis.tex").read_text() == "mine"
    before_failure = sorted(p.name for p in tmp_path.iterdir())
    save(path, {})
    (output / "thesis.tex").unlink()
    with pytest.raises(ValueError, match="no tensor"):
        import_pt(path, output, force=True)
    assert read_step(output, "step-00000001")["w"].tolist() == [0.0]
    assert sorted(p.name for p in tmp_path.iterdir()) == before_failure


def test_missing_torch_names_the_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "step1.pt", {"w": torch.ones(1)})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"need PyTorch: pip install torch$"):
        import_pt(path, tmp_path / "out")


def test_inputs_are_left_as_they_are(tmp_path: Path) -> None:
    path = save(tmp_path / "step1.pt", {"w": torch.from_numpy(random_gradients(5, 30))})
    before = path.read_bytes()
    import_pt(path, tmp_path / "out")
    import_pt(path, tmp_path / "out.profile")
    assert path.read_bytes() == before
    assert same_bits(read_step(tmp_path / "out", "step-00000001")["w"], random_gradients(5, 30))
