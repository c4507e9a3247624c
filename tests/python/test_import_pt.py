# SPDX-License-Identifier: Apache-2.0
"""Import of files of torch.save: same bits, no code run, one line for what is bad."""

from __future__ import annotations

import io
import os
import pickle
import sys
import zipfile
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


@pytest.mark.parametrize("output", ["out", "out.dlprof"])
def test_replays_like_the_same_data_recorded_natively(tmp_path: Path, output: str) -> None:
    for step in (2, 11, 100):
        tensors = {f"layer{i}.grad": random_gradients(step + i, 50, 3) for i in range(3)}
        tensors["x.act_grad"] = random_gradients(step, 40)
        write_step(tmp_path / "native", step, tensors)
        save(tmp_path / "in" / f"{step}.pth", {k: torch.from_numpy(v) for k, v in tensors.items()})
    import_pt(tmp_path / "in", tmp_path / output)
    native = tmp_path / "native"
    if output.endswith(".dlprof"):
        native = tmp_path / "native.dlprof"
        assert run_dlsim("profile", tmp_path / "native", "-o", native).returncode == 0
    options = ("--format", "fp16", "--format", "cb16", "--policy", "torch", "--policy", "cerebras")
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


def test_step_numbers_from_names_patterns_files_and_the_option(tmp_path: Path) -> None:
    tree = {"w": torch.ones(1)}
    save(tmp_path / "a" / "run3_step20_final.pt", tree)
    assert import_pt(tmp_path / "a", tmp_path / "o1").first_step == 20
    found = import_pt(tmp_path / "a", tmp_path / "o2", pattern=r"run(?P<step>\d+)")
    assert found.first_step == 3
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


def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = save(tmp_path / "step1.pt", {"w": torch.ones(2), "x": _Hostile(marker)})
    line = one_error_line(run_dlsim("import", "pt", path, "-o", tmp_path / "out"), 3)
    assert "refused: it refers to posix.mkdir" in line
    torch.save(_Hostile(marker), path, _use_new_zipfile_serialization=False)
    line = one_error_line(run_dlsim("import", "pt", path, "-o", tmp_path / "out"), 3)
    assert "PyTorch 1.6 or later" in line
    assert not marker.exists() and not (tmp_path / "out").exists()
    pickle.loads(pickle.dumps(_Hostile(marker)))
    assert marker.exists(), "the file would have been harmless: the test proves nothing"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_all_protocols_and_all_that_stands_beside_tensors(tmp_path: Path, protocol: int) -> None:
    model = torch.nn.Linear(3, 2)
    tree = {
        "model": model.state_dict(),
        "parameter": model.weight,
        "loss": 0.25,
        "flags": [True, None, 2**40, -7, "text", b"bytes", {1, 2}, (1, (2, 3))],
        "long": "x" * 300,
        "number": np.float64(0.5),
        "size": torch.Size([2, 3]),
        "again": [model.bias, model.bias],
        "sparse": torch.ones(2, 2).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    }
    torch.save(tree, tmp_path / "step1.pt", pickle_protocol=protocol)
    imported = import_pt(tmp_path / "step1.pt", tmp_path / "out")
    got = read_step(tmp_path / "out", "step-00000001")
    bias, weight = (p.detach().numpy() for p in (model.bias, model.weight))
    want = {"again.0": bias, "again.1": bias, "model.bias": bias, "model.weight": weight}
    want["parameter"] = weight
    assert sorted(got) == sorted(want)
    assert all(same_bits(got[name], want[name]) for name in want)
    assert sum("expected a dense tensor" in note for note in imported.notes) == 3
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


def _archive(pickled: bytes, storage: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/data/0", storage)
    return file.getvalue()


def _tensor_pickle(elements: int, offset: int, shape: tuple[int, ...], strides: object) -> bytes:
    """The pickle of {"w": tensor} with what is given, however wrong."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> object:
            if isinstance(value, torch.Size):
                return ("storage", torch.FloatStorage, "0", "cpu", elements)
            return None

    class Tensor:
        def __reduce__(self) -> tuple[object, ...]:
            from torch._utils import _rebuild_tensor_v2

            size = torch.Size([1])
            return _rebuild_tensor_v2, (size, offset, shape, strides, False, {})

    file = io.BytesIO()
    Pickler(file, 2).dump({"w": Tensor()})
    return file.getvalue()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_floats_of_newer_torch_become_float32(tmp_path: Path, name: str) -> None:
    """The pickle is that of torch 2: types without a storage class are named with the tensor."""

    def text(word: str) -> bytes:
        return b"X" + len(word).to_bytes(4, "little") + word.encode()

    storage = b"(" + text("storage") + b"ctorch.storage\nUntypedStorage\n"
    storage += text("0") + text("cpu") + b"M\x00\x01tQ"
    rebuilt = (
        b"ctorch._utils\n_rebuild_tensor_v3\n(" + storage + b"K\x00K\x10K\x10\x86K\x10K\x01\x86"
    )
    rebuilt += b"\x89}" + b"ctorch\n" + name.encode() + b"\ntR"
    pickled = b"\x80\x02}" + text("w") + rebuilt + b"s."
    codes = np.arange(256, dtype=np.uint8)
    (tmp_path / "step1.pt").write_bytes(_archive(pickled, codes.tobytes()))
    import_pt(tmp_path / "step1.pt", tmp_path / "out")
    got = read_step(tmp_path / "out", "step-00000001")["w"]
    want = codes.view(getattr(ml_dtypes, name)).astype(np.float32).reshape(16, 16)
    assert got.dtype == np.float32 and np.array_equal(got, want, equal_nan=True)


def test_views_beyond_their_storage_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "step1.pt"
    good = (10, 2, (2, 4), (4, 1))
    path.write_bytes(_archive(_tensor_pickle(*good), bytes(40)))
    assert import_pt(path, tmp_path / "out").steps == 1
    bad: list[tuple[int, int, tuple[int, ...], object]] = [
        (11, 2, (2, 4), (4, 1)),
        (10**12, 2, (2, 4), (4, 1)),
        (-10, 2, (2, 4), (4, 1)),
        (10, 3, (2, 4), (4, 1)),
        (10, -1, (2, 4), (4, 1)),
        (10, 0, (2, 4), (-4, 1)),
        (10, 0, (-2, 4), (4, 1)),
        (10, 0, (2, 4), (4,)),
        (10, 0, (2**40, 2**40), (0, 0)),
        (10, 0, (2, 4), (2**62, 1)),
        (10, 0, (2, 4), ("4", 1)),
        (10, 0, (2, 4), None),
        (10, 0, (1,) * 40, (1,) * 40),
    ]
    for case in bad:
        path.write_bytes(_archive(_tensor_pickle(*case), bytes(40)))
        with pytest.raises(ValueError, match=r"step1\.pt") as raised:
            import_pt(path, tmp_path / "no")
        assert len(str(raised.value).splitlines()) == 1, case


@pytest.mark.parametrize(
    "shape",
    [(2**32, 2**32, 0), (0, 2**40, 2**40), (2**62, 0, 2**62), (2**28,), (2**14, 2**14), (1, 2**26)],
)
def test_a_small_file_makes_no_large_array(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "step1.pt"
    path.write_bytes(_archive(_tensor_pickle(10, 0, shape, (0,) * len(shape)), bytes(40)))
    line = one_error_line(run_dlsim("import", "pt", path, "-o", tmp_path / "out"), 3)
    assert "tensors far larger than the file" in line
    small = _tensor_pickle(10, 0, (0, 2**20), (0, 0))
    path.write_bytes(_archive(small, bytes(40)))
    assert import_pt(path, tmp_path / "out").steps == 1


def test_torchscript_is_refused(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "step1.pt"))
    line = one_error_line(run_dlsim("import", "pt", tmp_path / "step1.pt", "-o", tmp_path / "o"), 3)
    assert "TorchScript" in line


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
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/data/0", bytes(1 << 22))
    blobs["bomb"] = bomb.getvalue()
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


def test_torch_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.from_numpy(random_gradients(4, 100))
    path = save(tmp_path / "step1.pt", {"w": values, "b": values.bfloat16()})
    monkeypatch.setitem(sys.modules, "torch", None)
    import_pt(path, tmp_path / "out")
    got = read_step(tmp_path / "out", "step-00000001")
    assert same_bits(got["w"], values.numpy())
    assert same_bits(got["b"], values.bfloat16().float().numpy())


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    for step in range(3):
        save(tmp_path / "in" / f"{step}.pt", {"w": torch.ones(1)})
    shown = _Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr("dlsim.importers._progress._SECONDS_BETWEEN", 0)
    import_pt(tmp_path / "in", tmp_path / "out")
    text = shown.getvalue()
    assert ("2 of 3 files" in text and text.endswith("\r\x1b[K")) if terminal else text == ""


def test_inputs_are_left_as_they_are(tmp_path: Path) -> None:
    path = save(tmp_path / "step1.pt", {"w": torch.from_numpy(random_gradients(5, 30))})
    before = path.read_bytes()
    import_pt(path, tmp_path / "out")
    import_pt(path, tmp_path / "out.dlprof")
    assert path.read_bytes() == before
    assert same_bits(read_step(tmp_path / "out", "step-00000001")["w"], random_gradients(5, 30))
