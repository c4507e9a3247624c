# SPDX-License-Identifier: Apache-2.0
"""What the command says of the forward pass of trained networks, and how it really runs.

Networks and the packages that they come from are in pretrained_networks.py.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from grid import REAL_FORMATS as FORMATS
from pretrained_networks import NETWORKS
from pretrained_runs import Run, enlarged, run
from pretrained_tables import Judged, Scaled, read, report, write
from torch import Tensor, nn

import dlsim

RESULTS = Path(__file__).resolve().parent / "results"
KEPT, KEPT_SCALED = RESULTS / "pretrained.csv", RESULTS / "pretrained_scaled.csv"
RECIPES = ("autocast", "half")
LARGEST = 24  # binades by which inputs and weights are made larger at most


@dataclass(frozen=True)
class Forward:
    """What the command says of a format: of outputs of a forward pass, by name and of all.

    `value` is the first parameter or buffer that overflows, empty without one; `room` is their
    head-room.
    """

    state: str
    headroom: float
    first: str
    value: str
    room: float
    largest: dict[str, float]
    lost: dict[str, float]

    def fails_by_value(self) -> bool:
        """Returns whether no output overflows, but a parameter or a buffer."""
        return self.state == "fits" and bool(self.value)

    def least_room(self) -> str:
        """Returns the tensor with the least head-room."""
        return max(self.largest, key=lambda name: self.largest[name])


def forward(network: nn.Module, inputs: Tensor) -> dict[tuple[str, str], Forward]:
    """Returns what the command says of a network, by recipe and format."""
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.dlprof"
        with dlsim.Recorder(network, path, inference=True, on_error="raise") as recorder:
            with torch.no_grad():
                network(inputs)
            recorder.step()
        for recipe in RECIPES:
            data = dlsim.replay(path, formats=list(FORMATS), recipe=recipe, quiet=True).data
            for said in data["verdict"]["formats"]:
                ran = next(one for one in data["runs"] if one["format"] == said["format"])
                result[recipe, said["format"]] = _forward(said, ran["tensors"])
    return result


def _forward(said: dict[str, Any], tensors: list[dict[str, Any]]) -> Forward:
    outputs, values = said["forward"], said["values"]
    apart = set(outputs["kept_in_float32"])
    counted = [one for one in tensors if one["role"] == "act" and one["name"] not in apart]
    return Forward(
        outputs["state"],
        outputs["headroom"],
        outputs["first"]["tensor"] if outputs["first"] else "",
        values["first"]["tensor"] if values["first"] else "",
        values["headroom"],
        {one["name"]: one["absmax"] for one in counted},
        {one["name"]: one["energy_lost"] or 0.0 for one in counted},
    )


def judged(name: str) -> Iterable[Judged]:
    """Yields a row for each recipe and format."""
    known = NETWORKS[name]
    network, inputs = known.load(), known.inputs()
    float32 = run(network, inputs)
    for (recipe, format), said in forward(network, inputs).items():
        lost = max(said.lost, key=lambda tensor: said.lost[tensor])
        by_value = said.fails_by_value()
        failed, error = _really(network, inputs, float32, recipe, format)
        yield Judged(
            network=name,
            kind=known.kind,
            package=f"{known.package} {version(known.package)}",
            license=known.license,
            parameters=str(sum(one.numel() for one in network.state_dict().values())),
            recipe=recipe,
            format=format,
            state="overflows" if by_value else said.state,
            headroom=f"{said.room if by_value else said.headroom:.2f}",
            tensor=said.value if by_value else said.first or said.least_room(),
            lost=f"{said.lost[lost]:.2g}",
            failed=failed,
            error=error,
        )


def _really(
    network: nn.Module, inputs: Tensor, float32: Run, recipe: str, format: str
) -> tuple[str, str]:
    try:
        found = run(network, inputs, recipe, format)
    except (RuntimeError, NotImplementedError) as error:
        return f"not run: {str(error).splitlines()[0]}", ""
    return found.first_failure(float32) or "", f"{found.error(float32):.2g}"


def scaled(name: str) -> Iterable[Scaled]:
    """Yields by how much inputs and a layer's weights may be larger in fp16, by recipe."""
    known = NETWORKS[name]
    network, inputs = known.load(), known.inputs()
    said = forward(network, inputs)
    for recipe in RECIPES:
        at_1 = said[recipe, "fp16"]
        if inputs.is_floating_point():
            yield _scaled(Larger(name, recipe, network, inputs), at_1.headroom)
        layers = {
            one: module
            for one, module in network.named_modules()
            if f"{one}.act" in at_1.largest and any(True for _ in module.parameters(recurse=False))
        }
        if layers:
            layer = max(layers, key=lambda one: at_1.largest[f"{one}.act"])
            room = math.log2(65504 / at_1.largest[f"{layer}.act"])
            yield _scaled(Larger(name, recipe, network, inputs, layer, layers[layer]), room)


@dataclass(frozen=True)
class Larger:
    """A network whose inputs, or the weights of a layer, are made larger by binades."""

    name: str
    recipe: str
    network: nn.Module
    inputs: Tensor
    what: str = "inputs"
    layer: nn.Module | None = None

    def at(self, binades: int, function: Callable[[nn.Module, Tensor], Any]) -> Any:
        """Returns what a function gives then."""
        if self.layer is None:
            return function(self.network, self.inputs * 2.0**binades)
        with enlarged(self.layer, binades):
            return function(self.network, self.inputs)

    def failure(self, binades: int) -> str | None:
        """Returns the first operation that is not finite in fp16."""
        found = self.at(binades, lambda *given: run(*given, self.recipe, "fp16"))
        return None if all(found.finite) else found.first_failure(self.at(binades, run))

    def said(self, binades: int) -> Forward:
        """Returns what the command says of fp16."""
        return self.at(binades, forward)[self.recipe, "fp16"]


def _scaled(larger: Larger, headroom: float) -> Scaled:
    binades = first(lambda one: larger.failure(one) is not None, LARGEST)
    fails = binades <= LARGEST
    below = larger.said(binades - 1)
    above = larger.said(binades) if fails else below
    return Scaled(
        network=larger.name,
        recipe=larger.recipe,
        larger=larger.what,
        headroom=f"{headroom:.2f}",
        failed_at=str(binades) if fails else "",
        failed=(larger.failure(binades) or "") if fails else "",
        said_below=below.state,
        said_at=above.state if fails else "",
        tensor=above.first or above.least_room(),
    )


def first(holds: Callable[[int], bool], last: int) -> int:
    """Returns the first number up to `last` at which something begins to hold, or the next."""
    low, high = 0, last + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def study(names: Iterable[str]) -> None:
    """Runs networks, all if there are no names, and puts their rows in the place of the kept."""
    for name in names or NETWORKS:
        _replace(KEPT, Judged, name, judged)
        _replace(KEPT_SCALED, Scaled, name, scaled)


def _replace(path: Path, kind: Any, name: str, rows: Callable[[str], Iterable[Any]]) -> None:
    kept = {one: [] for one in NETWORKS}
    for row in read(path, kind) if path.exists() else []:
        kept[row.network].append(row)
    kept[name] = list(rows(name))
    write(path, [row for group in kept.values() for row in group])


def tables() -> str:
    """Returns the tables of the kept results."""
    return report(read(KEPT, Judged), read(KEPT_SCALED, Scaled))
