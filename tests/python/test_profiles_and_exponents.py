# SPDX-License-Identifier: Apache-2.0
"""Exponents and tables are those that NumPy counts, from traces and from profiles."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
from bundled_traces import BUNDLED, TRACES, profile, steps_of
from safetensors.numpy import load_file, save_file

import dlsim
from dlsim.traces import LOWEST_EXPONENT


def all_kinds_of_values() -> np.ndarray:
    """All powers of two with their neighbors, both signs, zeros, NaN and infinities."""
    bits = np.concatenate([np.left_shift(1, np.arange(23)), np.arange(1, 256) << 23])
    magnitudes = np.unique(np.concatenate([bits - 1, bits, bits + 1]))
    both = np.concatenate([magnitudes, magnitudes | 1 << 31])
    return both.astype(np.uint32).view(np.float32)


def counts_by_frexp(values: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values) & (values != 0)].astype(np.float64)
    exponent = np.frexp(np.abs(finite))[1] - 1
    return np.bincount(exponent - LOWEST_EXPONENT, minlength=277)


@pytest.mark.parametrize("directory", BUNDLED, ids=lambda path: path.name)
def test_exponents_are_those_of_frexp(directory: Path) -> None:
    counted = dlsim.exponents(directory, per_step=True)
    total = dlsim.exponents(directory)
    assert list(counted.steps) == list(steps_of(directory))
    names = set()
    for row, files in enumerate(steps_of(directory).values()):
        parts = [load_file(file) for file in files]
        for name in parts[0]:
            values = np.concatenate([part[name].reshape(-1) for part in parts])
            tensor = counted.tensors[name]
            assert (tensor.counts[row] == counts_by_frexp(values)).all()
            assert tensor.zeros[row] == (values == 0).sum()
            assert tensor.nan[row] == np.isnan(values).sum()
            assert tensor.inf[row] == np.isinf(values).sum()
            assert tensor.elements[row] == values.size
            names.add(name)
    assert set(counted.tensors) == set(total.tensors) == names
    for name in names:
        assert (counted.tensors[name].counts.sum(axis=0) == total.tensors[name].counts).all()
        assert counted.tensors[name].elements.sum() == total.tensors[name].elements


def test_exponents_of_all_kinds_of_values(tmp_path: Path) -> None:
    values = all_kinds_of_values()
    save_file({"w.grad": values}, tmp_path / "step-00000000.safetensors")
    tensor = dlsim.exponents(tmp_path).tensors["w.grad"]
    assert (tensor.counts == counts_by_frexp(values)).all()
    assert tensor.counts.min() > 0  # every exponent of float32 was there
    assert (tensor.zeros, tensor.inf) == (2, 2)
    assert tensor.nan == np.isnan(values).sum() > 0


@pytest.mark.parametrize("directory", BUNDLED, ids=lambda path: path.name)
def test_exponents_of_a_profile_are_those_of_its_trace(directory: Path, tmp_path: Path) -> None:
    path = profile(directory, tmp_path / "a.profile")
    pattern = "*weight*"
    for per_step, tensors in [(False, "*"), (True, pattern)]:
        a = dlsim.exponents(directory, per_step=per_step, tensors=tensors)
        b = dlsim.exponents(path, per_step=per_step, tensors=tensors)
        assert a.steps == b.steps and list(a.tensors) == list(b.tensors)
        for name, tensor in a.tensors.items():
            other = b.tensors[name]
            assert tensor.role == other.role
            for field in ("counts", "zeros", "nan", "inf", "elements"):
                assert (getattr(tensor, field) == getattr(other, field)).all()


@pytest.mark.parametrize("directory", BUNDLED, ids=lambda path: path.name)
def test_tables_of_a_profile_are_those_of_the_arrays(directory: Path, tmp_path: Path) -> None:
    opened = dlsim.open_profile(profile(directory, tmp_path / "a.profile"))
    trace = dlsim.open_trace(directory)
    assert opened.steps == trace.steps and opened.description == trace.description
    for of_profile, step in zip(opened, trace, strict=True):
        assert of_profile.micro_steps == tuple(r.micro for r in step.recordings)
        for part, recording in enumerate(step.recordings):
            for name, info in of_profile.tensors.items():
                values = recording.tensors[name]
                assert info == recording.tensors.infos[name]
                table = of_profile.table(name, part)
                expected = dlsim.tabulate(values)
                assert (table.exponents == expected.exponents).all()
                assert (table.counts == expected.counts).all()
                finite = values[np.isfinite(values)]
                assert table.elements == values.size
                assert table.zeros == (values == 0).sum()
                assert table.nan + table.inf == values.size - finite.size
                assert table.absmax == np.abs(finite).max(initial=0)
                assert table.largest == finite.max(initial=0)
                assert table.sum_of_squares == expected.sum_of_squares
                asked = [one.ask("fp16", 2**10) for one in (table, expected)]
                assert len({(one.underflow, one.error_sum_of_squares) for one in asked}) == 1


def test_the_documentation_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Path(__file__).parents[2]
    (tmp_path / "tests").symlink_to(project / "tests")
    monkeypatch.chdir(tmp_path)
    profile(TRACES / "lm-kjv-accum-cut", Path("kjv.profile"))
    page = project / "docs" / "python-traces.md"
    failed, run = doctest.testfile(str(page), module_relative=False)
    assert failed == 0 and run > 10
