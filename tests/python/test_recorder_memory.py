# SPDX-License-Identifier: Apache-2.0
"""What is known of memory ends with it: another tensor may lie at the same address."""

from pathlib import Path

import torch
from recording import small_model

import dlsim
from dlsim.recorder._memory import ByMemory, memory_of


def test_views_share_what_is_known() -> None:
    known: ByMemory[str] = ByMemory()
    tensor = torch.ones(6)
    known.set(tensor[2:], "a")
    assert known.get(tensor) == known.get(tensor.view(2, 3)) == "a"
    known.forget(tensor[:1])
    assert known.get(tensor) is None


def test_a_tensor_in_memory_that_was_freed_is_another_one() -> None:
    known: ByMemory[str] = ByMemory()
    for _ in range(100):
        gone = torch.ones(1000)
        place = memory_of(gone)
        known.set(gone, "gone")
        del gone
        other = torch.ones(1000)
        if memory_of(other) == place:
            assert known.get(other) is None
            return
    raise AssertionError("no memory was used again")


def test_sparse_tensors_are_known_by_themselves() -> None:
    known: ByMemory[str] = ByMemory()
    first, second = (torch.eye(3).to_sparse() for _ in range(2))
    known.set(first, "first")
    assert known.get(first) == "first" and known.get(second) is None


def test_an_input_where_a_parameter_lay_is_rounded_as_any(tmp_path: Path) -> None:
    for i in range(40):
        model = small_model()
        path = tmp_path / f"{i}.profile"
        with dlsim.Recorder(model, path, every=1, on_error="raise") as rec:
            model.double()  # frees what the parameters were: the weight has as many bytes
            model(torch.ones(4, 6, dtype=torch.float64)).sum().backward()
            rec.step(scale=1.0)
        assert "0/to.act" in dlsim.open_profile(path)[0].tensors
