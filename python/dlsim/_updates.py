# SPDX-License-Identifier: Apache-2.0
"""Do optimizer updates survive if weights and optimizer states are kept in 16 bits?

`ProbeRecorder` writes a few elements of each parameter of a training, and the gradients that its
optimizers read. `updates`, the command `dlsim updates`, replays them with torch.optim itself on
tensors of other types. docs/updates.md explains the files and the figures.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ._errors import InputError, UsageError
from ._files import replacing
from ._text import counted, percent_text, table_text, wrapped

if TYPE_CHECKING:
    from .results import Result

_SCHEMA = "dlsim.probe/2"
_COMBINING = ("LBFGS", "SparseAdam", "Adafactor", "Muon")  # elements, so samples do not suffice
_SCALARS = ("step", "mu_product", "eta", "mu")  # states that no format narrows
_SECOND = ("exp_avg_sq", "square_avg", "sum", "variance")  # states that are second moments
_HARMFUL = 0.2  # drift
_FIXED = 0.5  # share of a drift that is left at most where something fixes it
_BIASED = 2  # second moment over that of float32
_MISSED = 0.01  # distance of the float32 replay from the training


def _require_torch() -> None:
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
        raise UsageError(f"torch: rounds otherwise, expected 2.4 or newer, got {torch.__version__}")


def _optimizer_named(name: str) -> Any:
    """Returns the optimizer of torch.optim that updates each element by itself, or None."""
    import torch

    kind = getattr(torch.optim, name, None)
    is_one = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    return kind if is_one and name not in _COMBINING else None


class ProbeRecorder:
    """Writes samples of what optimizers do to a model, for `dlsim updates`.

    `with dlsim.ProbeRecorder(model, "run/probe"):` around the training loop is all. `path` is a
    new folder, to which each update adds a file of safetensors. `elements` of each parameter are
    followed at most. Wrong arguments raise; a later error ends the recording with a warning.
    """

    def __init__(self, model: Any, path: str | os.PathLike[str], *, elements: int = 1024) -> None:
        from .recorder._ranks import ranks_of
        from .recorder._recorder import OPEN
        from .recorder._selection import models_of, parameters_of

        if not isinstance(elements, int) or elements < 1:
            raise UsageError(f"elements: expected at least 1, got {elements!r}")
        _require_torch()
        models = models_of(model)
        ranks = ranks_of(list(models.values()), None)
        if ranks.is_shard:
            raise UsageError("probe: parameters lie in several processes, expected whole ones")
        self.path, self.updates = Path(path), 0
        self.left_out: dict[str, str] = {}  # names of what is not followed, and why
        self._elements = elements
        self._names = {id(one): name for name, one in parameters_of(models).items()}
        self._owners: dict[str, Any] = {}  # which optimizer updates a parameter
        self._closed = not ranks.records or (ranks.kind == "separate" and ranks.rank != 0)
        if self._closed:
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UsageError(f"{self.path}: exists, expected a new folder")
        from torch.optim import optimizer

        hooks: Any = optimizer
        self._hook = hooks.register_optimizer_step_pre_hook(self._before)
        OPEN.add(self)

    def __enter__(self) -> ProbeRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the recording. More calls do nothing."""
        if not self._closed:
            self._leave()
            if self.updates == 0:
                warnings.warn(f"{self.path}: no optimizer of torch.optim has stepped", stacklevel=2)

    def _leave(self) -> None:
        self._closed = True
        self._hook.remove()

    def _before(self, optimizer: Any, args: Any, options: Any) -> Any:
        """Records what an optimizer is about to use: now, or when its closure has computed it."""
        kind = type(optimizer)
        if _optimizer_named(kind.__name__) is not kind:
            self.left_out[kind.__name__] = "is no optimizer of torch.optim that samples suffice for"
            return None
        closure = args[1] if len(args) > 1 else options.get("closure")
        if closure is None:
            self._record(optimizer)
            return None

        def and_record() -> Any:
            loss = closure()
            self._record(optimizer)
            return loss

        return args[:1], {**options, "closure": and_record}

    def _record(self, optimizer: Any) -> None:
        import torch

        try:
            with torch.no_grad():
                self._write(optimizer)
        except Exception as error:
            self._leave()
            warnings.warn(f"{self.path}: the recording has ended: {error}", stacklevel=3)

    def _write(self, optimizer: Any) -> None:
        from safetensors.torch import save_file

        layout = [[p for p in of["params"] if self._follows(p)] for of in optimizer.param_groups]
        if self._closed or not any(layout):
            return
        if getattr(optimizer, "grad_scale", None) is not None:
            raise UsageError("a fused optimizer unscales gradients itself, expected fused=False")
        tensors = dict[str, Any]()
        for name, one in ((self._names[id(one)], one) for group in layout for one in group):
            tensors[f"weights/{name}"] = self._sample(one)
            if one.grad is not None:
                tensors[f"gradients/{name}"] = self._sample(one.grad)
            is_new = name not in self._owners
            if self._owners.setdefault(name, optimizer) is not optimizer:
                raise UsageError(f"{name}: a second optimizer updates it, expected one")
            if is_new:
                for key, value in optimizer.state.get(one, {}).items():
                    if hasattr(value, "numel"):
                        kept = self._sample(value) if value.shape == one.shape else value.clone()
                        tensors[f"state.{key}/{name}"] = kept
        facts = {
            "schema": _SCHEMA,
            "class": type(optimizer).__name__,
            "groups": [[self._names[id(one)] for one in group] for group in layout],
            "settings": [
                {key: value for key, value in group.items() if not key.startswith("param")}
                for group in optimizer.param_groups
            ],
        }
        tensors = {key: value.cpu().contiguous() for key, value in tensors.items()}
        self.path.mkdir(parents=True, exist_ok=True)
        with replacing(self.path / f"update-{self.updates:08d}.safetensors") as temporary:
            save_file(tensors, temporary, {"dlsim": json.dumps(facts, default=float)})
        self.updates += 1

    def _follows(self, parameter: Any) -> bool:
        name, dtype = self._names.get(id(parameter)), str(parameter.dtype).removeprefix("torch.")
        if name is None or parameter.numel() == 0 or not parameter.requires_grad:
            return False
        if dtype not in ("float32", "float16", "bfloat16"):
            self.left_out[name] = f"is {dtype}"
        elif parameter.grad is not None and parameter.grad.is_sparse:
            self.left_out[name] = "has sparse gradients"
        return name not in self.left_out

    def _sample(self, tensor: Any) -> Any:
        """Returns the elements that are followed: one each of equal parts, at changing places."""
        flat, count = tensor.detach().reshape(-1), self._elements
        if flat.numel() <= count:
            return flat.clone()
        i = np.arange(count)
        at = (i + i * 0.6180339887 % 1) * (flat.numel() / count)
        return flat[at.astype(np.int64)]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Names the file in what damaged content raises."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path}: not a file of a probe, or damaged: {error!r}") from error


class _Update:
    """A file of a probe: an update of an optimizer."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self.path, self.counts = path, dict[str, int]()  # elements of each parameter
        with _reading(path), safe_open(path, framework="np") as file:
            facts = json.loads((file.metadata() or {}).get("dlsim", "{}"))
            if facts["schema"] != _SCHEMA:
                raise ValueError(f"expected the schema {_SCHEMA}, got {facts['schema']}")
            self.kind = _optimizer_named(facts["class"])
            if self.kind is None:
                raise ValueError(f"expected an optimizer of torch.optim, got {facts['class']}")
            self.groups: list[list[str]] = facts["groups"]
            self.settings: list[dict[str, Any]] = facts["settings"]  # of the groups
            for name in (name for group in self.groups for name in group):
                (self.counts[name],) = file.get_slice(f"weights/{name}").get_shape()


def _updates_in(folder: Path) -> list[_Update]:
    found = [_Update(file) for file in sorted(folder.glob("update-*.safetensors"))]
    if not found:
        raise InputError(f"{folder}: no update-*.safetensors, expected that of a ProbeRecorder")
    return found


@dataclass(frozen=True)
class _Recipe:
    """In which formats weights and states are kept, and how weights are rounded."""

    weights: str = "fp32"
    states: str = "fp32"
    rounding: str = "rne"

    @property
    def name(self) -> str:
        """As the table has it, such as "bf16 + sr"."""
        text = self.weights + ("" if self.rounding == "rne" else f" + {self.rounding}")
        text += " master" if self.weights == "fp32" != self.states else ""
        return text + (f", {self.states} states" if self.states != self.weights else "")

    def variants(self) -> Iterator[tuple[str, _Recipe]]:
        """What may do better, and how it is called."""
        if self.weights != "fp32":
            yield "stochastic rounding", replace(self, rounding="sr")
            yield "Kahan summation", replace(self, rounding="kahan")
        if "fp32" not in (self.weights, self.states):
            yield "float32 states", replace(self, states="fp32")
            yield "float32 master weights", replace(self, weights="fp32", rounding="rne")


def _dtype(name: str) -> Any:
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def round_stochastically(values: Any, dtype: Any, generator: Any) -> Any:
    """Rounds float32 values up or down by chance, so that the mean of many is the value."""
    import torch

    near = values.to(dtype)
    code, grows = near.view(torch.int16), values.abs() > near.float().abs()
    other = torch.where(grows, code + 1, code - 1).view(dtype).float()
    share = (values - near.float()) / (other - near.float())
    return torch.where(torch.rand(share.shape, generator=generator) < share, other, near.float())


def add_with_kahan(before: Any, change: Any, rest: Any, dtype: Any) -> Any:
    """Returns `before` + `change` in `dtype`; what rounding has taken is left in `rest`."""
    change = (rest + change).to(dtype).float()
    after = (before + change).to(dtype).float()
    rest.copy_((change + (before - after).to(dtype).float()).to(dtype))
    return after


class _Replay:
    """The updates of a probe by one recipe, with what is counted of each parameter."""

    def __init__(self, recipe: _Recipe, probe: Sequence[_Update], seed: int = 0) -> None:
        import torch

        self.recipe, end = recipe, 0
        self.slices: dict[str, slice] = {}  # of the parameters in flat arrays
        for name, count in (one for update in probe for one in update.counts.items()):
            if name not in self.slices:
                self.slices[name] = slice(end, end := end + count)
        computes_in_it = recipe.weights == recipe.states and recipe.rounding == "rne"
        self._weights = torch.zeros(end, dtype=_dtype(recipe.weights if computes_in_it else "fp32"))
        self._states: dict[str, Any] = {}  # by parameter
        self.start, self._rest = np.full(end, np.nan), torch.zeros(end)
        self._chance = torch.Generator().manual_seed(seed)
        self.counts = np.zeros(2, np.int64)  # updates, lost
        self.first_lost: tuple[int | None, str | None] = None, None  # step and parameter

    @property
    def weights(self) -> Any:
        """The weights, in float32."""
        return self._weights.float()

    def _narrow(self, value: Any, name: str) -> Any:
        """Returns a copy, rounded to a format, in the type that the optimizer computes in."""
        return value.to(_dtype(name)).to(self._weights.dtype, copy=True)

    def begin(self, tensors: Mapping[str, Any]) -> None:
        """Takes the weights of new parameters, and the first states of an optimizer."""
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            if kind == "weights" and np.isnan(self.start[self.slices[name]]).all():
                self.start[self.slices[name]] = value.double().numpy()
                self._weights[self.slices[name]] = self._narrow(value, self.recipe.weights)
            elif kind.startswith("state."):
                state = kind.removeprefix("state.")
                kept = (
                    value.clone() if state in _SCALARS else self._narrow(value, self.recipe.states)
                )
                self._states.setdefault(name, {})[state] = kept

    def step(self, update: _Update, tensors: Mapping[str, Any]) -> None:
        """Makes an update, also as float32 makes it of the same weights and states."""
        import torch

        before, owed, twin = self.weights.clone(), self._rest.clone(), copy(self)
        twin._weights = before.clone()
        twin._states = {
            name: {k: v.float().clone() if hasattr(v, "float") else v for k, v in states.items()}
            for name, states in self._states.items()
        }
        twin._optimize(update, tensors)
        self._optimize(update, tensors)
        with torch.no_grad():
            if self._weights.dtype == torch.float32:
                self._round(before)
            moved = self.weights.double() - before.double() + self._rest.double() - owed.double()
            self.wanted = (twin.weights.double() - before.double()).numpy()
        self.moved = moved.numpy()

    def _optimize(self, update: _Update, tensors: Mapping[str, Any]) -> None:
        """Lets the optimizer of PyTorch step, with the states that it had."""
        import torch

        parameters = dict[str, Any]()
        for name in update.counts:
            parameters[name] = torch.nn.Parameter(self._weights[self.slices[name]])
            if f"gradients/{name}" in tensors:
                gradient = tensors[f"gradients/{name}"]
                parameters[name].grad = self._narrow(gradient, self.recipe.weights)
        groups = []
        for names, recorded in zip(update.groups, update.settings, strict=True):
            settings = {**recorded, "params": [parameters[name] for name in names]}
            if "capturable" in settings:
                settings["capturable"] = False  # it is of GPUs
            groups.append(settings)
        optimizer = update.kind(groups)
        for name, one in parameters.items():
            if states := self._states.get(name):
                optimizer.state[one] = states
        optimizer.step()
        for name, one in parameters.items():
            self._states[name] = optimizer.state.get(one, {})

    def _round(self, before: Any) -> None:
        """Rounds what float32 has computed to what is stored."""
        recipe, weights, dtype = self.recipe, self._weights, _dtype(self.recipe.weights)
        for states in self._states.values() if recipe.states != "fp32" else ():
            for key, value in states.items():
                if key not in _SCALARS and getattr(value, "is_floating_point", bool)():
                    value.copy_(value.to(_dtype(recipe.states)))
        if recipe.rounding == "sr":
            weights.copy_(round_stochastically(weights, dtype, self._chance))
        elif recipe.rounding == "kahan":
            weights.copy_(add_with_kahan(before, weights - before, self._rest, dtype))
        else:
            weights.copy_(weights.to(dtype))

    def compare(self, reference: _Replay, step: int) -> None:
        """Counts an update, and measures how far the weights are from its."""
        starts = [at.start for at in self.slices.values()]
        updates = np.isfinite(self.wanted) & (self.wanted != 0)
        lost = updates & (self.moved == 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.counts += [updates.sum(), lost.sum()]
            if self.first_lost[0] is None and lost.any():
                place = lost.argmax()
                name = next(name for name, at in self.slices.items() if place < at.stop)
                self.first_lost = step, name
            way = reference.weights.double().numpy() - self.start
            off = self.weights.double().numpy() - self.start - way
            good = np.isfinite(way) & np.isfinite(off)
            self.nonfinite = int(np.sum(np.isfinite(way) & ~good))
            way, off = np.where(good, way, 0), np.where(good, off, 0)
            ways = np.where((sums := np.add.reduceat(way * way, starts)) > 0, sums, np.nan)
            # NaN where nothing has moved.
            self.drift = np.sqrt(np.add.reduceat(off * off, starts) / ways)
            self.progress = np.add.reduceat((way + off) * way, starts) / ways

    def _second_moment(self) -> float:
        states = self._states.values()
        found = [one[key].double().sum() for one in states for key in _SECOND if key in one]
        return float(sum(found))

    def run(self, reference: _Replay) -> dict[str, Any]:
        """What is said of the run: the JSON of docs/updates.md."""
        total = reference._second_moment()
        ratio = self._second_moment() / total if total > 0 else math.nan
        updates, lost = map(int, self.counts)
        drift = _mean(self.drift)
        sound = "drifts" if (drift or 0) > _HARMFUL else "sound"
        return {
            "name": self.recipe.name,
            **asdict(self.recipe),
            "verdict": "not finite" if self.nonfinite else sound,
            "drift": drift,
            "progress": _mean(self.progress),
            "updates": updates,
            "lost": lost / updates if updates else None,
            "second_moment_ratio": ratio if math.isfinite(ratio) else None,
            "nonfinite": self.nonfinite,
            "first_lost": self.first_lost[0],
            "first_lost_in": self.first_lost[1],
        }


def _mean(values: Any) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _replay_all(probe: Sequence[_Update], replays: Sequence[_Replay], plain: _Replay) -> Any:
    """Replays all updates; returns how far float32 ends from what was recorded."""
    from safetensors.torch import load_file

    recorded, replayed = np.full((2, len(plain.start)), np.nan)
    for i, update in enumerate(probe):
        with _reading(update.path):
            tensors = load_file(update.path)
            for one in (plain, *replays):
                one.begin(tensors)
            for name in update.counts:
                at, weights = plain.slices[name], tensors[f"weights/{name}"]
                if weights.element_size() == 4:
                    recorded[at], replayed[at] = weights.numpy(), plain.weights[at].numpy()
            for one in (plain, *replays):
                one.step(update, tensors)
            for one in replays:
                one.compare(plain, i)
    moved = np.nansum((recorded - plain.start) ** 2)
    return math.sqrt(np.nansum((replayed - recorded) ** 2) / moved) if moved > 0 else None


def _fixes(run: Mapping[str, Any], variants: Sequence[tuple[str, Any]]) -> list[str]:
    """What would prevent that a run is not sound."""
    most = math.inf if run["nonfinite"] else _FIXED * (run["drift"] or 0)
    sound = [(text, one["drift"] or 0) for text, one in variants if one["verdict"] == "sound"]
    found = [text for text, drift in sound if text and drift <= most]
    return (found or ["float32 weights and states"]) if run["verdict"] != "sound" else []


def _sentences(run: Mapping[str, Any], elements: int, fixes: Sequence[str]) -> Iterator[str]:
    """The verdict on a run."""
    name, lost = run["name"], "no update is lost"
    if run["lost"]:
        at = f"update {run['first_lost']}, {run['first_lost_in']}"
        lost = f"{percent_text(run['lost'])} of the updates are lost (first at {at})"
    if run["verdict"] == "not finite":
        bad = percent_text(run["nonfinite"] / elements)
        yield f"{name} cannot train: {bad} of the followed weights are not finite at the end."
    elif run["drift"] is None:
        yield f"{name}: float32 moves no weight, so nothing can be lost."
    else:
        ends = "follows float32: the weights end within"
        if run["verdict"] == "drifts":
            ends = "drifts: the weights end away from float32's by"
        yield f"{name} {ends} {run['drift']:.2g} of the distance that float32 moves them; {lost}."
    ratio = run["second_moment_ratio"]
    if ratio is not None and not 1 / _BIASED < ratio < _BIASED:
        yield f"{name}: the second moment is {ratio:.2g} times that of float32."
    if fixes:
        text = " or ".join(fixes)
        yield f"{text[0].upper()}{text[1:]} would prevent this."


def updates(
    probe: str | os.PathLike[str],
    *,
    weights: str = "bf16",
    states: str | None = None,
    rounding: Literal["rne", "sr", "kahan"] = "rne",
    seed: int = 0,
) -> Result:
    """Replays the updates of a probe with weights and optimizer states in other formats.

    `probe` is a folder of `ProbeRecorder`. Formats are "fp32", "bf16" and "fp16"; that of the
    states is that of the weights. `rounding` of the weights is "rne", "sr" (stochastic) or "kahan".
    Recipes that may do better are tried as well. The result is a dlsim.updates/2.
    """
    from .results import Result

    asked = _Recipe(weights, states or weights, rounding)
    options = {"weights": weights, "states": asked.states, "rounding": rounding}
    for option, value in options.items():
        choices = ("rne", "sr", "kahan") if option == "rounding" else ("fp32", "bf16", "fp16")
        if value not in choices:
            raise UsageError(f"{option}: expected one of {', '.join(choices)}, got {value!r}")
    if rounding != "rne" and weights == "fp32":
        raise UsageError("rounding: float32 weights need none, expected weights of 16 bits")
    _require_torch()
    probe_updates = _updates_in(Path(probe))
    variants = {asked: "", **{recipe: text for text, recipe in asked.variants()}}
    if asked == _Recipe("bf16", "bf16"):
        variants[_Recipe("fp16", "fp16")] = ""
    replays = [_Replay(one, probe_updates, seed) for one in variants]
    plain = _Replay(_Recipe(), probe_updates)
    distance = _replay_all(probe_updates, replays, plain)
    runs = [one.run(plain) for one in replays]
    fixes = _fixes(runs[0], list(zip(variants.values(), runs, strict=True)))
    lines = list(_sentences(runs[0], len(replays[0].start), fixes))
    if distance is not None and distance > _MISSED:
        off = f"by {distance:.2g} of the distance that they moved"
        lines.append(f"note: the float32 replay misses the recorded weights {off}")
    facts = {
        "tensors": len(replays[0].slices),
        "elements": len(replays[0].start),
        "updates": len(probe_updates),
        "optimizers": list(dict.fromkeys(one.kind.__name__ for one in probe_updates)),
        "distance_from_recorded": distance,
    }
    data: dict[str, Any] = {"schema": "dlsim.updates/2", "probe": facts, "options": {"seed": seed}}
    data |= {"lines": lines, "fixes": fixes, "runs": runs}
    return Result(data, report=_report(data))


_HEADS = {
    "name": "run",
    "verdict": "verdict",
    "drift": "drift",
    "progress": "progress",
    "lost": "lost",
    "second_moment_ratio": "2nd moment",
    "nonfinite": "not finite",
}
_LEGEND = """\
  drift: distance from float32's weights over the distance that float32 moves them, mean over the
tensors; progress: share of that movement; lost: updates that left the weight as it was; 2nd
 moment: over float32's."""


def _report(data: Mapping[str, Any]) -> str:
    probe, distance = data["probe"], data["probe"]["distance_from_recorded"]
    lines = [
        *data["lines"],
        "",
        f"Followed: {probe['elements']} elements in {counted(probe['tensors'], 'tensors')}, "
        f"{counted(probe['updates'], 'updates')} of {', '.join(probe['optimizers'])}.",
        "Gradients are as recorded; in training, weights that drift would get different ones.",
    ]
    if distance is not None and distance <= _MISSED:
        ends = f"to within {distance:.2g} of the distance that they moved"
        lines.append(f"Check: the float32 replay reproduces the recorded weights {ends}.")
    rows = [[*_HEADS.values()], *([_cell(run, key) for key in _HEADS] for run in data["runs"])]
    return "\n".join(["".join(map(wrapped, lines)), table_text(rows), wrapped(_LEGEND)])


def _cell(run: Mapping[str, Any], key: str) -> str:
    value = run[key]
    if value is None:
        return "-"
    if key == "lost":
        return percent_text(value)
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str]) -> int:
    """Runs `dlsim updates ARGUMENTS...` and returns the exit code; raises dlsim.Error."""
    from ._command_parser import CommandParser, run_for_result

    about = "Replay recorded optimizer updates with weights and states in 16 bits."
    examples = """Examples:
  dlsim updates runs/probe
  dlsim updates runs/probe --weights bf16 --rounding sr --seed 7
  dlsim updates runs/probe --weights fp32 --states bf16
"""
    parser = CommandParser(prog="dlsim updates", description=about, epilog=examples)
    add = parser.add_argument
    add("probe", metavar="PROBE", help="A folder of dlsim.ProbeRecorder")
    add("--weights", metavar="F", help="Format of the weights: fp32, bf16 (default) or fp16")
    add("--states", metavar="F", help="Format of the optimizer's states (default: as the weights)")
    add("--rounding", metavar="MODE", help="Of weights: rne (default), sr (stochastic) or kahan")
    add("--seed", type=int, metavar="N", help="Seed of stochastic rounding (default 0)")
    return run_for_result(parser, arguments, updates)
