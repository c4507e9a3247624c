# SPDX-License-Identifier: Apache-2.0
"""The Cerebras Model Zoo: its trainer, the layout before it, and its TensorFlow Trainer.

Source: Cerebras/modelzoo, trainer/callbacks/precision.py, common/pytorch/run_cstorch_flow.py and
common/tf/optimizers/Trainer.py.
"""

from __future__ import annotations

from ._meaning import Config, Options, Policy, autocast_formats, no_scaler
from ._reading import Number, Source, Table, described

_TYPES = {"float16": "fp16", "bfloat16": "bf16", "cbfloat16": "cb16"}
_BACKENDS = ("csx", "gpu", "cpu")
_SCALING = (
    "loss_scaling_factor", "initial_loss_scale", "steps_per_increase", "min_loss_scale",
    "max_loss_scale", "max_gradient_norm", "max_gradient_value",
)  # fmt: skip
_PRECISION = (
    "enabled", "fp16_type", "precision_opt_level", *_SCALING, "log_loss_scale",
)  # fmt: skip
_NO_CBFLOAT16 = (
    "In order to use cbfloat16, dynamic loss scaling must be enabled. Otherwise, gradients might "
    "underflow/overflow in the middle of training and cause NaNs. Please set `loss_scaling_factor` "
    "to `dynamic` to use cbfloat16."
)


class _Scaling:
    """The keys of loss scaling, which all layouts share; 0 and absent mean the default."""

    def __init__(self, table: Table, *dynamic: str) -> None:
        self.table, self.factor = table, "static"
        node = table.node("loss_scaling_factor")
        self.static: Number = Number("1")
        if node is not None and node.value in dynamic:
            self.factor = node.text
        elif node is not None:
            if not isinstance(node.value, Number) and not node.text[:1].isdigit():
                expected = " or ".join(["a number", *(f"'{name}'" for name in dynamic)])
                table.refuse("loss_scaling_factor", "wrong value", expected, described(node))
            self.static = table.number("loss_scaling_factor", least=0) or Number("0")
        self.initial = table.number("initial_loss_scale", least=0)
        self.least = table.number("min_loss_scale", least=0)
        self.most = table.number("max_loss_scale", least=0)
        self.steps = table.integer("steps_per_increase", least=1)

    def require_order(self, top: float) -> None:
        if (self.least or 2**-14) > (self.most or top):
            key = "min_loss_scale" if self.least else "max_loss_scale"
            self.table.refuse(key, "the least loss scale is above the largest")

    def on_csx(self, fp16_type: str) -> Policy:
        """The Model Zoo's own scaler."""
        policy = Policy("cerebras-2.10", [f"fp16_type={fp16_type}"])
        if self.factor == "static":
            policy.set("loss_scale", self.static)
            return policy
        policy.set("init_scale", self.initial)
        policy.set("steps_per_increase", self.steps)
        policy.set("min_loss_scale", self.least)
        policy.set("max_loss_scale", self.most)
        return policy

    def on_gpu(self, default: str, notes: list[str]) -> Policy:
        """The torch scaler that the Model Zoo makes on GPUs."""
        policy = Policy("torch")
        if self.factor == "static":
            notes.append(
                "the static loss scale is a torch GradScaler that never grows: an overflow halves "
                "it for good"
            )
            policy.set("init_scale", self.static)
            policy.set("growth_interval", 2**63 - 1)
            return policy
        policy.set("init_scale", default if self.initial is None else self.initial)
        policy.set("growth_interval", self.steps or 2000)
        if self.least is not None or self.most is not None:
            notes.append("min_loss_scale and max_loss_scale have no effect outside CSX")
        return policy


def _clip(table: Table, config: Config, zero_is_off: bool = False) -> None:
    found = {}
    for key in ("max_gradient_norm", "max_gradient_value"):
        limit = table.number(key)
        if limit is not None and (limit < 0 or (limit == 0.0 and not zero_is_off)):
            problem = "cannot be negative" if zero_is_off else "has to be a positive float"
            table.refuse("", f"{key} {problem}. Got {limit.text}")
        found[key] = float(limit) if limit else None
    config.max_norm, config.max_value = found.values()
    if config.max_norm and config.max_value:
        table.refuse("max_gradient_value", "clips a second time", "one of the two limits")


def _backend(table: Table, key: str) -> str | None:
    return table.choice(key, _BACKENDS, lower=True)


def _opt_level(tables: list[Table | None], config: Config) -> None:
    levels = [table.integer("precision_opt_level", 0, 2) for table in tables if table]
    if any(level is not None for level in levels):
        config.notes.append("precision_opt_level has no effect on a replay")


def read_trainer(source: Source, options: Options) -> Config:
    """trainer.init: its table precision is the class MixedPrecision."""
    config, file = Config("Model Zoo trainer"), source.table
    node = file.node("trainer")
    if node is not None and isinstance(node.value, list) and node.value:
        if len(node.value) > 1:
            config.notes.append(f"the file lists {len(node.value)} trainers: the first is read")
        first = node.value[0]
        entries = first.value if isinstance(first.value, dict) else {}
        file = Table(file.file, entries, "trainer[0]", first.line)
    trainer = file.table("trainer")
    init = trainer.table("init") if trainer else None
    if init is None:
        file.refuse("trainer", "no table init", "trainer.init")
    config.notes += init.misspelt(("precision", "backend", "device", "loop"))
    block = init.table_or_empty("backend")
    config.notes += block.misspelt(("backend_type",))
    backend, device = _backend(block, "backend_type"), _backend(init, "device")
    if backend and device:
        init.refuse("device", "backend and device are mutually exclusive", "one of them")
    backend = options.backend or backend or device or "csx"
    precision = init.table("precision")
    if precision is None:
        config.policies = [no_scaler()]
        config.notes.append("no trainer.init.precision: no mixed precision and no loss scaling")
    else:
        _read_precision(precision, backend, config)
    loop = init.table_or_empty("loop")
    config.notes += loop.misspelt(("grad_accum_steps",))
    _accumulate(loop.integer("grad_accum_steps", 1), backend, "loop.", config)
    return config


def _accumulate(steps: int | None, backend: str, path: str, config: Config) -> None:
    if backend != "csx":
        config.micro_steps = steps
    elif (steps or 1) > 1:
        config.notes.append(f"{path}grad_accum_steps has no effect on CSX")


def _read_precision(table: Table, backend: str, config: Config) -> None:
    table.require_known(_PRECISION)
    for key in ("enabled", "fp16_type", "loss_scaling_factor", "steps_per_increase"):
        if key in table.entries and table.entries[key].value is None:
            table.refuse(key, "wrong type", "a value, or no such key", "null")
    _opt_level([table], config)
    enabled = table.boolean("enabled") is not False or backend == "csx"
    if table.boolean("enabled") is False and enabled:
        config.notes.append("mixed precision must be enabled for CSX: enabled false is ignored")
    fp16_type = table.choice("fp16_type", tuple(_TYPES)) or "bfloat16"
    scaling = _Scaling(table, "dynamic")
    scaling.require_order(2.0**31 if fp16_type == "cbfloat16" else 2.0**15)
    _clip(table, config)
    if not enabled:
        config.notes.append("enabled false: this run computes in float32")
    else:
        # The original replaces the type by an object that is not equal to "bfloat16", so that it
        # still makes a scaler.
        computes = fp16_type
        if fp16_type == "cbfloat16" and backend == "csx" and scaling.factor == "static":
            table.refuse("", _NO_CBFLOAT16)
        if fp16_type != "bfloat16" and backend == "cpu":
            computes = "bfloat16"
            config.notes.append("mixed precision on CPU is only supported with bfloat16")
        elif fp16_type == "cbfloat16" and backend != "csx":
            computes = "bfloat16"
            config.notes.append("cbfloat16 is only supported on CSX: the half type is bfloat16")
        config.formats = [_TYPES[computes]]
        config.updates = autocast_formats(config.formats[0])
    if fp16_type == "bfloat16":
        config.policies = [no_scaler()]
        config.notes.append(
            "fp16_type bfloat16 switches loss scaling off: loss_scaling_factor has no effect"
            if scaling.factor == "dynamic" or scaling.static != 1.0
            else "fp16_type bfloat16: no loss scaling"
        )
    elif backend == "csx":
        config.policies = [scaling.on_csx(fp16_type)]
    else:
        config.policies = [scaling.on_gpu("65536", config.notes)]


def _mixed_precision(file: Table) -> bool:
    """Of the layouts before the trainer; the documents of release 1.6 have it in `training`."""
    for name in ("model", "training"):
        mixed = file.table_or_empty(name).boolean("mixed_precision")
        if mixed is not None:
            return mixed
    return False


def _uses_cbfloat16(file: Table, mixed: bool) -> bool:
    table = file.table_or_empty("csconfig")
    if not table.boolean("use_cbfloat16"):
        return False
    if not mixed:
        table.refuse("use_cbfloat16", "needs mixed precision", "model.mixed_precision: true")
    return True


def _default_type(model: Table, options: Options, notes: list[str]) -> str:
    """The type that the defaults of a model choose."""
    if options.version and not options.before(2, 4, 0):
        return "bfloat16"  # converted to the trainer's layout
    if not model.has("use_bias_in_output") and not model.has("attention_module"):
        return "float16"
    # Later files of GPT models say loss_scaling where those of 1.6 have the weight alone.
    early = model.has("loss_weight") and not model.has("loss_scaling")
    if options.before(1, 9, 1) or (early and not options.version):
        return "float16"
    notes.append(
        "neither fp16_type nor use_bfloat16: GPT models choose bfloat16 since release 1.9.1; "
        "before, float16 (--config-version)"
    )
    return "bfloat16"


def read_old(source: Source, options: Options) -> Config:
    """Loss scaling and clipping in `optimizer`, types in `model`, the rest in `runconfig`."""
    config, file = Config("Model Zoo before the trainer class"), source.table
    optimizer = file.required("optimizer")
    model, run = file.table_or_empty("model"), file.table_or_empty("runconfig")
    backend = options.backend or _backend(run, "target_device") or "csx"
    mixed = _mixed_precision(file)
    is_cb16 = _uses_cbfloat16(file, mixed) and backend == "csx"
    fp16_type = model.choice("fp16_type", tuple(_TYPES))
    if fp16_type is None and model.boolean("use_bfloat16") is not None:
        fp16_type = "bfloat16" if model.boolean("use_bfloat16") else "float16"
    if fp16_type is None:
        has_model = file.has("model")
        fp16_type = _default_type(model, options, config.notes) if has_model else "float16"
    scaling = _Scaling(optimizer, "dynamic")
    scaling.require_order(2.0**31 if fp16_type == "cbfloat16" else 2.0**15)
    computes = fp16_type
    if fp16_type == "cbfloat16" and backend == "csx" and scaling.factor == "static":
        optimizer.refuse("", _NO_CBFLOAT16)
    if fp16_type == "cbfloat16" and backend != "csx":
        config.notes.append("cbfloat16 is only supported on CSX: the half type is bfloat16")
        computes = "bfloat16"
    if computes == "bfloat16" and scaling.factor == "dynamic":
        config.notes.append("no dynamic loss scaling with bfloat16: the loss scale is 1")
        scaling.factor = "static"
    if computes == "float16" and mixed and backend == "cpu":
        config.notes.append("mixed precision on CPU is only supported with bfloat16")
        computes = "bfloat16"
    if mixed:
        config.formats = ["cb16" if is_cb16 else _TYPES[computes]]
        config.updates = autocast_formats(config.formats[0])
    else:
        config.notes.append("model.mixed_precision is off: this run computes in float32")
    if backend == "csx":
        config.policies = [scaling.on_csx(fp16_type)]
    elif backend == "gpu":
        config.policies = [scaling.on_gpu("2^15", config.notes)]
    else:
        config.policies = [no_scaler()]
        config.notes.append("gradient scaling is not supported on CPU: it is switched off")
    _clip(optimizer, config)
    steps = optimizer.integer("grad_accum_steps", 1) or run.integer("grad_accum_steps", 1)
    _accumulate(steps, backend, "", config)
    _opt_level([run, model], config)
    config.notes += file.misspelt(("optimizer", "model", "runconfig", "csconfig"))
    config.notes += model.misspelt(("fp16_type", "mixed_precision", "use_bfloat16"))
    config.notes += run.misspelt(("target_device", "grad_accum_steps"))
    config.notes += optimizer.misspelt((*_SCALING, "grad_accum_steps"))
    return config


def read_tf(source: Source, options: Options) -> Config:
    """The parameters of the TensorFlow Trainer, in `optimizer`."""
    config, file = Config("Model Zoo TensorFlow Trainer"), source.table
    optimizer = file.required("optimizer")
    mixed = _mixed_precision(file)
    is_cb16 = _uses_cbfloat16(file, mixed)
    config.formats = ["cb16" if is_cb16 else "fp16"] if mixed else []
    if not mixed:
        config.notes.append("model.mixed_precision is off: this run computes in float32")
    scaling = _Scaling(optimizer, "dynamic", "tf_dynamic")
    if scaling.factor != "static":  # 0 is no default here
        optimizer.number("initial_loss_scale", above=0)
        optimizer.number("max_loss_scale", above=0)
    scaling.require_order(2.0**15)
    if scaling.factor == "static":
        config.policies = [Policy("static")]
        is_one = abs(scaling.static - 1) <= 1e-8 + 1e-5  # numpy.isclose
        config.policies[0].set("loss_scale", 1 if is_one else scaling.static)
    else:
        policy = Policy("cerebras-tf" if scaling.factor == "dynamic" else "tf")
        policy.set("initial_loss_scale", scaling.initial)
        policy.set("increment_period", scaling.steps)
        config.policies = [policy]
    if scaling.factor == "dynamic":
        policy.set("min_loss_scale", scaling.least)
        policy.set("max_loss_scale", scaling.most)
        policy.set("overflow_tolerance", optimizer.number("overflow_tolerance", least=0))
    elif scaling.factor == "tf_dynamic":
        config.notes.append(
            "tf_dynamic: on a Cerebras system CSDynamicLossScale takes its place (policy "
            "cerebras-tf)"
        )
    _clip(optimizer, config, zero_is_off=True)
    config.clip_rule = "tf"
    config.micro_steps = optimizer.integer("grad_accum_steps", 1)
    config.notes += optimizer.misspelt((*_SCALING, "overflow_tolerance", "grad_accum_steps"))
    return config
