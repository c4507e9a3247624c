# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's file, also as Hugging Face fills in its "auto" values, and as GPT-NeoX has it.

Compared with DeepSpeed 0.19.8, whose rules are the default: runtime/config.py, precision_config.py,
engine.py and zero/stage_1_and_2.py; EleutherAI/gpt-neox, megatron/neox_arguments/arguments.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from ._meaning import (
    FLOAT32_NOTE,
    Adam,
    Config,
    Options,
    Policy,
    is_on,
    known,
    master_formats,
    named_format,
    no_scaler,
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
    quoted,
    read_text,
    tables_in,
)

_NEOX = (
    "precision", "pipe-parallel-size", "pipe_parallel_size", "num-layers", "num_layers",
    "model-parallel-size", "model_parallel_size",
)  # fmt: skip
_DYNAMIC = (
    "initial_scale_power", "loss_scale_window", "min_loss_scale", "hysteresis",
    "consecutive_hysteresis",
)  # fmt: skip
_FP16 = ("enabled", "auto_cast", "loss_scale", *_DYNAMIC, "fp16_master_weights_and_grads")
_BF16 = (
    "enabled", "immediate_grad_update", "check_grad_overflow", "bf16_master_weights_and_grads",
    "bf16_optimizer_states",
)  # fmt: skip
_KEYS = (
    "fp16", "bf16", "bfloat16", "zero_optimization", "gradient_clipping",
    "gradient_accumulation_steps", "amp",
)  # fmt: skip
_WORDS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


@dataclass
class Fill:
    """What takes the place of "auto"; None: it stays."""

    precision: str = ""  # fp16, bf16
    values: dict[str, Any] = field(default_factory=dict)
    must_match: bool = False  # what is not "auto" must be equal, as Hugging Face's trainer requires


def own_keys(table: Table) -> list[str]:
    marks = ["zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"]
    marks += ["steps_per_print", "wall_clock_breakdown"]
    found = [mark for mark in marks if mark in table.entries]
    for name in ("fp16", "bf16", "bfloat16", "torch_autocast"):
        node = table.entries.get(name)
        if node is not None and isinstance(node.value, dict):
            found.append(name)
    return found


def refuse_run(source: Source, named: Node | None = None) -> NoReturn:
    """Refuses a run whose DeepSpeed file is not read, with its name if that is known."""
    what = "its file, which this file does not name"
    if named is not None and isinstance(named.value, str):
        what = f"the DeepSpeed file {quoted(named.value)}"
    elif named is not None and isinstance(named.value, Unknown):
        what = "the DeepSpeed file, whose name depends on how the script is run"
    source.table.refuse(
        "",
        "DeepSpeed scales the loss of this run",
        f"--config with {what}, or --policy deepspeed --format NAME --set KEY=VALUE",
    )


def read_inside(owner: Table, key: str, fill: Fill, options: Options) -> Config:
    """Reads a table of DeepSpeed, or the file that a path names, for the stack that starts it."""
    node = owner.node(key)
    assert node is not None
    if isinstance(node.value, dict):
        return _read(_filled(owner.inner(key, node), fill), options)
    if not isinstance(node.value, str):
        owner.refuse(key, "DeepSpeed scales the loss of this run", "--config with its file")
    path = find_file(owner, node.value)
    if path is None:
        expected = "its path from this file or from the working directory"
        owner.refuse(key, "no such DeepSpeed file", expected, quoted(node.value))
    file = parse(path, read_text(path))
    if not own_keys(file):
        file.refuse("", "not a configuration of DeepSpeed", "its keys")
    config = _read(_filled(file, fill), options)
    config.notes.insert(0, f"DeepSpeed's file {printable(path)} decides")
    return config


def _filled(file: Table, fill: Fill) -> Table:
    """Gives "auto" its value, as Hugging Face's trainer does from its arguments."""
    entries = dict(file.entries)
    for key, value in fill.values.items():
        if value is None or key not in entries:
            continue
        if entries[key].value == "auto":
            entries[key] = replace(entries[key], value=value)
        elif fill.must_match and entries[key].value != value:
            _refuse_difference(file, key, entries[key], value.text)
    for kind in ("fp16", "bf16"):
        node = entries.get(kind)
        if node is None and fill.precision == kind:
            entries[kind] = Node({"enabled": Node(True)})
        elif node is not None and isinstance(node.value, dict):
            enabled = node.value.get("enabled")
            filled = Node(kind == fill.precision, enabled.line if enabled else 0)
            if enabled is not None and enabled.value == "auto":
                entries[kind] = replace(node, value={**node.value, "enabled": filled})
            elif enabled is not None and fill.must_match and enabled.value != filled.value:
                _refuse_difference(file.inner(kind, node), "enabled", enabled, filled.text)
    return replace(file, entries=entries)


def _refuse_difference(table: Table, key: str, node: Node, expected: str) -> NoReturn:
    problem = "differs from the arguments of Hugging Face's trainer, which refuses it"
    table.refuse(key, problem, f"{expected} or auto", described(node))


def read(source: Source, options: Options) -> Config:
    """Reads the file; named by its kind, also one that has DeepSpeed's in a table of it."""
    table = source.table
    if not own_keys(table):
        inside = [inner for inner in tables_in(table) if own_keys(inner)]
        tops = [t for t in inside if not any(t.path.startswith(o.path + ".") for o in inside)]
        if len(tops) != 1:
            got = ", ".join(t.path for t in tops[:5]) or "none"
            table.refuse("", "not a configuration of DeepSpeed", "a table with its keys", got)
        table = tops[0]
    return _read(table, options)


class _Values:
    """Reads a table as DeepSpeed's classes convert its values; "auto" becomes a note."""

    def __init__(self, table: Table, notes: list[str]) -> None:
        self.table, self.notes = table, notes

    def auto(self, key: str, meaning: str) -> bool:
        if not self.table.is_text(key, "auto"):
            return False
        self.notes.append(f"{self.table.path_of(key)} is auto: read as {meaning}")
        return True

    def boolean(self, key: str, if_auto: bool, default: bool) -> bool:
        if self.auto(key, "true" if if_auto else "false"):
            return if_auto
        node = self.table.node(key)
        value = default if node is None else node.value
        if isinstance(value, Number) and value in (0.0, 1.0):
            return value == 1.0
        if isinstance(value, str) and value.lower() in _WORDS:
            return _WORDS[value.lower()]
        return default if node is None else bool(self.table.boolean(key))

    def integer(
        self, key: str, default: int, least: int | None = None, most: int = 2**63 - 1
    ) -> int:
        if self.auto(key, str(default)):
            return default
        value = self.table.integer(key, least, most)
        return default if value is None else value


def _read(file: Table, options: Options) -> Config:
    config = Config("DeepSpeed")
    values = _Values(file, config.notes)
    is_neox = any(file.has(key) for key in _NEOX)
    if is_neox and options.version is None:  # its fork of DeepSpeed has the rules of then
        options = replace(options, version=(0, 16, 0))
    config.notes += file.misspelt(_KEYS)
    fp16 = file.entries.get("fp16", Node(None)).value
    for table in (file, file.table_or_empty("fp16") if isinstance(fp16, dict) else file):
        for key in (*_KEYS, *_FP16):
            if key in table.entries and table.entries[key].value is None:
                table.refuse(key, "DeepSpeed refuses null", "a value, or no such key")
    zero = file.entries.get("zero_optimization", Node(None))
    if isinstance(zero.value, dict):
        config.notes += file.inner("zero_optimization", zero).misspelt(("stage",))
    for key in ("loss_scale", *_DYNAMIC):
        if file.has(key):
            config.notes.append(
                f"{file.path_of(key)} has no effect next to fp16: DeepSpeed reads it in fp16"
            )
    _read_types(file, values, options, config)
    amp = file.entries.get("amp", Node(None)).value
    if isinstance(amp, dict) and amp.get("enabled", Node(False)).value not in (False, None):
        expected = "--policy apex --format fp16"
        file.refuse("amp", "Apex scales the loss of this run, before 0.19.8", expected)
    for key in ("prescale_gradients", "communication_data_type"):
        if is_on(file, key):
            config.notes.append(
                f"{key} is not simulated: gradients are taken as the trace has them"
            )
    _read_clipping(file, values, is_neox, options, config)
    if not values.auto("gradient_accumulation_steps", "1"):
        config.micro_steps = file.integer("gradient_accumulation_steps", 1)
    return config


def _read_clipping(
    file: Table, values: _Values, is_neox: bool, options: Options, config: Config
) -> None:
    """The default is 1.0 since 0.19.3, and in GPT-NeoX."""
    if values.auto("gradient_clipping", "1.0, the default of max_grad_norm"):
        config.max_norm = 1.0
    elif file.has("gradient_clipping"):
        config.clip_norm(file, "gradient_clipping")
    elif is_neox or not options.before(0, 19, 3):
        config.max_norm = 1.0
        if not is_neox and options.version is None:
            config.notes.append(
                "gradient_clipping is not given: 1.0, the default since DeepSpeed 0.19.3; none "
                "before (--config-version)"
            )


def _zero_stage(file: Table, values: _Values) -> int:
    """Early versions wrote `true` for stage 1."""
    node = file.node("zero_optimization")
    if node is not None and isinstance(node.value, bool):
        return int(node.value)
    zero = _Values(file.table_or_empty("zero_optimization"), values.notes)
    return zero.integer("stage", 0, 0, 3)


def _check_keys(table: Table, keys: tuple[str, ...], notes: list[str]) -> None:
    """A slip in fp16 is an error: what was meant decides."""
    slips = table.misspelt(keys)
    if slips and table.path.endswith("fp16"):
        table.require_known(keys)
    notes += slips


def _read_types(file: Table, values: _Values, options: Options, config: Config) -> None:
    notes = config.notes
    stage = _zero_stage(file, values)
    precision = file.choice("precision", ("fp16", "bfloat16", "fp32")) or ""  # GPT-NeoX
    name = "bf16" if file.has("bf16") else "bfloat16"
    bf16 = _Values(file.table_or_empty(name), notes)
    fp16 = _Values(file.table_or_empty("fp16"), notes)
    _check_keys(fp16.table, _FP16, notes)
    _check_keys(bf16.table, _BF16, notes)
    asks_bf16 = _Values(bf16.table, []).boolean("enabled", False, False)
    is_fp16 = fp16.boolean("enabled", not asks_bf16, False)
    if is_fp16 and precision not in ("", "fp16"):
        file.refuse("precision", "DeepSpeed fp16 field was set but precision conflicts")
    is_fp16 |= precision == "fp16"
    is_bf16 = precision == "bfloat16" or bf16.boolean("enabled", not is_fp16, False)
    if is_bf16 and is_fp16:
        bf16.table.refuse("enabled", "bfloat16 and fp16 modes cannot be simultaneously enabled")
    if _read_autocast(file, stage, [is_fp16, is_bf16], config, options):
        return
    if not is_fp16 and not is_bf16:
        config.policies = [no_scaler()]
        notes.append(FLOAT32_NOTE)
        return
    kind = "fp16" if is_fp16 else "bf16"
    config.formats = [kind]
    if options.before(0, 19, 8):
        by_element = stage in (1, 2) and not options.before(0, 13, 3)
        config.finite_test = "elementwise" if by_element else "sum"
    if not (is_bf16 and stage == 0 and options.before(0, 18, 5)):
        _read_updates(file, kind, fp16.table if is_fp16 else bf16.table, config)
    if is_fp16:
        config.policies = [_scaler(file, fp16, stage, options)]
        return
    default = not options.before(0, 19, 3)
    checks = bf16.boolean("check_grad_overflow", default, default)
    skips = {0: not options.before(0, 18, 5), 3: not options.before(0, 19, 8)}.get(
        stage, checks and not options.before(0, 17, 1)
    )
    _apply_bf16(skips, stage, config)


def _apply_bf16(skips: bool, stage: int, config: Config) -> None:
    """No scale, but perhaps the skipping of DeepSpeed."""
    config.formats = ["bf16"]
    config.policies = [no_scaler()]
    note = "bf16: no loss scaling"
    if skips:
        name = "deepspeed" if stage else "deepspeed-fp16-optimizer"
        config.policies = [Policy(name, ["loss_scale=1"])]
        note += ", but a step whose gradients are not finite is skipped"
    config.notes.append(note)


def _read_autocast(
    file: Table, stage: int, switches: list[bool], config: Config, options: Options
) -> bool:
    """torch_autocast of the engine: torch's GradScaler in float16 without ZeRO."""
    is_fp16, is_bf16 = switches
    table = file.table_or_empty("torch_autocast")
    if not table.boolean("enabled"):
        return False
    if not table.has("dtype"):
        table.refuse("dtype", "torch.autocast's own type depends on the device", "a type")
    kind = named_format(table, "dtype")
    if is_fp16 or (kind == "fp16" and (stage or is_bf16)):
        expected = "one of them, or --policy torch --format fp16"
        table.refuse("enabled", "two scalers, which is not read", expected)
    if is_bf16 or kind not in ("fp16", "bf16"):
        return False
    if kind == "bf16":
        _apply_bf16(stage > 0 and not options.before(0, 19, 8), stage, config)
    else:
        config.formats, config.policies = ["fp16"], [Policy("torch")]
    config.notes.append(f"torch_autocast: read as torch.autocast in {kind}")
    return True


def _scaler(file: Table, fp16: _Values, stage: int, options: Options) -> Policy:
    """DynamicLossScaler of ZeRO, else FP16_Optimizer, which has no hysteresis."""
    table, early = fp16.table, options.before(0, 17, 1)
    policy = Policy("deepspeed-0.16" if early else "deepspeed")
    if stage == 0:
        policy.name = "deepspeed-fp16-optimizer"
    scale = None if fp16.auto("loss_scale", "0 (dynamic)") else table.number("loss_scale", least=0)
    if scale:
        policy.set("loss_scale", scale)
        return policy
    floor = None if fp16.auto("min_loss_scale", "1") else table.number("min_loss_scale", least=0)
    power = fp16.integer("initial_scale_power", 16, -1074, 1023)
    window = fp16.integer("loss_scale_window", 1000, 1)
    lamb = getattr(file.find("optimizer.type"), "text", "").lower() in ("lamb", "onebitlamb")
    if not any(key in table.entries for key in _DYNAMIC) and (stage or lamb):
        # Then the defaults of the scalers' own classes held.
        other = "an initial scale of 2^32 and hysteresis 1" if stage else "a min_loss_scale of 0.25"
        if early:
            policy.settings = ["init_scale=2^32", "delayed_shift=1"] if stage else []
            policy.settings += [] if stage else ["init_scale=2^16", "min_scale=0.25"]
            return policy
        if options.version is None:
            fp16.notes.append(
                "DeepSpeed before 0.17.1 takes other defaults where fp16 has no key of dynamic "
                f"scaling (--config-version): {other}"
            )
    policy.set("init_scale", f"2^{power}")
    policy.set("scale_window", window)
    policy.set("min_scale", "1" if floor is None else floor)
    if stage:
        policy.set("delayed_shift", max(fp16.integer("hysteresis", 2), 0))
        consecutive = fp16.boolean("consecutive_hysteresis", False, False)
        policy.set("consecutive_hysteresis", "true" if consecutive else "false")
    elif table.has("hysteresis") or table.has("consecutive_hysteresis"):
        fp16.notes.append("hysteresis has no effect without ZeRO: FP16_Optimizer does not have it")
    return policy


def _read_updates(file: Table, kind: str, types: Table, config: Config) -> None:
    """The formats of what the optimizer updates, and its numbers."""

    def at(path: str) -> Table:
        node = file.find(path)
        inside = node.value if node is not None and isinstance(node.value, dict) else {}
        return Table(file.file, inside)

    def on(key: str) -> bool:
        return _Values(types, []).boolean(key, False, False)

    params, keys = Clear(at("optimizer.params")), Clear(file)
    name = (Clear(at("optimizer")).text("type") or "").lower()
    is_adam = name in ("adam", "adamw")
    master = kind if on(f"{kind}_master_weights_and_grads") else "fp32"
    states: str | None = None
    if master != "fp32" and on("bf16_optimizer_states"):
        states = master
    elif is_adam and (master == "fp32" or _is_true(params, "torch_adam", False)):
        states = master
    elif is_adam:  # on a CPU they are float32 unless the file asks for less
        wide = (
            params.switch("fp32_optimizer_states") if params.has("fp32_optimizer_states") else True
        )
        states = None if wide is None else "fp32" if wide else master
    own_sums = any(keys.has(key) for key in ("sequence_parallel_size", "fp32_allreduce"))
    open_formats: dict[str, str | None] = {**master_formats(kind)}
    config.updates = known(
        open_formats
        | {
            "master": master,
            "first": states,
            "second": states,
            "gradients": Clear(at("data_types")).format("grad_accum_dtype", kind),
            "reduce": None if own_sums else keys.format("communication_data_type", kind),
        }
    )
    if is_adam:
        config.adam = Adam(
            lr=params.number("lr", 1e-3) if not keys.has("scheduler") else None,
            beta1=params.item("betas", 0, 0.9),
            beta2=params.item("betas", 1, 0.999),
            eps=params.number("eps", 1e-8),
            weight_decay=params.number("weight_decay", 0.0),
            decoupled=name == "adamw" or _is_true(params, "adam_w_mode", True),
        )


def _is_true(keys: Clear, key: str, default: bool) -> bool:
    """As Python takes a value."""
    node = keys.table.entries.get(key)
    return default if node is None else bool(node.value) and not isinstance(node.value, Unknown)
