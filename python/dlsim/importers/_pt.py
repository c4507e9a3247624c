# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save, read by PyTorch, to a trace or profile: a step per file, or per folder."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from .._errors import InputError, needed
from .._text import some_of
from .._values import Paths, PathText
from ._steps import (
    DEEPEST,
    MSPROBE_FOLDER,
    Import,
    Imported,
    Part,
    Position,
    files_of,
    in_order,
    numbered_name,
    one_line,
    position_of,
    scalars,
)

_MOST_NODES = 4_000_000
# Tensors whose elements share memory may need so much more than some times the file in all.
_MOST_EXPANDED = 1 << 26
_MOST_REPEATED = 4
_KEPT_TYPES = frozenset(("torch.float16", "torch.float32", "torch.float64", "torch.bfloat16"))
_8_BIT_TYPES = frozenset(("torch.float8_e4m3fn", "torch.float8_e5m2"))
# All that a file may call, besides OrderedDict.
_REBUILT = frozenset(
    f"torch._utils._rebuild_{what}" for what in ("parameter", "tensor_v2", "tensor_v3")
)
# What torch.optim calls the tensors of its states.
_STATES = frozenset(
    "exp_avg exp_avg_sq max_exp_avg_sq exp_inf momentum_buffer square_avg grad_avg".split()
)
# msprobe of Ascend's MindStudio: step0/rank0/dump_tensor_data/Module.fc.Linear.forward.0.input.0.pt
_MSPROBE = re.compile(
    r"(?P<owner>.+)\.(?P<kind>forward|backward|parameters|parameters_grad)\.(?P<rest>.+)"
)
_MSPROBE_ROLES = {
    "forward": "act",
    "backward": "act_grad",
    "parameters": "value",
    "parameters_grad": "grad",
}


def import_pt(
    inputs: Paths,
    output: PathText,
    *,
    tensors: str | Iterable[str] = "*",
    act_grad: str | Iterable[str] = (),
    key: str = "",
    step: int | None = None,
    grad_scale: float | None = None,
    force: bool = False,
) -> Imported:
    """Imports gradients saved by torch.save, one step, micro-step or rank per file or folder.

    A file holds tensors in nested dicts and lists; `key` (dotted) is the part to take. Values keep
    their bits and types (8-bit floats become float32). The step is in the file's name, or counted
    from `step` on in the order of the files. Files in a folder named after a step, such as those of
    msprobe, and files whose numbers count layers, as in conv1.pt, hold tensors of one step.
    `grad_scale` is the loss scale that the values still carry. torch.load reads with
    `weights_only`, so no pickled code is run; states of optimizers are refused.
    Raises InputError, UsageError, and ModuleNotFoundError without torch.
    """
    job = Import(output, tensors, act_grad, grad_scale=grad_scale, force=force)
    files = files_of(inputs, (".pt", ".pth"))
    places = _places(files, step, key, job)

    def parts() -> Iterator[Part]:
        for position, of_part in places:
            yield position, *_read(of_part, key, job)

    return job.write("pt", files[0].parent, [position for position, _ in places], parts())


def _places(
    files: list[Path], step: int | None, key: str, job: Import
) -> list[tuple[Position, list[Path]]]:
    """Returns the files of each position: one, or several that hold a tensor each."""
    if step is not None:
        return [(Position(step + i), [path]) for i, path in enumerate(files)]
    named = [(path, numbered_name(path)) for path in files]
    records = [
        (path, found.position) for path, found in named if found and found.counts == "record"
    ]
    are_tensors = any(found and found.counts == "tensor" for _, found in named) or (
        len(records) > 1 and _shapes_differ(records, key, job)
    )
    alone: list[tuple[Position, Path]] = []
    shared: dict[Position, list[Path]] = {}
    for path, found in named:
        if found is None and (inside := _step_in(path, load(path))) is not None:
            alone.append((Position(inside), path))
        elif are_tensors and (found is None or found.counts in ("record", "tensor")):
            position = replace(found.position, step=0) if found else Position(0)
            shared.setdefault(position, []).append(path)
            job.note("the numbers in the files' names count tensors, not steps: imported as step 0")
        elif found is not None and found.counts == "folder":
            shared.setdefault(found.position, []).append(path)
        else:
            alone.append((position_of(path), path))
    ordered = in_order([*alone, *((position, paths[0]) for position, paths in shared.items())])
    return [(position, shared.get(position, [path])) for position, path in ordered]


def _shapes_differ(files: list[tuple[Path, Position]], key: str, job: Import) -> bool:
    """Whether a gradient of a rank has another shape in another file, as those of layers have."""
    shapes: dict[tuple[int, str], tuple[int, ...]] = {}
    for path, position in files:
        for found, tensor in _leaves(path, _descend(path, load(path), key)):
            name, shape = found or _lone_name(path), tuple(tensor.shape)
            if job.role(name) != "grad":  # activations may have the length of their batch
                continue
            if shapes.setdefault((position.rank, name), shape) != shape:
                return True
    return False


def _read(files: list[Path], key: str, job: Import) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the chosen tensors of a part, and the numbers that dlsim knows as metadata."""
    tensors: dict[str, Any] = {}
    numbers: dict[str, str] = {}
    for path in files:
        tree = load(path)
        if isinstance(tree, Mapping):
            numbers |= scalars(path, tree)
        lone = _lone_name(path)
        found = tensors_in(path, _descend(path, tree, key), lone, job)
        if len(files) > 1 or path.parent.name == MSPROBE_FOLDER:
            name = _name_of_file(path)
            found = {name if n == lone else f"{name}.{n}": values for n, values in found.items()}
        if repeated := tensors.keys() & found.keys():
            raise InputError(
                f"{path}: tensor {min(repeated)!r} is in another file of the step, too"
            )
        tensors |= {name: values for name, values in found.items() if job.takes(name)}
    if not tensors:
        place = files[0] if len(files) == 1 else files[0].parent
        raise InputError(f"{place}: no tensor to import, expected floating-point tensors")
    return tensors, numbers


def _lone_name(path: Path) -> str:
    """The name of a tensor that is alone in a file of a step: that of the file without numbers."""
    found = numbered_name(path)
    rest = path.stem if found is None else found.rest
    return "_".join(word for word in re.split(r"[-_.~]+", rest) if word) or "tensor"


def _name_of_file(path: Path) -> str:
    """The name of a tensor whose file shares its step with others; of msprobe's with the role."""
    found = _MSPROBE.fullmatch(path.stem) if path.parent.name == MSPROBE_FOLDER else None
    if found is None:
        return path.stem
    owner = re.sub(r"^Module\.(?:(.+)\.)?\w+$", r"\1", found["owner"])  # without the class
    kind = "" if found["kind"].startswith("parameters") else found["kind"]
    return ".".join(filter(None, (owner, kind, found["rest"], _MSPROBE_ROLES[found["kind"]])))


def _step_in(path: Path, tree: Any) -> int | None:
    """Returns the step number that a dict holds under "step", if it is one. Raises InputError."""
    step = tree.get("step") if isinstance(tree, Mapping) else None
    if isinstance(step, bool) or not isinstance(step, int):
        return None
    if step < 0:
        raise InputError(f"{path}: a negative step number: {step}")
    return step


def _torch() -> Any:
    return needed("torch", "files of torch.save need PyTorch: pip install torch")


def load(path: Path, *, keeps_foreign: bool = False) -> Any:
    """Returns what torch.save has saved, in memory that is mapped where PyTorch can.

    With `keeps_foreign` objects of other packages' classes are there as Foreign, else they are
    refused, as they are by PyTorch before 2.1. No code of the file is run. Raises InputError, and
    ModuleNotFoundError without torch.
    """
    torch = _torch()
    maps_memory = "mmap" in signature(torch.load).parameters  # from PyTorch 2.1 on
    options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    if keeps_foreign and maps_memory:  # PyTorch 1.13 has the argument and does not use it
        options |= {"weights_only": False, "pickle_module": _Pickle}
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    raise InputError(f"{path}: refused: a TorchScript archive, which is code")
            if maps_memory:
                options["mmap"] = True
        return torch.load(str(path), **options)
    except InputError:
        raise
    except Exception as error:  # whatever a damaged file makes PyTorch raise
        text = str(error)
        if named := re.search(r"Unsupported class (\S+)|GLOBAL (\S+)", text):
            raise InputError(
                f"{path}: refused: it refers to {one_line(named[1] or named[2])}, "
                "expected tensors, dicts, lists, numbers and text"
            ) from error
        _, _, reason = text.rpartition("WeightsUnpickler error:")
        raise InputError(f"{path}: cannot be read by torch.load: {one_line(reason)}") from error


class Foreign:
    """An object of another package's class, without its content; its methods are of no effect."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...

    def __call__(self, *_: object, **__: object) -> Foreign:
        return self


class _Pickle:
    """What torch.load takes as a module pickle: it finds PyTorch's tensors, all else is Foreign."""

    class Unpickler(pickle.Unpickler):
        """Calls nothing but what rebuilds tensors and dicts."""

        def find_class(self, module: str, name: str) -> Any:
            """Returns one of a few functions, whatever the pickle names."""
            full = f"{module}.{name}"
            if full in _KEPT_TYPES | _8_BIT_TYPES or full == "collections.OrderedDict":
                return super().find_class(module, name)
            return _own(super().find_class(module, name)) if full in _REBUILT else Foreign


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of its own for a pickle, which may set attributes of what it names."""

    def own(*arguments: Any) -> Any:
        return function(*arguments)

    return own


def _descend(place: object, tree: Any, key: str) -> Any:
    """Returns the part of a nested dict under the dotted `key`. Raises InputError."""
    for part in key.split(".") if key else ():
        if not isinstance(tree, Mapping) or part not in tree:
            keys = some_of(sorted(map(str, tree)), 8) if isinstance(tree, Mapping) else "no dict"
            raise InputError(f"{place}: no key {part!r} of {key!r}, expected one of {keys}")
        tree = tree[part]
    return tree


def tensors_in(path: Path, tree: Any, name: str, job: Import) -> dict[str, Any]:
    """Returns the floating-point tensors of nested dicts and lists, by their dotted names.

    A lone tensor gets `name`. What holds no gradient values is left out with a note.
    """
    tensors: dict[str, Any] = {}
    most = _MOST_REPEATED * path.stat().st_size + _MOST_EXPANDED
    needed = 0
    for found, value in _leaves(path, tree):
        label = found or name
        if label in tensors:
            raise InputError(f"{path}: two tensors are named {label!r}")
        kind = str(value.dtype)
        if str(value.layout) != "torch.strided" or value.is_quantized or value.is_meta:
            job.note(f"left out {label!r}: sparse, quantized or without values")
            continue
        if kind not in _KEPT_TYPES | _8_BIT_TYPES:
            job.note(f"left out {label!r}: {kind} is not a floating-point type")
            continue
        needed += value.numel() * (4 if kind in _8_BIT_TYPES else value.element_size())
        if needed > most:
            raise InputError(
                f"{path}: {label!r}: tensors far larger than the file that holds them, expected at "
                f"most {most} bytes in all, got {needed}"
            )
        plain = value.detach().resolve_neg()
        tensors[label] = (plain.float() if kind in _8_BIT_TYPES else plain).contiguous()
    return tensors


def _leaves(path: Path, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of a tree in its order. Raises InputError for states of optimizers."""
    is_tensor = _torch().is_tensor
    waiting: list[tuple[str, Any, int]] = [("", tree, 0)]
    nodes = 0
    while waiting:
        name, value, depth = waiting.pop()
        nodes += 1
        if depth > DEEPEST or nodes > _MOST_NODES:
            raise InputError(f"{path}: nested deeper than {DEEPEST} levels, or too large")
        is_state = isinstance(value, Mapping) and {"state", "param_groups"} <= value.keys()
        if is_state or (is_tensor(value) and not _STATES.isdisjoint(name.split("."))):
            raise InputError(
                f"{path}: refused: {name or 'it'} is the state of an optimizer, expected "
                "gradients, or --key for the part that holds them"
            )
        if is_tensor(value):
            yield name, value
        elif isinstance(value, (Mapping, list, tuple)):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, item in reversed(list(items)):
                waiting.append((f"{name}.{key}" if name else str(key), item, depth + 1))


# -- TransformerEngine's tensor_dumps (DumpTensors of nvidia-dlframework-inspect)

# Source of the layout: transformer_engine/debug/features/dump_tensors.py. A file is
# tensor_dumps/rank_<N>/<layer>_<tensor>_iter_<NNNNNN>.pt, where dots and spaces of the layer's name
# are underscores, and holds a dict of `high_precision` and `quantized`.

_NAME = re.compile(
    r"(?P<layer>.+)_(?P<tensor>activation|weight|gradient|output|wgrad|dgrad)"
    r"_iter_(?P<step>\d{6,18})\.pt",
    re.DOTALL,
)
_RANK = re.compile(r"rank_(\d{1,9})")

# What a dumped tensor is called in a trace, whose names give roles. The activation is the layer's
# input.
_SUFFIXES = {
    "activation": ".activation.act",
    "output": ".act",
    "weight": ".weight.value",
    "wgrad": ".weight.grad",
    "gradient": ".gradient.act_grad",
    "dgrad": ".dgrad.act_grad",
}


def import_te(
    inputs: Paths,
    output: PathText,
    *,
    tensors: str | Iterable[str] = "*",
    grad_scale: float | None = None,
    force: bool = False,
) -> Imported:
    """Imports the high-precision tensors of TransformerEngine's DumpTensors.

    `inputs` is the log directory, its tensor_dumps, or one of their rank_<N>. `wgrad` becomes
    <layer>.weight.grad, `gradient` and `dgrad` (of a layer's output and input) become activation
    gradients; `output` and `activation` (a layer's input) are those of the forward pass, and
    `weight` is a parameter. Raises InputError, UsageError, and ModuleNotFoundError without torch.
    """
    job = Import(output, tensors, grad_scale=grad_scale, force=force)
    files: dict[Position, dict[str, Path]] = {}
    for path in (given := files_of(inputs, (".pt",))):
        found = _NAME.fullmatch(path.name)
        of_rank = _RANK.fullmatch(path.parent.name)
        if found is None:
            job.note("left out files not named <layer>_<tensor>_iter_<number>.pt")
        elif job.takes(name := found["layer"] + _SUFFIXES[found["tensor"]]):
            position = Position(int(found["step"]), rank=int(of_rank[1]) if of_rank else -1)
            of_part = files.setdefault(position, {})
            if name in of_part:
                raise InputError(f"{path}: holds the same tensor and step as {of_part[name]}")
            of_part[name] = path
    if not files:
        raise InputError(
            f"{given[0].parent}: no tensors, expected files such as rank_0/fc1_wgrad_iter_000000.pt"
        )
    if len({position.rank for position in files}) > 1:
        job.note(
            "several ranks: dlsim takes them as data-parallel; where they hold parts of a layer, "
            "import the directory of one"
        )

    def parts() -> Iterator[Part]:
        for position in sorted(files):
            named = files[position].items()
            yield position, {name: _high_precision(path, name, job) for name, path in named}, {}

    return job.write("te", "tensor_dumps", files, parts())


def _high_precision(path: Path, name: str, job: Import) -> Any:
    tree = load(path, keeps_foreign=True)
    if not isinstance(tree, Mapping) or "high_precision" not in tree:
        raise InputError(f"{path}: no high_precision tensor, expected one of DumpTensors")
    found = tensors_in(path, tree["high_precision"], name, job)
    if list(found) != [name]:
        raise InputError(f"{path}: high_precision is not a floating-point tensor")
    return found[name]
