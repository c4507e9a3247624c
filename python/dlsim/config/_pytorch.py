# SPDX-License-Identifier: Apache-2.0
"""Hugging Face, Accelerate, Lightning and NeMo, fairseq, torchtitan, torch and Apex.

The releases that they were compared with are in the rows of _stacks.py.
"""

from __future__ import annotations

import os

from ._deepspeed import Fill, own_keys, read_inside, refuse_run
from ._deepspeed import read as read_deepspeed
from ._meaning import (
    Adam,
    Config,
    Options,
    Policy,
    adam_of,
    fsdp_formats,
    is_on,
    master_formats,
    named_format,
    no_scaler,
    pure_formats,
    require_unquoted,
    switch,
    switched,
)
from ._reading import (
    Clear,
    Node,
    Number,
    Source,
    Table,
    Unknown,
    described,
    find_file,
    parse,
    printable,
    read_text,
)

# ------------------------------------------------------------------------------- torch and Apex

GRAD_SCALERS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "GradScaler")
APEX_NAMES = ("apex.amp.initialize", "apex.amp", "apex")
_GRAD_SCALER = (
    "device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled",
)  # fmt: skip
_APEX = (
    "enabled", "opt_level", "cast_model_type", "patch_torch_functions", "keep_batchnorm_fp32",
    "master_weights", "loss_scale", "cast_model_outputs", "num_losses", "verbosity",
    "min_loss_scale", "max_loss_scale",
)  # fmt: skip


def _dotted(table: Table, name: str) -> Table | None:
    """Returns the table of a dotted name, whether its parts are nested or one key."""
    node = table.entries.get(name)
    if node is not None and isinstance(node.value, dict):
        return table.inner(name, node)
    head, dot, rest = name.partition(".")
    while dot:
        node = table.entries.get(head)
        if node is not None and isinstance(node.value, dict):
            found = _dotted(table.inner(head, node), rest)
            if found is not None:
                return found
        more, dot, rest = rest.partition(".")
        head += "." + more
    return None


def _first(table: Table, names: tuple[str, ...]) -> Table | None:
    return next((found for name in names if (found := _dotted(table, name)) is not None), None)


def has_arguments(source: Source, names: tuple[str, ...]) -> bool:
    """Whether the file has the keyword arguments of a function, by one of its names."""
    own = own_keys(source.table)
    return not source.is_command and not own and _first(source.table, names) is not None


def _surroundings(file: Table, config: Config) -> None:
    """The keys next to the table."""
    kind = named_format(file, "dtype")
    if kind is not None:
        config.formats = [kind] if kind != "fp32" else []
    config.clip(file, "max_norm", "clip_value")
    config.micro_steps = file.integer("grad_accum_steps", 1)


def read_torch(source: Source, options: Options) -> Config:
    config, table = Config("torch GradScaler"), _first(source.table, GRAD_SCALERS)
    if table is None:
        source.table.refuse("", "no table torch.amp.GradScaler")
    table.require_known(_GRAD_SCALER)
    policy = Policy("torch")
    policy.set("init_scale", table.number("init_scale", above=0))
    policy.set("growth_factor", table.number("growth_factor", above=0))
    policy.set("backoff_factor", table.number("backoff_factor", least=0))
    policy.set("growth_interval", table.integer("growth_interval", 1))
    enabled = table.boolean("enabled")
    policy.set("enabled", None if enabled is None else str(enabled).lower())
    config.policies = [policy]
    _surroundings(source.table, config)
    return config


def read_apex(source: Source, options: Options) -> Config:
    config, table = Config("Apex amp"), _first(source.table, APEX_NAMES)
    if table is None:
        source.table.refuse("", "no table apex.amp")
    table.require_known(_APEX)
    level = table.choice("opt_level", ("O0", "O1", "O2", "O3")) or "O1"
    least, most = table.number("min_loss_scale", least=0), table.number("max_loss_scale", above=0)
    if least is not None and least > (most or 2.0**24):
        table.refuse("min_loss_scale", "above max_loss_scale", "at most it", least.text)
    dynamic = table.is_text("loss_scale", "dynamic")
    if not table.has("loss_scale"):
        dynamic = level in ("O1", "O2")
    policy = Policy("apex" if dynamic else "static")
    if dynamic:
        policy.set("min_loss_scale", least)
        policy.set("max_loss_scale", most)
    else:
        policy.set("loss_scale", table.number("loss_scale", above=0) or "1")
    enabled = table.boolean("enabled") is not False
    config.formats = ["fp16"] if enabled and level != "O0" else []
    config.policies = [policy if enabled else no_scaler()]
    if not enabled:
        config.notes.append("enabled false: no mixed precision and no loss scaling")
    elif level == "O0":
        config.notes.append("opt_level O0: this run computes in float32")
    _surroundings(source.table, config)
    return config


# -------------------------------------------------------------------------------- scaled formats


def _delayed(elements: str, history: int, decides: str, margin: int) -> str:
    backward = "e5m2" if elements == "hybrid" else "e4m3"
    return f"fp8-delayed:backward={backward},history={history},decides={decides},margin={margin}"


def megatron_fp8(table: Table, elements: str, notes: list[str]) -> str:
    """The format of Transformer Engine's layers by Megatron-LM's arguments; also NeMo's."""
    backward = "e5m2" if elements == "hybrid" else "e4m3"
    for key in ("fp8_params", "fp8_param_gather"):
        if table.boolean(key):
            notes.append(f"{key} is not simulated: it stores weights in FP8, too")
    recipes = ("delayed", "tensorwise", "mxfp8", "blockwise", "custom")
    recipe = table.choice("fp8_recipe", recipes) or "delayed"
    plain = {"tensorwise": "fp8-current", "mxfp8": "mxfp8", "blockwise": "fp8-block"}
    if recipe in plain:
        return f"{plain[recipe]}:backward={backward}"
    if recipe == "custom":
        notes.append("fp8_recipe custom is not simulated: it is code")
        return ""
    return _delayed(
        elements,
        table.integer("fp8_amax_history_len", 1, 65536) or 1,
        table.choice("fp8_amax_compute_algo", ("most_recent", "max")) or "most_recent",
        table.integer("fp8_margin", -64, 64) or 0,
    )


def _accelerate_fp8(file: Table, config: Config) -> None:
    """fp8_config, whose keys may have the prefix of the command line's options."""
    table, notes = file.table_or_empty("fp8_config"), config.notes

    def key(name: str) -> str:
        return f"fp8_{name}" if table.has(f"fp8_{name}") else name

    backend = table.choice(key("backend"), ("TE", "AO", "MSAMP"))
    if backend is None:
        notes.append(
            "fp8 without fp8_config.backend: Accelerate takes what is installed, so that no FP8 "
            "format is judged"
        )
    elif backend == "AO":
        config.scaled = "fp8-current:backward=e5m2"
        notes.append("Accelerate leaves the first and the last linear layer in bf16")
    elif backend == "MSAMP":
        problem = "MS-AMP scales weights and states, too, which is not read"
        table.refuse(key("backend"), problem, "TE or AO")
    else:
        elements = table.choice(key("fp8_format"), ("hybrid", "e4m3"), lower=True) or "hybrid"
        history = table.integer(key("amax_history_len"), 1, 65536) or 1024
        if table.choice(key("amax_compute_algo"), ("most_recent", "max"), lower=True) != "max":
            notes.append(
                "amax_compute_algo most_recent is Accelerate's default, which it does not pass on: "
                "TransformerEngine's own, max, counts"
            )
        if table.has(key("override_linear_precision")):
            notes.append("override_linear_precision is not simulated: all products are converted")
        if table.boolean(key("use_mxfp8_block_scaling")):
            config.scaled = "mxfp8:backward=e4m3"
        else:  # Accelerate does not pass on its own default, most_recent
            margin = table.integer(key("margin"), -64, 64) or 0
            config.scaled = _delayed(elements, history, "max", margin)


def _torchao(file: Table, config: Config) -> None:
    """torchtitan's model.converters, under their newer or older names."""
    converters = file.find("model.converters")
    names = converters.text.split(",") if converters is not None else []
    if converters is not None and isinstance(converters.value, list):
        names = [node.text for node in converters.value]
    notes = config.notes
    for name in ("float8", "mx"):
        table = file.table_or_empty(name)
        if f"quantize.linear.{name}" in names:
            quantize = file.table_or_empty("quantize").table_or_empty("linear")
            table = quantize.table_or_empty(name)
        elif name not in names and not table.boolean("enable_float8_linear"):
            continue
        recipe = table.string("recipe_name")
        formats = {
            None: "fp8-current:backward=e5m2",
            "tensorwise": "fp8-current:backward=e5m2",
            "rowwise": "fp8-rowwise",
        }
        if name == "mx":
            formats = {
                None: "mxfp8:rule=floor", "mxfp8_cublas": "mxfp8:rule=floor",
                "mxfp8_emulated": "mxfp8:rule=floor", "mxfp8_cublas_rceil": "mxfp8",
                "mxfp4_cutlass": "mxfp4", "mxfp4_emulated": "mxfp4",
            }  # fmt: skip
        kinds = ("input", "weight", "grad_output")
        delayed = any(table.is_text(f"scaling_type_{kind}", "delayed") for kind in kinds)
        config.scaled = "" if delayed else formats.get(recipe, "")
        if not config.scaled:
            shown = "delayed scaling" if delayed else f"recipe_name {printable(recipe or '')}"
            notes.append(f"{shown} of {name} is not simulated")
        elif is_on(table, "filter_fqns"):
            notes.append("filter_fqns leaves layers in bf16, which are judged all the same")


# ------------------------------------------------------------------------------------ Accelerate

_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_CODE_NOTE = "clipping and accumulation are code: --max-gradient-norm and --grad-accum-steps"


def _plugin(file: Table, precision: str, options: Options) -> Config:
    """The file that Accelerate makes for DeepSpeed: ZeRO stage 2 by default."""
    plugin = file.table_or_empty("deepspeed_config")
    if plugin.has("deepspeed_config_file"):
        return read_inside(plugin, "deepspeed_config_file", Fill(), options)
    stage = plugin.entries.get("zero_stage", Node(Number("2")))
    entries = {"zero_optimization": Node({"stage": stage})}
    if plugin.has("gradient_accumulation_steps"):
        entries["gradient_accumulation_steps"] = plugin.entries["gradient_accumulation_steps"]
    # A limit of 0 is left out, and DeepSpeed's default clips.
    limit = plugin.entries.get("gradient_clipping", Node("auto"))
    if limit.value == "auto" or plugin.number("gradient_clipping") != 0.0:
        entries["gradient_clipping"] = limit
    if precision:
        entries[precision] = Node({"enabled": Node(True)})
    return read_deepspeed(Source(Table(file.file, entries)), options)


def _accelerate_file(file: Table, options: Options, program: str | None = None) -> Config:
    """The file that `accelerate config` writes; `program`: the precision that a script chooses."""
    named = program
    if program is None:
        node = file.node("mixed_precision")
        if node is not None and node.value is False:
            problem = "'bool' object has no attribute 'lower'"
            file.refuse("mixed_precision", problem, "'no' in quotes", described(node))
        named = file.choice("mixed_precision", _PRECISIONS, lower=True) or "no"
    precision = {"no": "", "fp8": "bf16"}.get(named or "no", named or "")
    if file.is_text("distributed_type", "MEGATRON_LM"):
        kind = precision or "NAME"
        problem = "Megatron-LM scales the loss of this run"
        file.refuse("distributed_type", problem, f"--policy megatron --format {kind}")
    if file.is_text("distributed_type", "DEEPSPEED"):
        config = _plugin(file, precision, options)
        config.kind = "Accelerate with DeepSpeed"
        if named == "fp8":
            _accelerate_fp8(file, config)
        return config
    config = Config("Accelerate")
    config.precision(precision, Policy("torch"))
    if named == "fp8":
        _accelerate_fp8(file, config)
    if precision == "fp16":
        config.notes.append(
            "GradScalerKwargs are code: PyTorch's defaults are taken, --set init_scale=... "
            "replaces them"
        )
    is_fsdp = file.is_text("distributed_type", "FSDP")
    if is_fsdp and precision and file.find("fsdp_config.fsdp_mixed_precision_policy") is None:
        config.updates = fsdp_formats(precision, precision, "fp32")
    config.notes.append(_CODE_NOTE)
    config.notes.append(
        "transformers' Trainer takes fp16 and bf16 of its own arguments instead of mixed_precision"
    )
    return config


def _launch_file(source: Source, needed: bool, config_notes: list[str]) -> Table | None:
    """The file of `accelerate launch --config_file FILE`, which may choose another scaler."""
    named = source.table.entries.get("config_file")
    if named is None or ".toml" in named.text:  # kohya's
        return None
    path = find_file(source.table, named.text) if named.text else None
    if path is not None and os.path.isfile(path):
        return parse(path, read_text(path))
    if needed:
        source.table.refuse(
            "config_file",
            "no such file of Accelerate, which may choose another scaler",
            "its path from this file or from the working directory, or --policy torch --format "
            "fp16",
            described(named),
        )
    config_notes.append(
        f"Accelerate's file {printable(named.text)} is not there: if it asks for DeepSpeed, a step "
        "whose gradients are not finite is skipped"
    )
    return None


def _launched(
    source: Source, precision: str | None, options: Options, notes: list[str]
) -> Config | None:
    """What the launcher's file decides, if another stack scales the loss; else None."""
    file = _launch_file(source, precision == "fp16", notes)
    if file is None or not file.has("distributed_type"):
        return None
    if not any(file.is_text("distributed_type", kind) for kind in ("DEEPSPEED", "MEGATRON_LM")):
        return None
    plugin = file.table_or_empty("deepspeed_config")
    if plugin.has("deepspeed_config_file"):
        expected = "--config with that file"
        plugin.refuse("deepspeed_config_file", "DeepSpeed's file decides", expected)
    config = _accelerate_file(file, options, precision)
    config.notes.insert(
        0,
        f"Accelerate's file {printable(file.file)} decides; a trainer refuses arguments that "
        "differ from its values",
    )
    return config


def flat(table: Table) -> Table:
    """kohya's reader puts the tables of its TOML into one."""
    entries: dict[str, Node] = {}
    for key, node in table.entries.items():
        entries |= node.value if isinstance(node.value, dict) else {key: node}
    return Table(table.file, entries, table.path, table.line)


def read_accelerate(source: Source, options: Options) -> Config:
    """Accelerate's file, or a run whose script or launcher takes mixed_precision."""
    if source.table.has("distributed_type"):
        return _accelerate_file(source.table, options)
    table = source.table if source.is_command else flat(source.table)
    if not table.has("mixed_precision") and not table.has("config_file"):
        expected = "--mixed_precision or --config_file"
        table.refuse("", "Accelerate's precision is not given", expected)
    named = table.choice("mixed_precision", _PRECISIONS)
    precision = "" if named in (None, "no") else str(named)
    if table.has("deepspeed_config_file"):
        steps = table.entries.get("gradient_accumulation_steps", Node(None)).value
        fill = Fill(precision, {"gradient_accumulation_steps": steps})
        config = read_inside(table, "deepspeed_config_file", fill, options)
        config.kind = "Accelerate with DeepSpeed"
        return config
    if is_on(table, "deepspeed") or is_on(table, "use_deepspeed"):
        refuse_run(source)
    if named == "fp8":
        table.refuse("mixed_precision", "fp8 without a file of Accelerate", "--config_file FILE")
    config = Config("Accelerate")
    launched = _launched(source, named, options, config.notes)
    if launched is not None:
        return launched
    if named is None:
        file = _launch_file(source, True, [])
        if file is None or not file.has("distributed_type"):  # kohya's, or a program's own
            table.refuse("config_file", "not a file of Accelerate", "--config with that file")
        return _accelerate_file(file, options)
    notes, config.notes = config.notes, []
    config.precision(precision, Policy("torch"))
    config.notes += notes
    if table.has("pretrained_model_name_or_path") or table.has("model_name_or_path"):
        config.clip_norm(table, "max_grad_norm", 1.0)  # diffusers' and kohya's programs
    else:
        config.clip_norm(table, "max_grad_norm")
        config.notes.append(_CODE_NOTE)
    config.micro_steps = _optional_steps(table)
    return config


def _optional_steps(table: Table) -> int | None:
    """The micro-steps; nothing where only running the script would tell: no scale follows."""
    node = table.entries.get("gradient_accumulation_steps")
    if node is None or isinstance(node.value, Unknown):
        return None
    return table.integer("gradient_accumulation_steps", 1)


# ---------------------------------------------------------------------------------- Hugging Face

# Keys that say that other weights are trained than those that are loaded.
_OTHER_WEIGHTS = ("lora", "peft", "quant", "load_in_", "badam", "finetuning_type")
_TORCH_ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_hf")


def _trainer_adam(keys: Clear) -> Adam:
    adam = adam_of(keys, "adam_beta1 adam_beta2 adam_epsilon weight_decay")
    adam.lr = keys.number("learning_rate")
    return adam


def read_huggingface(source: Source, options: Options) -> Config:
    """TrainingArguments, as YAML, JSON or a command line, also of LLaMA-Factory."""
    table = source.table
    require_unquoted(table, "max_grad_norm", "gradient_accumulation_steps")
    if switch(table, "fp16_full_eval") and switch(table, "bf16_full_eval"):
        table.refuse("bf16_full_eval", "at most one of fp16 and bf16 can be true for full eval")
    key = "deepspeed" if table.has("deepspeed") else "deepspeed_config_file"
    node = table.entries.get(key)
    if node is not None and node.value not in (None, False):
        config = _hf_with_deepspeed(source, key, options)
    elif is_on(table, "use_deepspeed"):
        refuse_run(source)
    else:
        notes: list[str] = []
        if source.is_command and table.has("config_file"):
            launched = _launched(source, switched(table) or None, options, notes)
            if launched is not None:
                return launched
        config = _hf_arguments(source)
        config.notes += notes
    config.kind = "Hugging Face TrainingArguments"
    return config


def _hf_with_deepspeed(source: Source, key: str, options: Options) -> Config:
    """DeepSpeed's own rules, with its "auto" values from the arguments."""
    table = source.table
    node = table.node(key)
    if node is None or node.value is True:
        refuse_run(source, table.entries.get("deepspeed_config"))
    norm = table.number("max_grad_norm")
    values = {
        "gradient_clipping": Number("1.0") if norm is None else norm,
        "gradient_accumulation_steps": Number(str(_optional_steps(table) or 1)),
    }
    precision = switched(table)
    for kind in ("fp16", "bf16"):
        if not precision and switch(table, f"{kind}_full_eval"):
            precision = kind
    fill = Fill(precision, values, must_match=True)
    return read_inside(table, key, fill, options)


def _hf_arguments(source: Source) -> Config:
    table, config = source.table, Config("")
    types = () if source.is_command else ("torch_dtype", "dtype")  # also of programs that load
    given = any(table.has(key) for key in ("bf16", "pure_bf16", *types))
    if not given and not switch(table, "fp16"):
        table.refuse(
            "",
            "neither fp16 nor bf16 is given: the defaults of the program decide",
            "--policy torch --format fp16, or --policy static --format bf16",
        )
    precision = "bf16" if table.boolean("pure_bf16") else switched(table)
    for key in ("torch_dtype", "dtype"):
        if not precision and table.has(key) and not table.is_text(key, "auto"):
            kind = named_format(table, key)
            if kind == "bf16":
                precision = "bf16"
            elif kind == "fp16":
                config.formats, config.policies = ["fp16"], [no_scaler()]
                config.notes.append(f"{key}: weights in fp16, no loss scaling without fp16")
    for key in ("half_precision_backend", "fp16_backend"):
        if table.is_text(key, "apex"):
            table.refuse(key, "gone from transformers 5", "--policy apex --format fp16")
    if precision or not config.formats:
        config.precision(precision, Policy("torch"))
    if config.formats:
        _hf_updates(source, switched(table), config)
    node = table.entries.get("max_grad_norm")
    if node is not None and node.value is None:
        table.refuse("max_grad_norm", "transformers 5 refuses null", "a number; 0 is off")
    config.clip_norm(table, "max_grad_norm", 1.0)
    config.micro_steps = _optional_steps(table)
    return config


def _hf_updates(source: Source, precision: str, config: Config) -> None:
    """Whether the launcher adds DeepSpeed or FSDP, which keep a float32 copy, stays open."""
    table, keys = source.table, Clear(source.table, source.complete)
    if any(key == "stage" or any(p in key for p in _OTHER_WEIGHTS) for key in table.entries):
        return
    if keys.has("fsdp") and keys.switch("fsdp") is not False:
        if precision:
            config.updates = fsdp_formats(precision, precision, "fp32")
        return
    loaded = "bf16" if keys.switch("pure_bf16") else None
    for key in ("torch_dtype", "dtype"):
        if loaded is None and keys.has(key):
            loaded = keys.format(key)
    if precision == "fp16" or (precision == "bf16" and loaded == "fp16"):
        return
    if loaded:
        config.updates = {"weights": loaded}
    if not keys.has("optim") or keys.text("optim") in _TORCH_ADAM:
        config.adam = _trainer_adam(keys)


# ---------------------------------------------------------------------------- Lightning and NeMo

# Parameters of Lightning's Trainer, of releases 1 and 2: a trainer with others is somebody else's.
_TRAINER = set(
    """
    _target_ accelerator accumulate_grad_batches amp_backend amp_level auto_lr_find
    auto_scale_batch_size auto_select_gpus barebones benchmark callbacks check_val_every_n_epoch
    checkpoint_callback default_root_dir detect_anomaly deterministic devices
    enable_autolog_hparams enable_checkpointing enable_model_summary enable_progress_bar
    fast_dev_run flush_logs_every_n_steps gpus gradient_clip_algorithm gradient_clip_val
    inference_mode ipus limit_predict_batches limit_test_batches limit_train_batches
    limit_val_batches log_every_n_steps log_gpu_memory logger max_epochs max_steps max_time
    min_epochs min_steps model_registry move_metrics_to_cpu multiple_trainloader_mode num_nodes
    num_processes num_sanity_val_steps overfit_batches plugins precision prepare_data_per_node
    process_position profiler progress_bar_refresh_rate reload_dataloaders_every_n_epochs
    replace_sampler_ddp resume_from_checkpoint stochastic_weight_avg strategy sync_batchnorm
    terminate_on_nan tpu_cores track_grad_norm use_distributed_sampler val_check_interval
    weights_save_path weights_summary
    """.split()
)
_LIGHTNING = {
    "32": "", "32-true": "", "64": "", "64-true": "", "fp32": "", "16": "fp16",
    "16-mixed": "fp16", "fp16": "fp16", "16-true": "fp16", "bf16": "bf16", "bf16-mixed": "bf16",
    "bf16-true": "bf16",
}  # fmt: skip


def is_lightning(source: Source) -> bool:
    """Whether the table `trainer` is of Lightning's Trainer, and nothing of another class."""
    node = source.table.entries.get("trainer")
    if source.is_command or node is None or not isinstance(node.value, dict):
        return False
    target = node.value.get("_target_", Node("lightning.Trainer")).text
    trains = node.value.keys() & {"max_epochs", "max_steps", "max_time"}
    return bool(trains) and node.value.keys() <= _TRAINER and "lightning" in target


def _class_of(node: Node) -> str:
    """The name of a class, by itself or in a table with its arguments."""
    for key in ("_target_", "class_path") if isinstance(node.value, dict) else ():
        if key in node.value:
            return str(node.value[key].text)
    return node.text


def _arguments_of(table: Table) -> Table:
    """The arguments of a class, next to its name or in init_args."""
    return table.table_or_empty("init_args") if table.has("init_args") else table


def read_lightning(source: Source, options: Options) -> Config:
    """The table `trainer`; NeMo's Megatron models have an own scaler."""
    config, file = Config("PyTorch Lightning"), source.table
    trainer = file.required("trainer")
    node = trainer.node("precision")
    name, expected = "", "32, 16-mixed, bf16-mixed, 16-true or bf16-true"
    if node is not None:
        name = node.text
    if node is None or name not in _LIGHTNING:
        problem = "not given" if node is None else f"unknown name {described(node)}"
        trainer.refuse("precision", problem, expected)
    plugins = trainer.entries.get("plugins", Node(None)).value
    strategy = trainer.entries.get("strategy", Node(None))
    for key, decides in (
        ("plugins", bool(plugins)),
        ("strategy", "deepspeed" in _class_of(strategy).lower()),
    ):
        if decides:
            problem = "may scale the loss itself, which is not read"
            trainer.refuse(key, problem, "--policy NAME --format NAME --set KEY=VALUE")
    if file.has("exp_manager"):
        config.kind = "NeMo"
    kind = _LIGHTNING[name]
    scaler = _lightning_scaler(file, trainer, config)
    config.precision(kind, no_scaler() if name == "16-true" else scaler)
    if name == "16-true":
        config.notes.append("precision 16-true: weights in 16 bits, no loss scaling")
    if kind:
        _lightning_formats(file, strategy, kind, name.endswith("16-true"), config)
    _lightning_surroundings(trainer, config)
    return config


def _lightning_surroundings(trainer: Table, config: Config) -> None:
    require_unquoted(trainer, "gradient_clip_val", "accumulate_grad_batches")
    config.clip_norm(trainer, "gradient_clip_val")
    if trainer.choice("gradient_clip_algorithm", ("norm", "value"), lower=True) == "value":
        config.max_norm, config.max_value = None, config.max_norm
    steps = trainer.entries.get("accumulate_grad_batches", Node(None)).value
    if isinstance(steps, (dict, Unknown)):
        config.notes.append("accumulate_grad_batches is a schedule, which is not read")
    else:
        config.micro_steps = trainer.integer("accumulate_grad_batches", 1)


def _lightning_scaler(file: Table, trainer: Table, config: Config) -> Policy:
    model = file.entries.get("model", Node(None)).value
    megatron = isinstance(model, dict) and model.keys() & {
        "native_amp_init_scale", "megatron_amp_O2",
    }  # fmt: skip
    if megatron:
        table = file.table_or_empty("model")
        config.kind = "NeMo with Megatron"
        if table.boolean("fp8"):
            for elements in ("e4m3", "hybrid"):
                if table.boolean(f"fp8_{elements}"):
                    config.scaled = megatron_fp8(table, elements, config.notes)
                    break
            else:
                table.refuse("fp8", "no elements", "fp8_e4m3 or fp8_hybrid: true")
        policy = Policy("apex-hysteresis")
        policy.set("init_scale", table.number("native_amp_init_scale", above=0) or "2^32")
        policy.set("growth_interval", table.integer("native_amp_growth_interval", 1) or 1000)
        policy.set("hysteresis", table.integer("hysteresis", 1) or 2)
        return policy
    if trainer.is_text("amp_backend", "apex"):
        trainer.refuse("amp_backend", "gone from Lightning 2", "--policy apex --format fp16")
    return Policy("torch")


def _lightning_formats(file: Table, strategy: Node, kind: str, pure: bool, config: Config) -> None:
    """Shards are in float32 unless the module is in 16 bits."""
    shards = kind if pure else "fp32"
    name = _class_of(strategy)
    if isinstance(strategy.value, dict) and name.rpartition(".")[2] == "FSDPStrategy":
        made = _arguments_of(Table(file.file, strategy.value))
        param: str | None = kind
        reduce: str | None = kind
        if made.has("mixed_precision"):
            keys = Clear(_arguments_of(made.table_or_empty("mixed_precision")))
            param = keys.format("param_dtype", shards)
            reduce = keys.format("reduce_dtype", param)
        config.updates = fsdp_formats(param, reduce, shards)
    elif name.startswith("fsdp"):
        config.updates = fsdp_formats(kind, kind, shards)
    elif pure:  # what the optimizer makes of it is code
        formats = pure_formats(kind, kind)
        config.updates = {k: v for k, v in formats.items() if k not in ("first", "second")}


# --------------------------------------------------------------------------------------- fairseq


def read_fairseq(source: Source, options: Options) -> Config:
    """Hydra's groups in YAML, or the arguments of fairseq-train."""
    config, file = Config("fairseq"), source.table
    root = file
    if not source.is_command and file.has("fairseq"):
        root = file.table_or_empty("fairseq")
    if source.is_command:
        common = optimization = ranks = optimizer = file
    else:
        common, optimization = root.table_or_empty("common"), root.table_or_empty("optimization")
        ranks = root.table_or_empty("distributed_training")
        node = root.entries.get("optimizer", Node(None))
        optimizer = Table(file.file, node.value if isinstance(node.value, dict) else {})
        if not root.has("common"):
            root.refuse("common", "missing", "the group with fp16")
    if common.boolean("amp"):
        common.refuse(
            "amp",
            "PyTorch's scaler in fairseq is not read",
            "--policy torch --format fp16 --set init_scale=..., or fp16 instead of amp",
        )
    if not any("fp16" in key or "bf16" in key for key in common.entries):
        common.refuse("", "neither fp16 nor bf16 is given", "fp16 or bf16")
    is_fp16, is_bf16 = (
        bool(common.boolean(kind)) | bool(common.boolean(f"memory_efficient_{kind}"))
        for kind in ("fp16", "bf16")
    )
    if is_fp16 and is_bf16:
        common.refuse("bf16", "both fp16 and bf16 are on", "at most one")
    kind = "fp16" if is_fp16 else "bf16" if is_bf16 else ""
    frequency = _update_frequency(optimization)
    config.precision(kind, Policy("fairseq"))
    if kind == "fp16":
        _fairseq_scaler(common, ranks, frequency, config)
    if kind:
        _fairseq_updates(source, [common, optimization, ranks, optimizer], kind, config)
    config.notes += common.misspelt(
        ("fp16", "bf16", "amp", "fp16_init_scale", "fp16_scale_window", "fp16_scale_tolerance",
         "threshold_loss_scale", "min_loss_scale", "memory_efficient_fp16",
         "memory_efficient_bf16", "model_parallel_size")
    )  # fmt: skip
    config.clip_norm(optimization, "clip_norm")
    config.clip_rule = "fairseq"
    config.micro_steps = frequency if frequency > 1 else None
    return config


def _update_frequency(table: Table) -> int:
    """A number, a list of one, or a text such as "4" or "[4]"."""
    node = table.node("update_freq")
    if node is None:
        return 1
    values = node.value
    if isinstance(values, str):
        values = [Node(Number(part)) for part in values.strip("[] ").split(",")]
    if not isinstance(values, list):
        return table.integer("update_freq", 1) or 1
    if len(values) != 1:
        expected = "one, or --policy fairseq --set scale_window=N"
        table.refuse("update_freq", "a schedule of several frequencies is not read", expected)
    inner = Table(table.file, {"update_freq": values[0]}, table.path, node.line)
    return inner.integer("update_freq", 1) or 1


def _fairseq_scaler(common: Table, ranks: Table, frequency: int, config: Config) -> None:
    """Without a window, fairseq makes one of 2^14 updates of one rank."""
    policy = config.policies[0]
    window = common.integer("fp16_scale_window", 1)
    if window is None:
        count = ranks.integer("distributed_world_size", 1)
        parallel = common.integer("model_parallel_size", 1) or 1
        window = int(2**14 / max((count or 1) // parallel, 1) / frequency)
        config.notes.append(
            f"scale_window {window} is 16384 / distributed_world_size / update_freq"
            + ("" if count else ", here of one rank: --set scale_window=N for others")
        )
    policy.set("init_scale", common.number("fp16_init_scale", above=0) or "128")
    policy.set("scale_window", window)
    policy.set("tolerance", common.number("fp16_scale_tolerance", least=0))
    policy.set("threshold", common.number("threshold_loss_scale", least=0))
    policy.set("min_loss_scale", common.number("min_loss_scale", least=0))


def _fairseq_updates(source: Source, groups: list[Table], kind: str, config: Config) -> None:
    """Adam computes in float32 and keeps its states so, but for fp16_adam_stats."""
    common, optimization, ranks, optimizer = (Clear(g, source.complete) for g in groups)
    formats = master_formats(kind)
    efficient = common.switch(f"memory_efficient_{kind}")
    if efficient is not False:
        formats["master"] = "none" if efficient else ""
    if ranks.text("ddp_backend") == "fully_sharded":  # has its own types
        formats = {}
    name = optimizer.text("_name") or optimizer.text("optimizer")
    if name != "adam" or optimizer.has("fp16_adam_stats"):
        formats.pop("first", None)
        formats.pop("second", None)
    else:
        config.adam = Adam(
            optimization.item("lr", 0),
            optimizer.item("adam_betas", 0, 0.9),
            optimizer.item("adam_betas", 1, 0.999),
            optimizer.number("adam_eps", 1e-8),
            optimizer.number("weight_decay", 0.0),
            decoupled=True,
        )
    config.updates = {name: value for name, value in formats.items() if value}


# ------------------------------------------------------------------------------------ torchtitan


def read_torchtitan(source: Source, options: Options) -> Config:
    """Its TOML; releases from 0.3 on configure in Python."""
    config, file = Config("torchtitan"), source.table
    training = file.required("training")
    types = ("bfloat16", "float32")
    pure = training.choice("dtype", types) == "bfloat16"
    half = pure or (training.choice("mixed_precision_param", types) or "bfloat16") == "bfloat16"
    config.precision("bf16" if half else "", Policy("torch"))
    if half:
        summed = master_formats("bf16") | {"gradients": "fp32", "reduce": "fp32"}
        config.updates = pure_formats("bf16", "fp32") if pure else summed
        keys = Clear(file.table_or_empty("optimizer"))
        name = keys.text("name") if keys.has("name") else "AdamW"
        if name in ("Adam", "AdamW"):
            config.adam = adam_of(keys, "beta1 beta2 eps weight_decay", 0.95, 0.1, 8e-4)
            config.adam.decoupled = name == "AdamW"
    config.clip_norm(training, "max_norm", 1.0)
    _torchao(file, config)
    return config
