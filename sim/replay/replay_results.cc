// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/results.h"

#include <algorithm>
#include <ranges>

#include "sim/base/rows.h"

namespace dlsim::sim {

inline bool IsNone(const StepHarm& harm) { return harm.worst_tensor.empty(); }
constexpr bool IsNone(const OptimizerStep& optimizer) { return !optimizer.has_gradients; }

inline void Rows(const StepHarm& of, RowSink& row) {
  row("mean_harm", of.mean, "mean harm of the step's tensors; null without tensors");
  row("worst_harm", of.worst, "largest harm of them");
  row("worst_harm_tensor", of.worst_tensor, "name of that tensor");
}

namespace {

// The gradients of activations, next to those of parameters.
template <class Harm>
void ActivationRows(const TensorStats& counters, const Harm& harm, RowSink& row) {
  row.Object("activations", "the counters and harm of gradients of activations",
             [&](RowSink& activations) {
               activations.Group(counters);
               activations.Group(harm);
             });
}

std::optional<double> Share(std::optional<uint64_t> part, uint64_t whole) {
  if (!part) return std::nullopt;
  return whole == 0 ? 0 : static_cast<double>(*part) / static_cast<double>(whole);
}

constexpr const char* kGradNorm =
    "L2 norm of the parameter gradients as recorded, micro-steps summed; null where their sums are "
    "not known, as in a profile that was recorded with micro-steps";
constexpr const char* kConvertedNorm =
    "with clipping by norm: that of the quantized and unscaled ones, which is clipped";
constexpr const char* kClipCoefficient =
    "with clipping by norm, if not skipped: the float32 factor of the gradients, the smallest if "
    "optimizers clip on their own";

}  // namespace

inline void Rows(const OptimizerStep& of, RowSink& row) {
  row("finite", of.finite, "outcome of the finite test of its own gradients");
  row("skipped", of.skipped, "whether it skipped the step");
  row("grad_norm", of.grad_norm, kGradNorm);
  row("converted_grad_norm", of.converted_norm, kConvertedNorm, kLeftOutIfEmpty);
  row("clip_coefficient", of.clip_coefficient, kClipCoefficient, kLeftOutIfEmpty);
}

inline void Rows(const ReplayStep& of, RowSink& row) {
  row("step", of.step, "recorded step number");
  row("scale", of.scale, "loss scale used by the step");
  row("next_scale", of.next_scale, "loss scale after the policy's update");
  row("finite", of.finite, "outcome of the finite test");
  row("skipped", of.skipped,
      "whether the optimizer's step was skipped, with several optimizers all of them");
  row("cause", of.cause,
      "only if not finite: `input`, `overflow`, `accumulation`, `sum`, `norm` or `unscaling` "
      "([causes](numerics.md#5-when-is-a-step-finite))",
      kLeftOutIfEmpty);
  row("cause_tensor", of.cause_tensor,
      "only if not finite: the first such input, the farthest overflow, the largest part of "
      "the norm or of the sum",
      kLeftOutIfEmpty);
  row("lower_scale_helps", of.finite ? std::nullopt : std::optional(of.lower_scale_helps),
      "only if not finite: whether some lower loss scale makes it finite", kLeftOutIfEmpty);
  row("grad_norm", of.grad_norm, kGradNorm);
  row("converted_grad_norm", of.converted_norm, kConvertedNorm, kLeftOutIfEmpty);
  row("clip_coefficient", of.clip_coefficient, kClipCoefficient, kLeftOutIfEmpty);
  row("clipped_fraction", Share(of.clipped_elements, of.clippable_elements),
      "with clipping by value, if not skipped: share of clipped elements of the effective "
      "gradient",
      kLeftOutIfEmpty);
  row("optimizers", of.optimizers,
      "with --optimizer: one object each, in order; null for one without gradients in the step",
      kLeftOutIfEmpty);
  row.Group(of.gradients);
  row.Group(of.harm);
  ActivationRows(of.activations, of.activation_harm, row);
}

constexpr bool IsNone(const ChannelHarm& harm) { return harm.channels == 0; }

inline void Rows(const ChannelHarm& of, RowSink& row) {
  row("mean_channel_harm", MeanChannelHarm(of),
      "harm of the tensor's [channels](verdict.md#window) over the applied steps: mean over "
      "channels and steps; where there is one channel, that of the tensor above the format's "
      "rounding error");
  row("worst_channel_harm", of.mean.steps == 0 ? nullptr : &of.worst,
      "the largest of a channel at a step");
  row("channels", of.channels,
      "how many channels are not zero, at most at a step; 1 where they are not known; null of "
      "a tensor that is zero at all steps");
}

inline void Rows(const ReplayTensor& of, RowSink& row) {
  row("name", of.name, "as recorded");
  row("role", of.role,
      "`grad`, `act_grad`, `act` or `value`; the last two are measured at scale 1 and have no "
      "harm (null)");
  row.Group(of.stats);
  row("worst_step_energy_lost", of.worst_step_energy_lost, kWorstEnergyLost);
  row.Group(of.harm);
  row.Group(of.channels);
  row("noise", of.noise(), "whether it holds only rounding noise of float32");
  row("absmax", of.stats.absmax, "largest finite recorded magnitude; 0 if none is finite");
  row("first_overflow_step", of.first_overflow_step,
      "number of the first step with an overflow; null if none");
  row("scale", of.scales,
      "only where layers or gradients have their own loss scale: that of this tensor",
      kLeftOutIfEmpty);
}

inline void Rows(const LayerLoss& of, RowSink& row) {
  row("name", of.name, "of the layer; repeated calls of a module are one");
  row("tensors", of.tensors, "that count: those of rounding noise do not");
  row.Group(of.harm);
  row("overflow", of.overflow, "finite values that overflow");
  row("first_overflow_step", of.first_overflow_step, "the first step with one");
}

namespace {

// A list as one object, with a list of what each row finds.
template <class Items, class Of>
void Column(const char* name, const Items& items, Of of, RowSink& row, const char* meaning = "") {
  row(name, items | std::views::transform(of), meaning);
}

void HeatMapRows(const HeatMap& map, RowSink& row) {
  row.Object("bins", "arrays with an entry per bin that the run reached", [&](RowSink& bins) {
    Column("first_step", map.bins(), &StepBin::first_step, bins, "recorded number of the first");
    Column("last_step", map.bins(), &StepBin::last_step, bins, "that of the last");
    Column("steps", map.bins(), &StepBin::steps, bins, "steps in it");
    Column("skipped_steps", map.bins(), &StepBin::skipped_steps, bins, "of these, skipped");
  });
  row.List(
      "tensors", "in file order, with arrays that have an entry per bin", map.rows(),
      [&](const HeatMapRow& of, RowSink& tensor) {
        const auto cells = std::span(of.cells).first(std::min(of.cells.size(), map.bins().size()));
        tensor("name", of.name, "as recorded");
        tensor("role", of.role, "`grad` or `act_grad`");
        Column("nonzero", cells, &TensorStats::nonzero_finite, tensor);
        Column("underflow", cells, &TensorStats::underflow, tensor);
        Column("overflow", cells, &TensorStats::overflow, tensor);
        Column("sum_of_squares", cells, &TensorStats::sum_of_squares, tensor);
        Column("error_sum_of_squares", cells, &TensorStats::error_sum_of_squares, tensor);
        Column("underflow_sum_of_squares", cells, &TensorStats::underflow_sum_of_squares, tensor);
      },
      kOnLines);
}

void SummaryRows(const SimulationRun& run, RowSink& row) {
  const ReplayResult& result = run.result;
  const ReplaySummary& of = result.summary;
  const Clipping clipping = run.start ? run.start->clipping : Clipping();
  PathRows(of, result.stopped_at, row);
  row.Group(of.gradients);
  row("clipped_steps", clipping.enabled() ? &of.clipped_steps : nullptr,
      "with clipping: applied steps with some reduced gradient", kLeftOutIfEmpty);
  row("clipped_fraction",
      clipping.max_value ? std::optional(Share(of.clipped_elements, of.clippable_elements))
                         : std::nullopt,
      "with clipping by value: clipped elements / elements of the effective gradients of applied "
      "steps",
      kLeftOutIfEmpty);
  row("worst_step_energy_lost", of.worst_step_energy_lost, kWorstEnergyLost);
  row.Group(of.harm);
  ActivationRows(of.activations, of.activation_harm, row);
  row("forward", result.forward.outputs,
      "the counters of outputs of the forward pass, at scale 1 and over all steps");
  row("values", result.forward.values, "the counters of parameters, at scale 1 and over all steps");
}

}  // namespace

void Rows(const SimulationRun& of, RowSink& row) {
  row("config", of.config, "with several --config: the name of its file", kLeftOutIfEmpty);
  row("format", of.format, "canonical name, also where an alias was given");
  row("policy", of.policy, "canonical name");
  row("params", of.parameters,
      "all parameters of the policy with defaults, under the stack's own names "
      "([policies](policies.md))");
  row("finite_test", of.rules.finite_test,
      "the [test](numerics.md#5-when-is-a-step-finite) of this run");
  row("notes", of.notes, "remarks, one line each");
  row.ObjectIf(
      of.resume, "resume", "only in an interrupted twin, which has all keys of a run",
      [&](const Resume& resume, RowSink& twin) {
        twin("at_step", resume.at_step, "before which it is interrupted");
        twin("kept", resume.kept, "`scale` or `nothing`: what the checkpoint holds");
        twin("first_difference", of.first_difference,
             "the first step with another scale or skip than the whole run; null if none");
      },
      kLeftOutIfEmpty);
  row.Object("summary", "over all steps", [&](RowSink& summary) { SummaryRows(of, summary); });
  row("events", of.result.events, "what the original software would have logged or raised",
      kOnLines);
  row("steps", of.result.steps, "one object per replayed step, one per line", kOnLines);
  std::vector<const ReplayTensor*> tensors;
  for (const auto* list : {&of.result.tensors, &of.result.forward.tensors}) {
    for (const ReplayTensor& tensor : *list) tensors.push_back(&tensor);
  }
  row("tensors", tensors,
      "one object per tensor, over all steps, one per line: gradients in file order, then those of "
      "the forward pass",
      kOnLines);
  row("layers", LayerLosses(of.result.tensors),
      "one object per layer, one per line, the worst first", kOnLines);
  row.ObjectIf(
      of.heat_map, "heat_map",
      "with --heat-map[=BINS] only, if the policy did not refuse: what each tensor loses "
      "in at most BINS (200) bins of nearly equal numbers of steps",
      [&](const HeatMap& map, RowSink& heat_map) { HeatMapRows(map, heat_map); },
      kLeftOutIfEmpty | kOnLines);
}

inline void Rows(const ReplayRecord& of, RowSink& row) {
  row("schema", "dlsim.replay/1", "", kOnLines);
  row("trace", of.trace, "what was read", kOnLines);
  row("options", of.options, "those of the command", kOnLines);
  row("verdict", of.verdict, "the answer", kOnLines);
  row("expectations", of.expectations, "with --expect only ([gates](gates.md#in-json-and-python))",
      kOnLine | kLeftOutIfEmpty);
  row("runs", of.runs,
      "one object per format and policy, formats outermost, in the order of the command line. "
      "With several --config, one per file. With --resume-at, each is followed by its "
      "interrupted twins",
      kOnLines);
}

namespace {

// One row of CSV.
void CsvRows(const std::string& format, const std::string& policy, const ReplayStep& step,
             int64_t micro, double scale, const TensorInfo& tensor, const TensorStats& counters,
             RowSink& row) {
  row("format", format, "canonical name");
  row("policy", policy, "canonical name");
  row("step", step.step, "recorded step number");
  row("micro", micro < 0 ? nullptr : &micro,
      "number of the micro-step; empty without micro-steps, and for gradients with `--accumulate "
      "sum-first`");
  row("scale", scale, "loss scale used by the step; 1 for tensors of the forward pass");
  row("skipped", step.skipped, "1 if the optimizer's step was skipped, else 0");
  row("tensor", tensor.name, "name as recorded");
  row("role", tensor.role, "`grad`, `act_grad`, `act` or `value`");
  CsvCounters(counters, row);
}

void CsvKeys(RowSink& row) { CsvRows("", "", {}, 0, 1, {}, {}, row); }

// Adds the rows of the tensors of one pass, part by part.
void AddRows(const ObservedStep::Run& of, std::span<const int64_t> micro_steps, TensorSpan tensors,
             const StepAnswer& answers, double scale, std::span<const std::string> configs,
             std::string& rows) {
  for (size_t part = 0; part < micro_steps.size(); ++part) {
    for (size_t t = 0; t < answers.size(); ++t) {
      rows += CsvValues([&](RowSink& row) {
        CsvRows(of.run.format, of.run.policy, of.record, micro_steps[part], scale, tensors[t],
                answers[t].Part(part), row);
      });
      if (!configs.empty()) rows += "," + CsvField(configs[of.index]);
      rows += '\n';
    }
  }
}

}  // namespace

void PathRows(const PathSummary& of, std::optional<int64_t> stopped_at, RowSink& row) {
  const auto scale = [&](const double& used) { return of.steps == 0 ? nullptr : &used; };
  row("steps", of.steps,
      "steps replayed: fewer than recorded if a fatal event ended the run, 0 if the policy "
      "refused");
  row("skipped_steps", of.skipped_steps, "steps on which the optimizer did not step");
  row("longest_skip_run", of.longest_skip_run, "the most steps skipped in a row");
  row("nonfinite_steps", of.nonfinite_steps, "steps that failed the finite test");
  row("hopeless_steps", of.hopeless_steps,
      "steps that are not finite at this and any lower loss scale");
  row("first_applied_step", of.first_applied_step, "number of the first step that was not skipped");
  row("stopped_at_step", stopped_at, "number of the step whose fatal event ended the run");
  row("final_scale", scale(of.final_scale), "loss scale after the last step");
  row("min_scale", scale(of.min_scale), "least of the scales that steps used");
  row("max_scale", scale(of.max_scale), "largest of them");
}

std::vector<Figure> FiguresOf(const SimulationRun& run) {
  return FiguresOf([&](RowSink& row) { SummaryRows(run, row); });
}

void WriteReplayJson(const ReplayRecord& record, OutputFile& out) { WriteJson(record, out); }

std::string CsvHeader(std::span<const std::string> configs) {
  return CsvNames(CsvKeys) + (configs.empty() ? "\n" : ",config\n");
}

void WriteCsvRows(const ObservedStep& step, std::span<const std::string> configs, OutputFile& out) {
  std::string rows;
  for (const ObservedStep::Run& run : step.runs) {
    if (run.run.resume) continue;
    const StepTables& tables = step.step.tables();
    AddRows(run, tables.micro_steps, step.step.gradients(), *run.answers, run.record.scale, configs,
            rows);
    if (run.forward == nullptr) continue;
    AddRows(run, tables.micro_steps, step.step.forward(), *run.forward, 1, configs, rows);
  }
  out.Write(rows);
}

void AddReplayKeys(std::vector<KeyTable>& tables) {
  AddKeys<ReplayRecord>("", tables);
  AddKeys("CSV", CsvKeys, tables);
}

}  // namespace dlsim::sim
