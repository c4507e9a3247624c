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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ._errors import InputError, UsageError
from ._files import replacing
from ._text import counted, percent_text, table_text, wrapped

if TYPE_CHECKING:
    from .results import Result

_ROWS = 100  # updates of a file
_SCHEMA = "dlsim.probe/2"
_SCALARS = ("step", "mu_product", "eta", "mu")  # states that no format narrows
_SECOND = ("exp_avg_sq", "square_avg", "sum", "variance")  # states that are second moments
_HARMFUL = 0.2  # drift
_FIXED = 0.5  # share of a drift that is left at most where something fixes it
_BIASED = 2  # second moment over that of float32
_MISSED = 0.01  # distance of the float32 replay from the training
_DAMAGE = (RuntimeError, ValueError, LookupError, TypeError)  # what damaged content raises
_DECAYING_BETA2 = 0.99  # with it a second moment in bf16 decays from every value


@dataclass
class _Followed:
    """An optimizer that steps, and what its next file will hold."""

    optimizer: Any
    series: int
    state: Any = None  # its dict of states after the last step
    states: int = 0
    steps: int = 0
    pending: tuple[dict[str, Any], list[Any]] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


class ProbeRecorder:
    """Writes samples of what optimizers do to a model, for `dlsim updates`.

    `with dlsim.ProbeRecorder(model, "run/probe"):` around the training loop is all. `path` is a
    new folder, to which a file of safetensors is added after every 100 updates and by `close`;
    `replace` removes what an earlier probe has left there. `elements` of each parameter are
    followed at most. `first_step` is the number of the first update, such as that of a checkpoint.

    Wrong arguments raise; a later error ends the recording with a warning.
    """

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str],
        *,
        elements: int = 1024,
        first_step: int = 0,
        replace: bool = False,
    ) -> None:
        from .recorder._choice import models_of
        from .recorder._endings import OPEN
        from .recorder._names import parameters_of
        from .recorder._ranks import ranks_of

        if not isinstance(elements, int) or elements < 1:
            raise UsageError(f"elements: expected at least 1, got {elements!r}")
        models = models_of(model)
        ranks = ranks_of(list(models.values()), None, None, None, micro_steps=False)
        if ranks.is_shard:
            raise UsageError("probe: parameters lie in several processes, expected whole ones")
        self.path, self.updates = Path(path), 0
        self.left_out: dict[str, str] = {}  # names of what is not followed, and why
        self._elements, self._first_step, self._files = elements, first_step, 0
        self._names = {id(one): name for name, one in parameters_of(models).items()}
        self._places: dict[str, Any] = {}  # of the elements, in parameters that have more
        self._known: dict[int, _Followed] = {}
        self._process, self._undo = os.getpid(), list[Callable[[], object]]()
        self._closed = not ranks.records or (ranks.kind == "separate" and ranks.rank != 0)
        if self._closed:
            return
        from torch.optim import optimizer

        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path}: is a file, expected a folder")
        for file in _files_in(self.path):
            if not replace:
                raise UsageError(
                    f"{self.path}: holds a probe, expected replace=True or a new folder"
                )
            file.unlink()
        module: Any = optimizer
        if hasattr(module, "register_optimizer_step_pre_hook"):
            self._undo.append(module.register_optimizer_step_pre_hook(self._before).remove)
            self._undo.append(module.register_optimizer_step_post_hook(self._after).remove)
        else:  # before PyTorch 2.1
            self._wrap_steps(module.Optimizer)
        OPEN.add(self)

    def __enter__(self) -> ProbeRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes the last updates and ends the recording. More calls do nothing."""
        if not self._closed and os.getpid() == self._process:
            for one in self._known.values():
                self._guard(partial(self._write, one))
            self._leave()
            if self.updates == 0:
                warnings.warn(f"{self.path}: no optimizer has stepped", stacklevel=2)

    def _leave(self) -> None:
        self._closed = True
        while self._undo:
            self._undo.pop()()

    def _wrap_steps(self, base: Any) -> None:
        for kind in base.__subclasses__():
            self._wrap_steps(kind)
            if "step" in vars(kind):
                self._undo.append(partial(setattr, kind, "step", kind.step))
                kind.step = self._wrapped(kind.step)

    def _wrapped(self, step: Any) -> Any:
        @wraps(step)
        def stepping(*args: Any, **options: Any) -> Any:
            changed, keywords = self._before(args[0], args, options) or (args, options)
            result = step(*changed, **keywords)
            self._after(args[0])
            return result

        return stepping

    def _guard(self, body: Callable[[], object]) -> None:
        import torch

        if self._closed or os.getpid() != self._process:
            return
        try:
            with torch.no_grad():
                body()
        except Exception as error:
            self._leave()
            warnings.warn(f"{self.path}: the recording has ended: {error}", stacklevel=3)

    def _before(self, optimizer: Any, args: Any, options: Any) -> Any:
        """Reads what an optimizer is about to use: now, or when its closure has computed it."""
        closure = args[1] if len(args) > 1 else options.get("closure")
        if closure is None:
            self._guard(lambda: self._read(optimizer))
            return None

        def followed() -> Any:
            loss = closure()
            self._guard(lambda: self._read(optimizer))
            return loss

        if len(args) > 1:
            return (args[0], followed, *args[2:]), options
        return args, {**options, "closure": followed}

    def _read(self, optimizer: Any) -> None:
        groups = optimizer.param_groups
        layout = [[p for p in group["params"] if self._follows(p)] for group in groups]
        mine = {self._names[id(one)]: one for group in layout for one in group}
        if not mine:
            return
        known = self._known.setdefault(id(optimizer), _Followed(optimizer, len(self._known)))
        known.pending = None
        scale = getattr(optimizer, "grad_scale", None)  # of a fused one that unscales by itself
        if scale is not None and optimizer.found_inf:
            return
        restarted = known.state is not optimizer.state or known.states > len(optimizer.state)
        names = [[self._names[id(one)] for one in group] for group in layout]
        if known.facts and (restarted or known.facts["groups"] != names):
            self._write(known)
        if not known.facts:
            self._begin(known, mine, names, restarted)
        row = {}
        for name, one in mine.items():
            if one.grad is not None and one.grad.is_sparse:
                self.left_out[name] = "has sparse gradients"
            elif one.grad is not None:
                row[name] = self._sample(name, one.grad)
                row[name] = row[name] if scale is None else row[name] / scale
        known.pending = row, [_settings_of(group) for group in groups]

    def _after(self, optimizer: Any, *_: Any) -> None:
        """Keeps what was read, since the optimizer has stepped."""
        known = self._known.get(id(optimizer))
        if self._closed or known is None or known.pending is None:
            return
        row, settings = known.pending
        known.facts["settings"].append(settings)
        known.rows.append(row)
        known.pending, known.steps = None, known.steps + 1
        known.state, known.states = optimizer.state, len(optimizer.state)
        self.updates += 1
        if len(known.rows) == _ROWS:
            self._guard(lambda: self._write(known))

    def _follows(self, parameter: Any) -> bool:
        name, dtype = self._names.get(id(parameter)), str(parameter.dtype).removeprefix("torch.")
        if name is None or parameter.numel() == 0 or not parameter.requires_grad:
            return False
        if dtype not in ("float32", "float16", "bfloat16"):
            self.left_out[name] = f"is {dtype}"
        return name not in self.left_out

    def _sample(self, name: str, tensor: Any) -> Any:
        """Returns the elements that are followed: one each of equal parts, at changing places."""
        import torch

        flat, count = tensor.detach().reshape(-1), self._elements
        if flat.numel() <= count:
            return flat.clone()
        if name not in self._places:
            i = np.arange(count)
            at = (i + i * 0.6180339887 % 1) * (flat.numel() / count)
            self._places[name] = torch.from_numpy(at.astype(np.int64)).to(flat.device)
        return flat[self._places[name].to(flat.device)]

    def _begin(
        self, known: _Followed, parameters: Mapping[str, Any], groups: list[Any], restarted: bool
    ) -> None:
        import torch

        for other in self._known.values():  # two that update a parameter write one after the other
            if parameters.keys() & other.facts.get("parameters", {}).keys():
                self._write(other)
        optimizer, facts = known.optimizer, dict[str, Any]()
        for name, one in parameters.items():
            taken = known.tensors[f"before/{name}"] = self._sample(name, one)
            facts[name] = {"shape": list(one.shape), "count": len(taken), "cuda": one.is_cuda}
            for key, given in optimizer.state.get(one, {}).items():
                if isinstance(given, (int, float, torch.Tensor)):
                    value = torch.as_tensor(given).detach()
                    same = value.shape == one.shape
                    kept = self._sample(name, value) if same else value.clone()
                    known.tensors[f"state.{key}/{name}"] = kept
        kind, module = type(optimizer).__name__, type(optimizer).__module__
        if hasattr(optimizer, "adam_w_mode") and optimizer.defaults.get("bias_correction", True):
            # That of DeepSpeed and Apex computes as PyTorch's.
            kind, module = "AdamW" if optimizer.adam_w_mode else "Adam", "torch.optim"
        known.facts = {"schema": _SCHEMA, "series": known.series, "class": kind, "module": module}
        known.facts |= {"restarted": restarted, "first_step": self._first_step + known.steps}
        known.facts |= {"groups": groups, "parameters": facts, "settings": []}

    def _write(self, known: _Followed) -> None:
        import torch
        from safetensors.torch import save_file

        facts, rows, tensors = known.facts, known.rows, known.tensors
        known.facts, known.rows, known.tensors = {}, [], {}
        if not rows:
            return
        for one in (one for group in known.optimizer.param_groups for one in group["params"]):
            name = self._names.get(id(one), "")
            if f"before/{name}" in tensors:
                before = tensors[f"before/{name}"]
                none = torch.zeros_like(before)
                tensors[f"after/{name}"] = self._sample(name, one).to(before.dtype)
                tensors[f"gradients/{name}"] = torch.stack([row.get(name, none) for row in rows])
                skipped = [i for i, row in enumerate(rows) if name not in row]
                facts["parameters"][name]["skipped"] = skipped
        tensors = {key: value.cpu().contiguous() for key, value in tensors.items()}
        self.path.mkdir(parents=True, exist_ok=True)
        with replacing(self.path / f"part-{self._files:06d}.safetensors") as temporary:
            save_file(tensors, temporary, {"dlsim": json.dumps(facts)})
        self._files += 1


def _files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.safetensors"))


def _settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in group.items():
        if key == "betas":
            found[key] = [float(one) for one in value]
        elif isinstance(value, (bool, int, float, str, type(None))):
            found[key] = value
        elif getattr(value, "numel", int)() == 1:
            found[key] = float(value)
    return found


class _Part:
    """A file of a probe: updates of one optimizer. `rows` of them count, others come again."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self.path = path
        with self.reading():
            with safe_open(path, framework="pt") as file:
                self.facts: Any = json.loads((file.metadata() or {}).get("dlsim", "{}"))
            if self.facts["schema"] != _SCHEMA:
                raise ValueError(f"expected the schema {_SCHEMA}, got {self.facts['schema']}")
            self.parameters: dict[str, Any] = self.facts["parameters"]
            self.first_step, self.rows = int(self.facts["first_step"]), len(self.facts["settings"])
            if self.rows == 0 or not self.parameters:
                raise ValueError("no updates")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Names the file in what damaged content raises."""
        from safetensors import SafetensorError

        try:
            yield
        except (UsageError, InputError):
            raise
        except (OSError, SafetensorError, *_DAMAGE) as error:
            cause = f"{type(error).__name__}: {error}"
            raise InputError(f"{self.path}: not a file of a probe, or damaged: {cause}") from error

    def kind(self) -> Any:
        """The class of torch.optim; raises InputError for others."""
        import torch

        name, module = self.facts["class"], self.facts["module"]
        if not module.startswith("torch.optim") or name in ("LBFGS", "SparseAdam"):
            wanted = "expected an optimizer of torch.optim that reads one dense gradient a step"
            raise InputError(f"{self.path}: {wanted}, got {module}.{name}")
        for one, facts in self.parameters.items() if name in ("Adafactor", "Muon") else ():
            if math.prod(facts["shape"]) != facts["count"]:
                raise InputError(f"{self.path}: {name} needs {one} whole, expected more elements")
        return getattr(torch.optim, name)


def _parts_of(probe: Sequence[str | os.PathLike[str]]) -> list[_Part]:
    parts: list[_Part] = []
    for one in map(Path, probe):
        files = _files_in(one) if one.is_dir() else [one]
        if not files:
            raise InputError(f"{one}: no part-*.safetensors, expected a folder of ProbeRecorder")
        parts += map(_Part, files)
    for i, part in enumerate(parts):  # a resumed training repeats steps
        later = [p.first_step for p in parts[i + 1 :] if p.path.parent != part.path.parent]
        part.rows = min([part.rows, *(first - part.first_step for first in later)])
    return [part for part in parts if part.rows > 0]


@dataclass(frozen=True)
class _Recipe:
    """In which formats weights and states are kept, and how weights are rounded."""

    weights: str = "fp32"
    states: str = "fp32"
    rounding: str = "rne"
    master: bool = False
    beta2: float | None = None

    @property
    def updated(self) -> str:
        """The format of the weights that the optimizer updates."""
        return "fp32" if self.master else self.weights

    @property
    def plain(self) -> bool:
        """Whether the optimizer computes in 16 bits by itself."""
        return self.updated == self.states != "fp32" and self.rounding == "rne"

    @property
    def name(self) -> str:
        """As the table has it, such as "bf16 + sr"."""
        text = "fp32 master" if self.master else self.weights
        text += "" if self.rounding == "rne" else f" + {self.rounding}"
        text += f", {self.states} states" if self.states != self.updated else ""
        return text + (f", beta2 {self.beta2:g}" if self.beta2 is not None else "")


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


def _in_float32(states: Mapping[Any, Mapping[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {
        name: {k: v.float().clone() if hasattr(v, "numel") else v for k, v in one.items()}
        for name, one in states.items()
    }


class _Replay:
    """The updates of a probe by one recipe, with what is counted of each parameter."""

    def __init__(self, recipe: _Recipe, parts: Sequence[_Part], settings: Any, seed: int) -> None:
        import torch

        self.recipe, self._overrides = recipe, settings
        self.slices: dict[str, slice] = {}  # of the parameters in flat arrays
        self._shapes: dict[str, Any] = {}
        end = 0
        for part in parts:
            for name, facts in part.parameters.items():
                shape, count = facts["shape"], facts["count"]
                if name not in self.slices:
                    self._shapes[name] = shape if math.prod(shape) == count else [count]
                    self.slices[name] = slice(end, end := end + count)
                elif count != self.slices[name].stop - self.slices[name].start:
                    raise InputError(f"{part.path}: {name} has another number of elements")
        computes_in = recipe.updated if recipe.plain else "fp32"
        self._weights = torch.zeros(end, dtype=_dtype(computes_in))
        self._states: dict[Any, Any] = {}  # by series and parameter
        self.start, self._rest = np.full(end, np.nan), torch.zeros(end)
        self._chance = torch.Generator().manual_seed(seed)
        self.counts = np.zeros((3, len(self.slices)), np.int64)  # updates, lost, altered
        self.first_lost = np.full(len(self.slices), -1)
        self.harmed = np.full(len(self.slices) + 1, -1)  # since when; the last one is of the run

    @property
    def weights(self) -> Any:
        """The weights, in float32."""
        return self._weights.float()

    def begin(self, part: _Part, tensors: Mapping[str, Any]) -> None:
        """Takes the weights of new parameters, and the states of an optimizer that begins."""
        self._part, series = part, part.facts["series"]
        for name in part.parameters:
            at, before = self.slices[name], tensors[f"before/{name}"]
            if np.isnan(self.start[at]).all():
                self.start[at] = before.double().numpy()
                self._weights[at] = before.to(_dtype(self.recipe.updated)).to(self._weights.dtype)
            if not part.facts["restarted"] and (series, name) in self._states:
                continue
            kept = self._states[series, name] = dict[str, Any]()
            for key in tensors:
                kind, _, owner = key.partition("/")
                if owner == name and kind.startswith("state."):
                    state, value = kind.removeprefix("state."), tensors[key].clone()
                    if state not in _SCALARS:
                        value = value.to(_dtype(self.recipe.states)).to(self._weights.dtype)
                    if value.numel() == len(before) and state not in _SCALARS:
                        value = value.view(self._shapes[name])
                    kept[state] = value

    def step(self, row: int, gradients: Any) -> None:
        """Makes an update, and counts it by what float32 makes of the same weights and states."""
        import torch

        rounded = gradients.to(_dtype(self.recipe.updated)).to(self._weights.dtype)
        before, owed = self.weights.clone(), self._rest.clone()
        if self.recipe.plain:
            wide = before.clone()
            self._optimize(row, wide, rounded.float(), _in_float32(self._states))
            self._optimize(row, self._weights, rounded, self._states, plain=True)
        else:
            self._optimize(row, self._weights, rounded, self._states)
            wide = self._weights.clone()
            with torch.no_grad():
                self._round(before)
        moved = self.weights.double() - before.double() + self._rest.double() - owed.double()
        self._count((wide.double() - before.double()).numpy(), moved.numpy(), row)

    def _optimize(
        self, row: int, weights: Any, gradients: Any, states: Any, *, plain: bool = False
    ) -> None:
        """Lets the optimizer of PyTorch step, with the states that it had."""
        import torch

        facts, parameters = self._part.facts, dict[str, Any]()
        for name, one in self._part.parameters.items():
            at, shape = self.slices[name], self._shapes[name]
            parameters[name] = torch.nn.Parameter(weights[at].view(shape))
            if row not in one["skipped"]:
                parameters[name].grad = gradients[at].view(shape).clone()
        groups = [
            {"params": [parameters[name] for name in names], **self._settings(told, plain)}
            for names, told in zip(facts["groups"], facts["settings"][row], strict=True)
        ]
        optimizer = self._part.kind()(groups)
        for name, one in parameters.items():
            if states.get((facts["series"], name)):
                optimizer.state[one] = states[facts["series"], name]
        optimizer.step()
        for name, one in parameters.items():
            states[facts["series"], name] = optimizer.state.get(one, {})

    def _settings(self, recorded: Mapping[str, Any], plain: bool) -> dict[str, Any]:
        found, kind = dict(recorded), self._part.facts["class"]
        if found.get("foreach", ...) is None and not found.get("fused"):
            found["foreach"] = any(one["cuda"] for one in self._part.parameters.values())
        found |= {key: False for key in ("capturable", "fused") if key in found}
        found |= {"fused": True} if plain and recorded.get("fused") else {}
        changes = dict(self._overrides)
        if self.recipe.beta2 is not None and "betas" in found:
            changes["beta2"] = self.recipe.beta2
        for key, value in changes.items():
            if key in ("beta1", "beta2") and "betas" in found:
                first, second = found["betas"]
                found["betas"] = [value, second] if key == "beta1" else [first, value]
            elif key in found:
                found[key] = value
            else:
                raise UsageError(f"--set {key}: {kind} has no such setting")
        return found | ({"betas": tuple(found["betas"])} if "betas" in found else {})

    def _round(self, before: Any) -> None:
        """Rounds what float32 has computed to what is stored."""
        recipe, weights, dtype = self.recipe, self._weights, _dtype(self.recipe.updated)
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

    def sums(self, values: Any) -> Any:
        """Sums over the elements of each parameter."""
        exact = values.astype(np.int64 if values.dtype == bool else np.float64)
        return np.add.reduceat(exact, [at.start for at in self.slices.values()])

    def _count(self, wanted: Any, moved: Any, row: int) -> None:
        updates = np.isfinite(wanted) & (wanted != 0)
        lost = updates & (moved == 0)
        with np.errstate(invalid="ignore"):
            near = np.abs(moved - wanted) <= 0.5 * np.abs(wanted)
        now = np.array([self.sums(one) for one in (updates, lost, updates & ~lost & ~near)])
        self.counts += now
        self.first_lost[(now[1] > 0) & (self.first_lost < 0)] = self._part.first_step + row

    def compare(self, reference: _Replay, step: int) -> None:
        """Measures how far the weights are from float32's, over the way that these went."""
        with np.errstate(invalid="ignore", divide="ignore"):
            way = reference.weights.double().numpy() - self.start
            off = self.weights.double().numpy() - self.start - way
            good = np.isfinite(way) & np.isfinite(off)
            self.nonfinite = self.sums(np.isfinite(way) & ~good)
            way, off = np.where(good, way, 0), np.where(good, off, 0)
            ways = np.where((sums := self.sums(way * way)) > 0, sums, np.nan)
            self.drift = np.sqrt(self.sums(off * off) / ways)  # NaN where nothing has moved
            self.progress = self.sums((way + off) * way) / ways
        harmed = np.append(self.nonfinite > 0, self.nonfinite.any())
        harmed |= np.append(np.nan_to_num(self.drift), _mean(self.drift) or 0) > _HARMFUL
        self.harmed = np.where(harmed, np.where(self.harmed < 0, step, self.harmed), -1)

    def second_moments(self) -> Any:
        """The logarithm of the sum of the second moment of each parameter, NaN without one."""
        newest = {name: states for (_, name), states in self._states.items()}
        found = [[newest[n][key] for key in _SECOND if key in newest[n]] for n in self.slices]
        sums = np.array([float(one[0].double().sum()) if one else math.nan for one in found])
        return np.log(np.where((sums > 0) & (sums < math.inf), sums, np.nan))

    def figures(self, ratios: Any, which: slice, harmed: int) -> dict[str, Any]:
        """What is said of some of the parameters; shares are of the updates that float32 makes."""
        updates, lost, altered = map(int, self.counts[:, which].sum(axis=1))
        ratio, since = _mean(ratios[which]), self.harmed[harmed]
        losing = self.first_lost[which][self.first_lost[which] >= 0]
        return {
            "drift": _mean(self.drift[which]),
            "progress": _mean(self.progress[which]),
            "updates": updates,
            "lost": lost / updates if updates else None,
            "altered": altered / updates if updates else None,
            "second_moment_ratio": None if ratio is None else math.exp(ratio),
            "nonfinite": int(self.nonfinite[which].sum()),
            "first_lost": int(losing.min()) if losing.size else None,
            "harmed_from": None if since < 0 else int(since),
        }

    def run(self, reference: _Replay) -> dict[str, Any]:
        """What is said of the run, and of each parameter: the JSON of docs/updates.md."""
        ratios = self.second_moments() - reference.second_moments()
        found = self.figures(ratios, slice(None), -1)
        verdict = "sound" if found["harmed_from"] is None else "drifts"
        verdict = "not finite" if found["nonfinite"] else verdict
        tensors = [
            {"tensor": name, "elements": at.stop - at.start}
            | self.figures(ratios, slice(i, i + 1), i)
            for i, (name, at) in enumerate(self.slices.items())
        ]
        facts = {"name": self.recipe.name, **asdict(self.recipe), "verdict": verdict}
        return {**facts, **found, "fixes": [], "tensors": tensors}


def _mean(values: Any) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _recipes_of(asked: _Recipe | None, first: Mapping[str, Any]) -> list[_Recipe]:
    """Returns the recipe that was asked for, or the usual ones, and what may do better."""
    tried = [asked or _Recipe("bf16", "bf16")]
    run, nearest = tried[0], replace(tried[0], rounding="rne")
    if run.updated != "fp32":
        tried += [replace(run, rounding="sr"), replace(run, rounding="kahan")]
    if run.states != "fp32" and first.get("betas", (0, 0))[1] > _DECAYING_BETA2:
        tried.append(replace(run, beta2=_DECAYING_BETA2))
    if run.updated != "fp32" and run.states != "fp32" and first.get("momentum", 1) != 0:
        tried += [replace(run, states="fp32"), replace(nearest, master=True)]
    if asked is None and _can_compute("fp16"):
        tried.append(_Recipe("fp16", "fp16"))
    return list(dict.fromkeys(tried))


def _can_compute(name: str) -> bool:
    """Returns whether this PyTorch has the arithmetic of a type on the CPU."""
    import torch

    try:
        torch.ones(2, dtype=_dtype(name)).sqrt().addcdiv_(*torch.ones(2, 2, dtype=_dtype(name)))
    except RuntimeError:
        return False
    return True


def _fix(run: _Recipe, other: _Recipe) -> str:
    """How a run differs from another that fixes it; empty if it is no variant of it."""
    if (run.weights, run.master) != (other.weights, other.master):
        return "float32 master weights" if other.master and run.weights == other.weights else ""
    if other.beta2 != run.beta2:
        return "" if other.beta2 is None else f"beta2 {other.beta2:g}"
    if other.rounding != run.rounding:
        return {"sr": "stochastic rounding", "kahan": "Kahan summation"}.get(other.rounding, "")
    return "float32 states" if other.states == "fp32" != run.states else ""


def _fixes(run: Mapping[str, Any], recipe: _Recipe, others: Any) -> list[str]:
    found = []
    for other, of in others if run["verdict"] != "sound" else ():
        helps = run["nonfinite"] or (other["drift"] or 0) <= _FIXED * (run["drift"] or 0)
        if other["verdict"] == "sound" and helps and (text := _fix(recipe, of)):
            found.append(text)
    if run["verdict"] != "sound" and not found:
        return ["float32 weights and states"]
    return list(dict.fromkeys(found))


def _sentences(run: Mapping[str, Any], recipe: _Recipe, eps: float) -> Iterator[str]:
    """The verdict on a run."""
    import torch

    name, first = run["name"], {one["first_lost"]: one["tensor"] for one in run["tensors"][::-1]}
    lost = "no update is lost"
    if run["lost"]:
        at = f"step {run['first_lost']}, {first[run['first_lost']]}"
        lost = f"{percent_text(run['lost'])} of the updates are lost (first at {at})"
    if run["verdict"] == "not finite":
        bad = percent_text(run["nonfinite"] / sum(one["elements"] for one in run["tensors"]))
        is_zero = recipe.plain and eps and not torch.tensor(eps).to(_dtype(recipe.updated))
        why = f"; eps {eps:g} is zero in {recipe.updated}" if is_zero else ""
        yield f"{name} cannot train: {bad} of the followed weights are not finite at the end{why}."
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
    if run["fixes"]:
        text = " or ".join(filter(None, [", ".join(run["fixes"][:-1]), run["fixes"][-1]]))
        yield f"{text[0].upper()}{text[1:]} would prevent this."


def _replay_all(parts: Sequence[_Part], replays: Sequence[_Replay], wide: Any) -> float | None:
    """Replays all updates; returns how far float32 ends from what was recorded."""
    import torch
    from safetensors.torch import load_file

    plain = wide[None]
    recorded, gradients = np.full(len(plain.start), np.nan), torch.zeros(len(plain.start))
    for part in parts:
        with part.reading():
            tensors = load_file(part.path)
            for one in (*wide.values(), *replays):
                one.begin(part, tensors)
            for row in range(part.rows):
                for name in part.parameters:
                    gradients[plain.slices[name]] = tensors[f"gradients/{name}"][row].float()
                for one in (*wide.values(), *replays):
                    one.step(row, gradients)
                for one in replays:
                    one.compare(wide[one.recipe.beta2], part.first_step + row)
            for name in part.parameters:
                after, is_whole = tensors[f"after/{name}"], part.rows == len(part.facts["settings"])
                fits = is_whole and after.dtype == torch.float32
                recorded[plain.slices[name]] = after.double().numpy() if fits else np.nan
    known = np.isfinite(recorded - plain.start)
    way, off = recorded - plain.start, plain.weights.double().numpy() - recorded
    moved = float(np.sum(way[known] ** 2))
    return math.sqrt(float(np.sum(off[known] ** 2)) / moved) if moved > 0 else None


def updates(
    probe: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    weights: str | None = None,
    states: str | None = None,
    rounding: Literal["rne", "sr", "kahan"] = "rne",
    master: Literal["none", "fp32"] = "none",
    settings: Mapping[str, float] = {},
    seed: int = 0,
) -> Result:
    """Replays the updates of a probe with weights and optimizer states in other formats.

    `probe` is a folder of `ProbeRecorder`, or several of one training. Formats are "fp32", "bf16"
    and "fp16"; without any, the usual recipes are tried. `rounding` of the weights is "rne", "sr"
    (stochastic) or "kahan"; `master="fp32"` updates float32 weights. `settings` replace recorded
    ones in all runs, such as {"lr": 1e-4, "beta2": 0.99}. The result is a dlsim.updates/2.
    """
    from .results import Result

    for option, value, choices in (
        ("weights", weights or "fp32", ("fp32", "bf16", "fp16")),
        ("states", states or "fp32", ("fp32", "bf16", "fp16")),
        ("rounding", rounding, ("rne", "sr", "kahan")),
        ("master", master, ("none", "fp32")),
    ):
        if value not in choices:
            raise UsageError(f"{option}: expected one of {', '.join(choices)}, got {value!r}")
    for name, number in settings.items():
        if not 0 <= number < (1 if name in ("beta1", "beta2") else math.inf):
            raise UsageError(f"--set {name}: out of range, got {number:g}")
    own = "fp32" if master == "fp32" else weights or "fp32"
    if rounding != "rne" and own == "fp32":
        raise UsageError("rounding: float32 weights need none, expected weights of 16 bits")
    asked = _Recipe(weights or "fp32", states or own, rounding, master == "fp32")
    parts = _parts_of([probe] if isinstance(probe, (str, os.PathLike)) else probe)
    first = {**parts[0].facts["settings"][0][0], **settings}
    recipes = _recipes_of(asked if weights or states else None, first)
    replays = [_Replay(one, parts, settings, seed) for one in recipes]
    wide = {
        beta2: _Replay(_Recipe(beta2=beta2), parts, settings, seed)
        for beta2 in dict.fromkeys([None, *(one.beta2 for one in recipes)])
    }
    distance = _replay_all(parts, replays, wide)
    runs = [one.run(wide[one.recipe.beta2]) for one in replays]
    for run, recipe in zip(runs, recipes, strict=True):
        run["fixes"] = _fixes(run, recipe, zip(runs, recipes, strict=True))
    lines = list(_sentences(runs[0], recipes[0], first.get("eps", 0) if "betas" in first else 0))
    distance = None if settings else distance
    if distance is not None and distance > _MISSED:
        lines.append(
            f"note: the float32 replay misses the recorded weights by {distance:.2g} of the "
            "distance that they moved: something else changed them as well"
        )
    facts = {
        "path": str(parts[0].path.parent),
        "tensors": len(replays[0].slices),
        "elements": len(replays[0].start),
        "updates": sum(part.rows for part in parts),
        "first_step": min(part.first_step for part in parts),
        "last_step": max(part.first_step + part.rows - 1 for part in parts),
        "optimizers": list(dict.fromkeys(part.facts["class"] for part in parts)),
        "distance_from_recorded": distance,
    }
    options = {"seed": seed, "settings": dict(settings)}
    data: dict[str, Any] = {"schema": "dlsim.updates/2", "probe": facts, "options": options}
    data |= {"lines": lines, "runs": runs}
    return Result((), data, (), _report(data))


_FIGURES = {
    "lost": "lost",
    "altered": "altered",
    "second_moment_ratio": "2nd moment",
    "nonfinite": "not finite",
    "harmed_from": "harmed from",
}
_RUN = {"name": "run", "verdict": "verdict", "drift": "drift", "progress": "progress", **_FIGURES}
_LEGEND = """\
  drift: distance from float32's weights over the distance that float32 moves them, mean over the
tensors; progress: share of that movement; lost: updates that left the weight as it was; altered: by
more than half; 2nd moment: over float32's."""


def _report(data: Mapping[str, Any]) -> str:
    def table(heads: Mapping[str, str], runs: Sequence[Mapping[str, Any]]) -> str:
        return table_text([[*heads.values()], *([_cell(r, key) for key in heads] for r in runs)])

    probe, runs = data["probe"], data["runs"]
    lines = [
        f"Followed: {probe['elements']} elements in {counted(probe['tensors'], 'tensors')}, "
        f"{counted(probe['updates'], 'updates')} of {', '.join(probe['optimizers'])} (steps "
        f"{probe['first_step']} to {probe['last_step']}).",
        "Gradients are as recorded; in training, weights that drift would get different ones.",
    ]
    distance = probe["distance_from_recorded"]
    if distance is not None and distance <= _MISSED:
        ends = f"to within {distance:.2g} of the distance that they moved"
        lines.append(f"Check: the float32 replay reproduces the recorded weights {ends}.")
    worst = next((run for run in runs if run["verdict"] != "sound"), runs[0])
    heads = {"tensor": f"worst of {worst['name']}", "elements": "elements", "drift": "drift"}
    order = sorted(worst["tensors"], key=lambda one: (-one["nonfinite"], -(one["drift"] or 0)))
    parts = ["".join(map(wrapped, data["lines"])), "".join(map(wrapped, lines))]
    parts += [table(_RUN, runs), wrapped(_LEGEND), table({**heads, **_FIGURES}, order[:5])]
    return "\n".join(parts)


def _cell(run: Mapping[str, Any], key: str) -> str:
    value = run[key]
    if value is None:
        return "-"
    if key in ("lost", "altered"):
        return percent_text(value)
    return f"{value:.2g}" if isinstance(value, float) else str(value)


_OPTIONS = {
    "weights": "Format of the weights: fp32, bf16 or fp16; without it and --states, several "
    "common recipes are tried",
    "states": "Format of the optimizer's states (default: that of the weights which it updates)",
    "rounding": "How weights are rounded: rne (default), sr (stochastic) or kahan (compensated)",
    "master": "fp32: the optimizer updates float32 weights, and --weights are copies of them",
}
_EXAMPLES = """Examples:
  dlsim updates runs/probe
  dlsim updates runs/probe --weights bf16 --states fp32
  dlsim updates runs/probe --weights bf16 --rounding sr --seed 7
  dlsim updates runs/probe --weights bf16 --master fp32 --states bf16 --set beta2=0.99
"""


def main(arguments: Sequence[str]) -> int:
    """Runs `dlsim updates ARGUMENTS...` and returns the exit code; raises dlsim.Error."""
    from ._command_parser import CommandParser, print_result

    about = "Replay recorded optimizer updates with weights and states in 16 bits."
    parser = CommandParser(prog="dlsim updates", description=about, epilog=_EXAMPLES)
    add = parser.add_argument
    add("probe", nargs="+", metavar="PROBE", help="A folder of dlsim.ProbeRecorder, or its files")
    for name, text in _OPTIONS.items():
        add(f"--{name}", metavar="F" if name != "rounding" else "MODE", help=text)
    told = "Replace a setting in all runs, also of float32, such as lr, beta2, weight_decay"
    add("--set", metavar="NAME=X", action="append", default=[], help=told)
    add("--seed", type=int, metavar="N", help="Seed of stochastic rounding (default 0)")
    add("--json", metavar="FILE", help="Write the full result as JSON; - is standard output")
    try:
        options = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    except SystemExit as ended:  # --help
        return int(ended.code or 0)
    settings, json_path = {}, options.pop("json", None)
    for text in options.pop("set"):
        name, _, value = text.partition("=")
        try:
            settings[name] = float(value)
        except ValueError:
            raise UsageError(f"--set: expected NAME=NUMBER, got {text!r}") from None
    print_result(updates(settings=settings, **options), json_path)
    return 0
