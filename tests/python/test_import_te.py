# SPDX-License-Identifier: Apache-2.0
"""Import of TransformerEngine's tensor_dumps, written here as DumpTensors names and fills them."""

from __future__ import annotations

import collections
import functools
import importlib
import os
import sys
import types
import zipfile
from pathlib import Path

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

from dlsim.importers import import_te


def dump(logs: Path, rank: int, name: str, values: object) -> Path:
    directory = logs / "tensor_dumps" / f"rank_{rank}"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.pt"
    torch.save({"high_precision": values}, path)
    return path


NAMES = {
    "wgrad": "decoder_1_fc1.weight.grad",
    "dgrad": "decoder_1_fc1.dgrad.act_grad",
    "gradient": "decoder_1_fc1.gradient.act_grad",
    "activation": "decoder_1_fc1.activation.act",
    "output": "decoder_1_fc1.act",
    "weight": "decoder_1_fc1.weight.value",
}


def test_tensors_become_a_trace_with_the_same_bits(tmp_path: Path) -> None:
    values = {}
    for step in (0, 100):
        for i, kind in enumerate(NAMES):
            values[step, kind] = random_gradients(step + i, 20, 3)
            tensor = torch.from_numpy(values[step, kind])
            dump(tmp_path, 0, f"decoder_1_fc1_{kind}_iter_{step:06d}", tensor)
    imported = import_te(tmp_path, tmp_path / "out")
    assert (imported.steps, imported.last_step, imported.tensors) == (2, 100, 6)
    assert not imported.notes
    got = read_step(tmp_path / "out", "step-00000100")
    assert sorted(got) == sorted(NAMES.values())
    for kind, name in NAMES.items():
        assert same_bits(got[name], values[100, kind])
    for step in (0, 100):
        write_step(tmp_path / "native", step, {NAMES[k]: values[step, k] for k in NAMES})
    options = ("--format", "bf16", "--format", "fp16", "--policy", "torch")
    assert replayed(tmp_path / "out", *options) == replayed(tmp_path / "native", *options)


def test_ranks_are_kept_apart_and_one_can_be_chosen(tmp_path: Path) -> None:
    values = [random_gradients(rank, 30) for rank in range(2)]
    for rank in range(2):
        dump(tmp_path, rank, "fc_wgrad_iter_000005", torch.from_numpy(values[rank]))
    both = import_te(tmp_path / "tensor_dumps", tmp_path / "both")
    assert any("data-parallel" in note for note in both.notes)
    for rank in range(2):
        got = read_step(tmp_path / "both", f"step-00000005.rank-0000{rank}")
        assert same_bits(got["fc.weight.grad"], values[rank])
    run = replayed(tmp_path / "both", "--format", "fp16", "--policy", "static")
    assert run[0]["tensors"][0]["elements"] == 30
    import_te(tmp_path / "tensor_dumps" / "rank_1", tmp_path / "one")
    got = read_step(tmp_path / "one", "step-00000005")
    assert same_bits(got["fc.weight.grad"], values[1])
    import_te(tmp_path, tmp_path / "both.profile")
    run_dlsim("profile", tmp_path / "both", "-o", tmp_path / "own.profile")
    options = ("--format", "fp16", "--policy", "torch")
    assert replayed(tmp_path / "both.profile", *options) == replayed(
        tmp_path / "own.profile", *options
    )


def test_a_missing_rank_is_refused(tmp_path: Path) -> None:
    for rank, step in ((0, 1), (1, 1), (0, 2)):
        dump(tmp_path, rank, f"fc_wgrad_iter_{step:06d}", torch.ones(2))
    with pytest.raises(ValueError, match="step 2 has 1 ranks, others have 2"):
        import_te(tmp_path, tmp_path / "out")


class Float8Tensor:
    """Stands for transformer_engine's class, which a safe loader must not build."""

    __module__ = "transformer_engine.pytorch.tensor.float8_tensor"


def test_pickled_quantized_tensors_are_neither_built_nor_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(torch, "float8_e4m3fn"):
        pytest.skip("PyTorch before 2.1 refuses them")
    parts = Float8Tensor.__module__.split(".")
    for i in range(len(parts)):
        name = ".".join(parts[: i + 1])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(
        sys.modules[Float8Tensor.__module__], "Float8Tensor", Float8Tensor, raising=False
    )
    values = random_gradients(9, 12)
    path = dump(tmp_path, 0, "fc_wgrad_iter_000001", torch.ones(2))
    torch.save({"quantized": Float8Tensor(), "high_precision": torch.from_numpy(values)}, path)
    monkeypatch.delattr(sys.modules[Float8Tensor.__module__], "Float8Tensor")
    import_te(tmp_path, tmp_path / "out")
    got = read_step(tmp_path / "out", "step-00000001")
    assert list(got) == ["fc.weight.grad"] and same_bits(got["fc.weight.grad"], values)
    dump(tmp_path, 0, "fc_wgrad_iter_000002", torch.ones(2))
    torch.save({"quantized": 1}, tmp_path / "tensor_dumps/rank_0/fc_wgrad_iter_000002.pt")
    with pytest.raises(ValueError, match="no high_precision"):
        import_te(tmp_path, tmp_path / "o")


class _Call:
    """Is pickled as a call; what is called and given may be calls, too."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.parts = function, arguments

    def __call__(self) -> None: ...  # pickle asks for it

    def __reduce__(self) -> tuple[object, ...]:
        return self.parts


def _hostile(kind: str, marker: str) -> object:
    system = _Call(getattr, _Call(importlib.import_module, "os"), "mkdir")
    return {
        "system": _Call(os.system, f"mkdir {marker}"),
        "eval": _Call(eval, f"__import__('os').mkdir({marker!r})"),
        "getattr": _Call(system, marker),
        "nested": collections.OrderedDict(
            a=[_Call(map, os.mkdir, [marker]), _Call(system, marker)]
        ),
        "partial": _Call(functools.partial(os.mkdir, marker)),
    }[kind]


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="PyTorch before 2.1 refuses them")
@pytest.mark.parametrize("kind", ["system", "eval", "getattr", "nested", "partial"])
def test_hostile_pickles_call_nothing(tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "marker"
    path = dump(tmp_path, 0, "fc_wgrad_iter_000001", None)
    tree = {"quantized": _hostile(kind, str(marker)), "high_precision": torch.ones(2)}
    torch.save(tree, path)
    import_te(tmp_path, tmp_path / "out")
    assert read_step(tmp_path / "out", "step-00000001")["fc.weight.grad"].tolist() == [1, 1]
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists(), "the file would have been harmless: the test proves nothing"


def test_a_pickle_changes_no_function_that_it_may_call(tmp_path: Path) -> None:
    path = dump(tmp_path, 0, "fc_wgrad_iter_000001", None)
    # An object of the function's class with a state: its attribute __doc__ would be "changed".
    text = b"X\x07\x00\x00\x00"
    state = b"ctorch._utils\n_rebuild_tensor_v2\n(N}" + text + b"__doc__" + text + b"changedstb."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + state)
        archive.writestr("a/version", "3\n")
    before = torch._utils._rebuild_tensor_v2.__doc__
    with pytest.raises(ValueError, match=r"no high_precision tensor|cannot be read"):
        import_te(tmp_path, tmp_path / "out")
    assert torch._utils._rebuild_tensor_v2.__doc__ == before


def test_bad_dumps_are_one_line(tmp_path: Path) -> None:
    path = dump(tmp_path, 0, "fc_wgrad_iter_000001", torch.arange(3))
    for content in (torch.arange(3), None, {"a": torch.ones(1)}):
        torch.save({"high_precision": content}, path)
        with pytest.raises(ValueError, match="high_precision is not a floating-point tensor"):
            import_te(tmp_path, tmp_path / "out")
    torch.save([torch.ones(1)], path)
    with pytest.raises(ValueError, match="no high_precision"):
        import_te(tmp_path, tmp_path / "out")
    path.write_bytes(path.read_bytes()[:100])
    line = one_error_line(run_dlsim("import", "te", tmp_path, "-o", tmp_path / "out"), 3)
    assert path.name in line
    path.rename(path.with_name("other.pt"))
    line = one_error_line(run_dlsim("import", "te", tmp_path, "-o", tmp_path / "out"), 3)
    assert "no tensors" in line
    assert not (tmp_path / "out").exists()
