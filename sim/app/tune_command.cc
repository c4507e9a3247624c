// SPDX-License-Identifier: Apache-2.0
// dlsim tune: loss-scale parameters for a trace.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/sim/advice.h"
#include "sim/advice/advice.h"
#include "sim/advice/tuning.h"
#include "sim/app/commands.h"
#include "sim/app/shared_options.h"
#include "sim/app/training_config.h"
#include "sim/base/caller.h"
#include "sim/base/files.h"
#include "sim/base/quantity.h"
#include "sim/base/rows.h"
#include "sim/base/shared_rows.h"
#include "sim/base/table.h"
#include "sim/replay/results.h"

namespace dlsim::sim {
namespace {

// The stacks for which a recommendation is told as what to paste: a configuration, which
// `dlsim replay --config` reads, or Python.
enum class ConfigTarget : uint8_t {
  kModelZoo,
  kDeepSpeed,
  kTorch,
  kAccelerate,
  kTrainer,
  kLightning
};

constexpr auto EnumNames(ConfigTarget) {
  return std::to_array<EnumName<ConfigTarget>>({{ConfigTarget::kModelZoo, "zoo"},
                                                {ConfigTarget::kDeepSpeed, "deepspeed"},
                                                {ConfigTarget::kTorch, "torch"},
                                                {ConfigTarget::kAccelerate, "accelerate"},
                                                {ConfigTarget::kTrainer, "trainer"},
                                                {ConfigTarget::kLightning, "lightning"}});
}

// What people call them, too.
constexpr auto EnumAliases(ConfigTarget) {
  return std::to_array<EnumName<ConfigTarget>>({{ConfigTarget::kTorch, "pytorch"},
                                                {ConfigTarget::kTrainer, "hf"},
                                                {ConfigTarget::kTrainer, "huggingface"}});
}

// What is advised; JSON has other words. That scale 1 is safe is no advice to train without one:
// what becomes zero in a channel of a tensor does not show, and a higher start loses nothing.
std::string AdvisedText(const FormatTuning& tuning) {
  const double start = tuning.choices.front().parameters.init;
  if (tuning.verdict == Verdict::kAsIs && start > 1) {
    return "start a loss scaler at " + ScaleText(start);
  }
  const bool fixed = tuning.verdict == Verdict::kWithScale && tuning.scale;
  return fixed ? "a fixed loss scale is enough" : std::string(ScalingAdvised(tuning));
}

std::string Recommendation(const FormatTuning& tuning) {
  const PolicyChoice& choice = tuning.choices.front();
  std::string text =
      fmt::format("\n{}: {}\n  {}\n", tuning.format, AdvisedText(tuning), tuning.reason);
  if (!Trains(tuning)) return text;
  text += fmt::format("  {}: {}\n", choice.policy, ParametersText(choice.named));
  return text;
}

// What to change in the policy that is used today.
std::string Changes(const FormatTuning& tuning) {
  std::string text;
  for (const ParameterChange& change : tuning.changes) {
    text += fmt::format("{} {} from {} to {}", text.empty() ? "" : ",", change.to.name,
                        ParameterText(change.from), ParameterText(change.to));
  }
  const ComparedPolicy& current = tuning.comparisons.back();
  if (current.policy != tuning.choices.front().policy) {
    return fmt::format("  {}: its policy, {}, is compared but not tuned (--details)\n",
                       current.label, current.policy);
  }
  if (text.empty()) return fmt::format("  {}: nothing to change\n", current.label);
  return fmt::format("  change in {}:{}\n", current.label, text);
}

std::string Losses(const FormatTuning& tuning) {
  std::vector<TableRow> rows = {
      {"loss of the steps", "gradient lost", "skipped", "before first applied", "final scale"}};
  const auto add = [&](const ComparedPolicy& one) {
    if (!one.refusal.empty()) return;
    rows.push_back({one.label, Percent(one.score.mean_loss), std::to_string(one.score.skipped),
                    std::to_string(one.score.first_skips), ScaleText(one.score.final_scale)});
  };
  std::ranges::for_each(tuning.choices, add);
  add(tuning.fixed);
  std::ranges::for_each(tuning.comparisons, add);
  rows.push_back({"best power of two for each step", Percent(tuning.least_loss), "", "", ""});
  constexpr std::string_view kDispensable[] = {"before first applied", "final scale"};
  return "\n" + FormatTable(rows, kDispensable);
}

std::string WindowText(const FormatTuning& tuning) {
  const CommonScales window = CommonScalesOf(tuning.windows);
  if (tuning.hopeless_steps == tuning.steps) return "";
  const std::string low = ScaleText(window.low), high = ScaleText(window.high);
  if (!window.empty()) {
    const bool open = window.low_step == nullptr;
    return fmt::format(
        "  loss scales from {}{} to {} are safe at every step that can be finite ({}{:.1f} "
        "binades)\n",
        low, open ? " (or lower)" : "", high, open ? "at least " : "",
        std::log2(window.high / window.low));
  }
  return fmt::format(
      "  no loss scale is safe at all steps: above {}, {} overflows at step {}; below {}, {} loses "
      "too much at step {}\n",
      high, Printable(window.high_step->high_tensor), window.high_step->step, low,
      Printable(window.low_step->low_tensor), window.low_step->step);
}

// What there is to say of a stack, in the order of ConfigTarget.
struct TargetRow {
  std::string_view title, policy;
};
constexpr TargetRow kTargets[] = {{"Model Zoo YAML", "cerebras-2.10"},
                                  {"DeepSpeed JSON, table fp16", "deepspeed"},
                                  {"PyTorch", "torch"},
                                  {"Accelerate", "torch"},
                                  {"Hugging Face Trainer", "torch"},
                                  {"Lightning", "torch"}};

const TargetRow& TargetOf(ConfigTarget target) { return kTargets[static_cast<size_t>(target)]; }

// Returns the policy whose rule the stack follows.
std::string_view PolicyOf(ConfigTarget target) { return TargetOf(target).policy; }

// A number that YAML, TOML and Python all read as a floating-point one.
std::string Floating(double value) {
  const std::string text = ScaleNumber(value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string ModelZooText(const std::string& type, const ScaleParameters& parameters) {
  const std::string head = "trainer:\n  init:\n    precision:\n      fp16_type: " + type + "\n";
  if (type == "bfloat16") return head;  // nothing else has an effect
  return head + fmt::format(
                    "      loss_scaling_factor: dynamic\n"
                    "      initial_loss_scale: {}\n"
                    "      steps_per_increase: {}\n"
                    "      min_loss_scale: {}\n"
                    "      max_loss_scale: {}\n",
                    Floating(parameters.init), parameters.interval, Floating(parameters.min),
                    Floating(parameters.max));
}

// The table fp16 alone, so that pasting it changes no other key of the user's file. DeepSpeed's
// scaler is that of ZeRO, whatever the stage; without ZeRO it has another, which knows no
// hysteresis.
std::string DeepSpeedText(const PolicyChoice& choice) {
  const ScaleParameters& parameters = choice.parameters;
  const bool zero = choice.policy == "deepspeed";
  return fmt::format(
      "{{\n  \"fp16\": {{\n"
      "    \"enabled\": true,\n"
      "    \"loss_scale\": 0,\n"
      "    \"initial_scale_power\": {},\n"
      "    \"loss_scale_window\": {},\n"
      "{}    \"min_loss_scale\": {}\n"
      "  }}\n}}\n",
      std::lround(std::log2(parameters.init)), parameters.interval,
      zero ? fmt::format("    \"hysteresis\": {},\n", parameters.hysteresis) : "",
      ScaleNumber(parameters.min));
}

// The autocast whose lists the verdict is about, on the device of the user's model.
std::string AutocastText(std::string_view dtype, std::string_view comment) {
  return fmt::format(
      "import torch\n\n"
      "device = next(model.parameters()).device.type\n"
      "# judged by the lists of CUDA's autocast; those of the CPU differ\n"
      "autocast = torch.autocast(device, dtype=torch.{})  # for the forward pass{}\n",
      dtype, comment);
}

std::string PythonText(ConfigTarget target, const ScaleParameters& parameters) {
  // By keyword, which the scaler's own class and Accelerate's share.
  const std::string arguments = fmt::format("init_scale={}, growth_interval={}",
                                            Floating(parameters.init), parameters.interval);
  switch (target) {
    case ConfigTarget::kTorch:
      return AutocastText("float16", "") + "scaler = torch.amp.GradScaler(device, " + arguments +
             ")\n";
    case ConfigTarget::kTrainer:
      return "import torch\n\n"
             "# after trainer = Trainer(...) with fp16=True, and before trainer.train()\n"
             "device = trainer.accelerator.device.type\n"
             "trainer.accelerator.scaler = torch.amp.GradScaler(device, " +
             arguments + ")\n";
    case ConfigTarget::kLightning:  // which has no fp16 on the CPU
      return "import torch\n"
             "from lightning.pytorch import Trainer\n"
             "from lightning.pytorch.plugins import MixedPrecision\n\n"
             "scaler = torch.amp.GradScaler(\"cuda\", " +
             arguments +
             ")\n"
             "precision = MixedPrecision(\"16-mixed\", \"cuda\", scaler)\n"
             "trainer = Trainer(plugins=[precision])  # with the arguments that you have\n";
    default:
      return "from accelerate import Accelerator\n"
             "from accelerate.utils import GradScalerKwargs\n\n"
             "accelerator = Accelerator(\n"
             "    mixed_precision=\"fp16\",\n"
             "    kwargs_handlers=[GradScalerKwargs(" +
             arguments + ")],\n)\n";
  }
}

// No stack scales the loss in bfloat16.
std::string BFloat16Text(ConfigTarget target) {
  switch (target) {
    case ConfigTarget::kModelZoo:
      return ModelZooText("bfloat16", {});
    case ConfigTarget::kDeepSpeed:
      return "{\n  \"bf16\": {\"enabled\": true}\n}\n";
    case ConfigTarget::kTorch:
      return AutocastText("bfloat16", "; without a GradScaler");
    case ConfigTarget::kAccelerate:
      return "from accelerate import Accelerator\n\n"
             "accelerator = Accelerator(mixed_precision=\"bf16\")\n";
    case ConfigTarget::kTrainer:
      return "from transformers import TrainingArguments\n\n"
             "arguments = TrainingArguments(bf16=True)  # with those that you have\n";
    case ConfigTarget::kLightning:
      return "from lightning.pytorch import Trainer\n\n"
             "trainer = Trainer(precision=\"bf16-mixed\")  # with the arguments that you have\n";
  }
  return "";
}

// DeepSpeed has two policies of its name, and Cerebras another as documented.
bool IsPolicyOf(ConfigTarget target, std::string_view policy) {
  return policy == PolicyOf(target) ||
         (target == ConfigTarget::kModelZoo && policy == "cerebras") ||
         (target == ConfigTarget::kDeepSpeed && policy.starts_with("deepspeed"));
}

// Returns the block for a format, or nothing if the stack has no such type or the tuning has no
// choice for its policy.
std::optional<std::string> ConfigText(ConfigTarget target, const FormatTuning& tuning) {
  const std::string& format = tuning.format;
  if (format == "bf16") return BFloat16Text(target);
  const bool zoo = target == ConfigTarget::kModelZoo;
  for (const PolicyChoice& choice : tuning.choices) {
    if (!IsPolicyOf(target, choice.policy)) continue;
    const ScaleParameters& parameters = choice.parameters;
    if (zoo && format == "cb16") return ModelZooText("cbfloat16", parameters);
    if (format != "fp16") return std::nullopt;
    if (zoo) return ModelZooText("float16", parameters);
    return target == ConfigTarget::kDeepSpeed ? DeepSpeedText(choice)
                                              : PythonText(target, parameters);
  }
  return std::nullopt;
}

// For the stack of the user's configuration alone, if one is compared; else for the stack whose
// policy is tuned.
std::string Block(const FormatTuning& tuning, bool compares_current) {
  if (!Trains(tuning)) return "";
  const std::string_view policy =
      compares_current ? tuning.comparisons.back().policy : tuning.choices.front().policy;
  for (const auto& [target, name] : EnumNames(ConfigTarget())) {
    const std::optional<std::string> block = ConfigText(target, tuning);
    if (!block || (!policy.empty() && !IsPolicyOf(target, policy))) continue;
    return fmt::format("\n{}, {}:\n{}", tuning.format, TargetOf(target).title, *block);
  }
  return "";
}

// What a tuned interval counts where steps were left out; empty if none was.
std::string StrideNote(std::span<const StepWindow> steps) {
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
  for (size_t i = 1; i < steps.size(); ++i) {
    least = std::min(least, steps[i].step - steps[i - 1].step);
    most = std::max(most, steps[i].step - steps[i - 1].step);
  }
  if (most <= 1) return "";
  if (least == most) {
    return fmt::format(
        "note: only every {0}th step is recorded, and intervals count recorded steps: multiply a "
        "tuned growth interval that is shorter than the trace by {0}\n",
        least);
  }
  return fmt::format(
      "note: the recorded steps are {} to {} steps apart, and intervals count recorded steps as if "
      "they were consecutive; training has more steps between overflows\n",
      least, most);
}

// What is recommended and how to configure it; with `details` what others lose. `accumulates`:
// several recorded steps make one, so that numbers do not tell which were left out.
std::string FormatTuneReport(const TuneResult& result, bool accumulates, bool details) {
  std::string text;
  if (!accumulates && !result.formats.empty()) text = StrideNote(result.formats[0].windows);
  for (const FormatTuning& tuning : result.formats) {
    text += Recommendation(tuning);
    if (result.compares_current && Trains(tuning)) text += Changes(tuning);
    if (details) text += Losses(tuning) + WindowText(tuning);
    for (const std::string& note : tuning.notes) text += "  note: " + note + "\n";
  }
  for (const FormatTuning& tuning : result.formats) text += Block(tuning, result.compares_current);
  if (result.compares_current || std::ranges::none_of(result.formats, Trains)) return text;
  std::string others;
  for (const auto& [target, name] : EnumNames(ConfigTarget())) {
    others += (others.empty() ? "" : ", ") + std::string(name);
  }
  return text + "\nFor other stacks: --emit " + others + "\n";
}

constexpr const char* kMeanLoss = "gradient lost: mean over the recorded steps";
constexpr const char* kFirstSkips = "steps skipped before the first applied one";

}  // namespace

inline void Rows(const PolicyChoice& of, RowSink& row) {
  row("policy", of.policy, "canonical name");
  row("params", of.named, "its parameters, under the names of its stack");
  row("mean_loss", of.score.mean_loss, kMeanLoss);
  row("skipped_steps", of.score.skipped, "steps that it skips");
  row("skipped_before_first_applied", of.score.first_skips, kFirstSkips);
  row("errors_of_the_original", of.score.events,
      "steps at which the original software raises an error");
  row("eligible", of.score.eligible(), "false if the original software raises an error");
  row("optimal", of.optimal, "whether it is as good as the best power of two of each step");
}

inline void Rows(const ComparedPolicy& of, RowSink& row) {
  row("label", of.label, "what it is");
  row("policy", of.policy, "canonical name");
  row("params", of.named, "its parameters");
  row("refused", of.refusal, "why it does not run, if so; the following are missing then",
      kLeftOutIfEmpty);
  const auto score = [&](const auto& figure) { return of.refusal.empty() ? &figure : nullptr; };
  row("mean_loss", score(of.score.mean_loss), kMeanLoss, kLeftOutIfEmpty);
  row("skipped_steps", score(of.score.skipped), "steps that it skips", kLeftOutIfEmpty);
  row("skipped_before_first_applied", score(of.score.first_skips), kFirstSkips, kLeftOutIfEmpty);
  row("final_scale", score(of.score.final_scale), "after the last step", kLeftOutIfEmpty);
}

inline void Rows(const ParameterChange& of, RowSink& row) {
  row("parameter", of.to.name, "its name");
  row("from", of.from.value, "value today");
  row("to", of.to.value, "value that is recommended");
}

inline void Rows(const CommonScales& of, RowSink& row) {
  row("low", of.low, "the least, a power of two");
  row("low_open", of.low_step == nullptr, "whether nothing bounds it");
  row("high", of.high, "the largest that no step forbids");
  row("low_step", of.low_step ? &of.low_step->step : nullptr,
      "that decides the least; null if nothing does");
  row("low_tensor", of.low_step ? &of.low_step->low_tensor : nullptr, "that does at that step");
  row("high_step", of.high_step ? &of.high_step->step : nullptr,
      "that decides the largest; null if nothing does");
  row("high_tensor", of.high_step ? &of.high_step->high_tensor : nullptr, "the same");
  row("empty", of.empty(), "whether none serves all steps");
}

namespace {

void RoomRows(const FormatTuning& tuning, RowSink& row) {
  row.List("steps", "one object per step", tuning.windows, [](const StepWindow& of, RowSink& step) {
    step("step", of.step, "recorded number");
    step("largest_scale", of.hopeless ? nullptr : &of.finite_scale,
         "at which it is finite; null if none is");
    step("tensor", of.hopeless ? &of.high_tensor : nullptr,
         "of a step that is finite at no scale: the tensor to blame");
  });
}

void ReplayedRows(const ReplayTensor& of, RowSink& row) {
  row("name", of.name, "as recorded");
  row("mean_harm", of.harm.mean(), "over applied steps");
  row("worst_harm", of.harm.worst, "at a step");
  row("worst_step_energy_lost", of.worst_step_energy_lost, "at an applied step");
  row("energy_lost", of.stats.energy_lost(), "over all");
  row("underflow", of.stats.underflow, "values that become zero");
  row("absmax", of.stats.absmax, "largest finite magnitude");
}

void FixedScaleRows(const FormatTuning& tuning, RowSink& row) {
  const auto end = [&](int SafeScales::*exponent) {
    return tuning.safest ? std::ldexp(1.0, (*tuning.safest).*exponent) : tuning.fixed_scale;
  };
  row("scale", tuning.fixed_scale, "a power of two");
  row("mean_loss", tuning.fixed.score.mean_loss, kMeanLoss);
  row("nonfinite_steps", tuning.fixed.score.skipped, "steps that are not finite at it");
  row("low", end(&SafeScales::low), "the least that is safe at as many steps");
  row("high", end(&SafeScales::high), "the largest");
}

}  // namespace

// Where a format does not train, nothing is recommended.
inline void Rows(const FormatTuning& of, RowSink& row) {
  const bool trains = !of.choices.empty() && Trains(of);
  row("format", of.format, "canonical name");
  row("verdict", ScalingAdvised(of), "what to do about the loss scale");
  row("reason", of.reason, "why");
  row("recommended", trains ? &of.choices.front() : nullptr,
      "the policy asked for, tuned; null if the format does not train");
  row("other_policies", std::span(of.choices).subspan(trains ? 1 : of.choices.size()),
      "the same of others");
  row.ObjectIf(trains ? &of : nullptr, "static",
               "the best fixed scale; null if the format does not train", FixedScaleRows);
  row("mean_loss_at_scale_1", of.comparisons.empty() ? 0 : of.comparisons[0].score.mean_loss,
      "gradient lost without loss scaling");
  row("least_possible_mean_loss", of.least_loss,
      "gradient lost at the best power of two of each step, in hindsight");
  row("comparisons", of.comparisons,
      "no scaling, the stacks' defaults, and the policy of --config");
  row("changes", std::span(of.changes).first(trains ? of.changes.size() : 0),
      "of the policy of --config, if it is of the same stack");
  row("window", CommonScalesOf(of.windows),
      "scales that serve every step that some scale makes finite");
  row.Object("headroom", "how far up the steps let the scale go",
             [&](RowSink& headroom) { RoomRows(of, headroom); });
  row("never_finite_steps", of.hopeless_steps, "steps that were not finite when recorded");
  row("steps_losing_at_every_scale", of.empty_steps, "steps at which no scale is safe");
  std::vector<const ReplayTensor*> replayed;
  for (const PolicyChoice& choice : of.choices) {
    for (const ReplayTensor& tensor : choice.tensors) {
      if (tensor.role == Role::kGrad) replayed.push_back(&tensor);
    }
  }
  row.List("tensors", "gradients of parameters under the recommendation", replayed, ReplayedRows);
  row("notes", of.notes, "remarks, one line each");
  std::vector<std::pair<std::string, std::optional<std::string>>> blocks;
  for (const auto& [target, name] : EnumNames(ConfigTarget())) {
    blocks.emplace_back(name, trains ? ConfigText(target, of) : std::nullopt);
  }
  row("config", blocks, "for each stack the lines of its configuration, or null");
}

namespace {

// The document, of what lives until it is told; `config`: empty without one.
TellRows RowsOf(const TuneResult& result, const TellRows& trace = {}, const TellRows& verdict = {},
                const TellRows& config = {}) {
  return [&result, trace, verdict, config](RowSink& row) {
    row("schema", "dlsim.tune/1");
    row("trace", trace, "what was read");
    row("verdict", verdict, "the answer");
    row("config", config, "with `--config` only: as `options.config` of a replay", kLeftOutIfEmpty);
    row("steps", result.formats.empty() ? 0 : result.formats[0].steps, "that were recorded");
    row("formats", std::span(result.formats), "one object per format");
  };
}

struct TuneCommandOptions {
  TraceArguments trace;
  ConfigArguments config;
  Conversion conversion;
  std::vector<std::string> formats;
  std::optional<std::string> policy;
  std::optional<Recipe> recipe;
  std::optional<ConfigTarget> emit;
  ResultPaths results;
  ReplayOptions replay;
  std::vector<std::string> float32;
  uint64_t top = 5;
  bool details = false;
  DeviceChoice device;

  void Visit(OptionRows& option) {
    trace.Visit(option);
    config.Visit(option);
    option("--format", formats, "F",
           "Number format, repeatable (default: fp16 bf16 cb16); see dlsim formats", FormatNames());
    option("--policy", policy, "NAME",
           "Policy to tune (default: torch for fp16, else cerebras-2.10; or the one that --emit "
           "needs)",
           PolicyNames());
    VisitConversion(option, conversion, replay.step.seed);
    VisitRecipe(option, recipe);
    VisitFloat32(option, float32);
    VisitCheck(option, replay.checked);
    VisitComputation(option, device, &replay.step.memory_bytes);
    option.Group(kOutputGroup);
    option("--emit", emit, "STACK",
           "Print only the configuration to paste: zoo, deepspeed, torch, accelerate, trainer or "
           "lightning");
    option.Output("--json", results.json, "Write the full result as JSON");
    option("--top", top, "Number of tensors in each list of the report");
    option("--details", details,
           "Show the evidence: losses of all policies, head-room, the tensors that decide");
    option("--quiet", results.quiet, "No report, notes or progress; errors only");
  }
};

// Takes over formats and policy of a training configuration; one that cannot be tuned, such as a
// static scale, is compared only.
void ApplyConfig(const TrainingConfig& config, const std::string& path, TuneRequest& request) {
  if (request.formats.empty()) request.formats = config.formats;
  if (config.policies.empty()) return;
  const ConfigPolicy& policy = config.policies.front();
  request.current = {InputName(path), policy.name, SettingsOf(policy, {})};
  // In bf16 a policy may only skip steps.
  const bool scales = policy.settings != NoScaler().settings;
  if (scales && FindPolicy(policy.name).name != FindPolicy("static").name) {
    request.policy = policy.name;
  }
}

TuneRequest MakeRequest(const TuneCommandOptions& options,
                        const std::optional<TrainingConfig>& config) {
  TuneRequest request;
  request.formats = options.formats;
  if (config) ApplyConfig(*config, options.config.path(), request);
  if (request.formats.empty() && options.emit) request.formats = {"fp16"};
  if (request.formats.empty()) request.formats = {kDefaultFormats.begin(), kDefaultFormats.end()};
  if (options.emit && request.formats.size() > 1) {
    throw UsageError("--emit", "several formats", "one --format");
  }
  if (options.conversion.rounding == Rounding::kStochastic) {
    throw UsageError("--rounding", "tune compares scales, which stochastic rounding blurs",
                     "one of rne, rtz, rna, ru, rd", "'sr'");
  }
  if (options.conversion.overflow == Overflow::kSaturate) {
    throw UsageError("--overflow", "nothing overflows, so that no scale is too large", "inf",
                     "'saturate'");
  }
  if (options.policy) request.policy = *options.policy;
  if (options.emit && !options.policy) request.policy = PolicyOf(*options.emit);
  if (!options.emit) request.fp16_policies = {"cerebras-2.10", "deepspeed", "torch"};
  request.conversion = options.conversion;
  const Recipe default_recipe = config ? RecipeOf(*config) : Recipe::kAutocast;
  request.recipe = options.recipe.value_or(default_recipe);
  for (const std::string& format : request.formats)
    FamilyOf(TunedPolicy(request, format), ParseFormat(format).name);
  return request;
}

int RunTune(TuneCommandOptions options) {
  const std::optional<TrainingConfig> config = ReadConfigOfUnclippedRuns(options.config);
  TuneRequest request = MakeRequest(options, config);
  AskedAccumulation asked;
  if (config) asked.steps = config->accumulate_steps;
  GradientInput input =
      OpenGradients(asked, options.trace, options.device, options.replay, ForwardAlone::kTaken);
  KeepInFloat32(options.float32, input);
  input.source = KeepSteps(std::move(input.source), options.replay.step.memory_bytes);
  if (options.emit && !input.has_gradients) RefuseWithoutGradients(options.trace);
  const SourceFacts& facts = input.source.facts;
  ResultFiles files(options.results);
  request.tensors = options.trace.options.tensors;
  const Advice advice = AdviseOn(input.source, request, options.replay);
  const TuneResult result = Tune(input.source, request, advice, options.replay);
  if (files.json) {
    WriteJson(RowsOf(result, RowsOf(facts, options.trace.paths), RowsOf(advice),
                     config ? RowsOf(*config) : TellRows()),
              *files.json);
  }
  files.Commit();
  if (options.results.json == "-" || (options.results.quiet && !options.emit)) return 0;
  if (!options.emit) {
    WriteReport(FormatAdviceLines(advice) +
                (options.details ? FormatAdviceDetails(advice, options.top) : "") + "\n" +
                (config ? DescribeConfig(*config) : "") + DescribeTrace(facts) +
                FormatTuneReport(result, input.source.step_count < facts.steps, options.details));
    return 0;
  }
  const ConfigTarget target = *options.emit;
  if (!Trains(advice.formats.front())) {
    // Instead of a block where no loss scale helps: the reason and what to change.
    const std::string_view mark = target == ConfigTarget::kDeepSpeed ? "// " : "# ";
    std::string text(mark);
    for (const char c : LineOn(advice.formats.front(), 0)) {
      text += c;
      if (c == '\n') text += mark;
    }
    WriteOutput("-", text + "\n");
    return 1;
  }
  const FormatTuning& tuning = result.formats.front();
  const std::optional<std::string> block = ConfigText(target, tuning);
  if (!block) {
    throw UsageError("--emit", "no such configuration",
                     "a format and a --policy that this stack has",
                     Quoted(tuning.format) + " and " + Quoted(tuning.choices.front().policy));
  }
  WriteOutput("-", *block);
  return 0;
}

}  // namespace

void AddTuneKeys(std::vector<KeyTable>& tables) { AddKeys("", RowsOf(TuneResult()), tables); }

Command TuneCommand() {
  return MakeCommand<TuneCommandOptions>(
      RunTune, "tune", "Recommend loss-scaling parameters for recorded gradients",
      "Minimized: mean loss of the recorded steps, where a step loses 1 if it is skipped or not "
      "finite, 0 if its loss scale is safe, else its harm, the mean over its tensors.\n"
      "The stack's defaults are kept unless a change saves more than 1 % of the steps.\n"
      "Excluded: policies under which the original software would raise an error and end the "
      "training are not recommended.\n\n"
      "Examples:\n"
      "  dlsim tune runs/lm-kjv\n"
      "  dlsim tune runs/lm-kjv --format cb16 --json tune.json\n"
      "  dlsim tune runs/lm-kjv --format cb16 --emit zoo > precision.yaml\n"
      "  dlsim tune runs/lm-kjv --config params.yaml\n"
      "  dlsim tune runs/lm-kjv --policy megatron --format fp16");
}

}  // namespace dlsim::sim
