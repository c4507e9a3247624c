// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/window_consumer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_map>
#include <utility>

#include "sim/replay/layer_name.h"
#include "src/profile/curve_code.h"

namespace dlsim::sim {
namespace {

// What channels of early steps may take in memory: for mostly only a few are measured again.
constexpr size_t kMostKeptBytes = size_t{16} << 20;

size_t PlaceOf(int exponent) { return static_cast<size_t>(exponent - kLowestWindowExponent); }

// Adds what a step's tensors lose at a scale.
void AddTensorHarm(int64_t step, const StepInputs& inputs, const std::vector<TensorAnswer>& answers,
                   const StepQuestion& question, NamedList<TensorHarm>& tensors) {
  const std::optional<double> quantum = LogQuantum(question.conversion, question.scale);
  for (size_t t = 0; t < answers.size(); ++t) {
    const StepTensor& header = inputs.tensors[t];
    // Steps mostly have the same tensors.
    TensorHarm& tensor = tensors.Of(header.name, t, header.role);
    if (inputs.totals[t].sum_of_squares == 0) continue;
    tensor.absmax = std::fmax(tensor.absmax, inputs.totals[t].absmax);
    tensor.noise_steps += inputs.noise[t];
    const double harm = HarmOf(answers[t], inputs.totals[t]);
    tensor.harm.Add(harm);
    double of_channels = 0;
    if (quantum && !inputs.channels.empty()) {
      of_channels =
          tensor.channels.Add(inputs.channels[t], quantum, AboveFloor(harm, question.conversion));
    }
    if (std::max(harm, of_channels) <= kHarmAtRisk) continue;
    ++tensor.steps_at_risk;
    // Steps that were measured again come last.
    tensor.first_step = std::min(tensor.first_step.value_or(step), step);
    tensor.last_step = std::max(tensor.last_step.value_or(step), step);
  }
}

// An output matters to the loss about as much as its norm times that of its gradient. Along a chain
// of layers the product hardly changes, whatever their units are.
constexpr double kSlight = 0.01;  // of the largest of the step

// The outputs whose loss is slight: small terms of sums. What has no gradient in the recording is
// taken for slight if it is the result of an operation, or if the step has no gradients at all.
std::set<std::string> SlightOutputs(std::span<const StepTensor> tensors,
                                    std::span<const TensorStats> totals, const StepInputs& inputs) {
  std::unordered_map<std::string, double> gradients;  // by the name of the output
  for (size_t t = 0; t < inputs.tensors.size(); ++t) {
    const auto& [name, role] = inputs.tensors[t];
    if (role != Role::kActGrad || !name.ends_with("_grad")) continue;
    gradients[OutputOf(name)] = inputs.totals[t].sum_of_squares;
  }
  std::vector<double> weights;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const auto found = gradients.find(tensors[t].name);
    const bool known = found != gradients.end();
    weights.push_back(known ? std::sqrt(found->second) * std::sqrt(totals[t].sum_of_squares) : -1);
  }
  const double largest = std::ranges::max(weights);
  std::set<std::string> slight;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const bool known = weights[t] >= 0;
    const bool slight_unless_known = inputs.tensors.empty() || IsOfOperation(tensors[t].name);
    if (known ? weights[t] < kSlight * largest : slight_unless_known) {
      slight.insert(tensors[t].name);
    }
  }
  return slight;
}

}  // namespace

void SafeStepCounts::Add(const StepWindow& window) {
  if (window.empty()) return;
  for (int exponent = window.low; exponent <= window.high; ++exponent) {
    ++safe_[PlaceOf(exponent)];
    with_room_[PlaceOf(exponent)] += exponent + kHeadroom <= window.high;
  }
}

size_t SafeStepCounts::SafeAt(int exponent) const { return safe_[PlaceOf(exponent)]; }

SafeScales SafeStepCounts::Around(int exponent) const {
  SafeScales range = {exponent, exponent, SafeAt(exponent), exponent, exponent};
  while (range.low > kLowestWindowExponent && SafeAt(range.low - 1) >= range.steps) --range.low;
  while (range.high < kHighestWindowExponent && SafeAt(range.high + 1) >= range.steps) {
    ++range.high;
  }
  if (range.low <= 0 && range.high >= 0) range.exponent = 0;
  return range;
}

// A step that leaves no head-room at any scale that is safe for the others is a spike: it does not
// set the scale.
std::optional<SafeScales> SafeStepCounts::Best() const {
  const bool room = *std::ranges::max_element(with_room_) > 0;
  const Counts& counts = room ? with_room_ : safe_;
  const size_t most = *std::ranges::max_element(counts);
  if (most == 0) return std::nullopt;
  std::optional<std::pair<int, int>> best;
  for (int low = kLowestWindowExponent; low <= kHighestWindowExponent; ++low) {
    if (counts[PlaceOf(low)] != most) continue;
    std::pair row = {low, low};
    while (row.second < kHighestWindowExponent && counts[PlaceOf(row.second + 1)] == most) {
      ++row.second;
    }
    const auto rank = [](const std::pair<int, int>& r) {
      return std::pair(r.first <= 0 && r.second >= 0, r.second - r.first);
    };
    if (!best || rank(row) > rank(*best)) best = row;
    low = row.second;
  }
  return Around(room ? best->second : std::max(best->first, best->second - kHeadroom));
}

std::vector<NamedFormat> NamedFormats(std::span<const std::string> names) {
  std::vector<NamedFormat> formats;
  for (const std::string& name : names) {
    const NamedFormat format = ParseFormat(name);
    if (std::ranges::count(formats, format.name, &NamedFormat::name) == 0) {
      formats.push_back(format);
    }
  }
  return formats;
}

WindowConsumer::WindowConsumer(std::span<const NamedFormat> formats, const Conversion& conversion,
                               const ReplayOptions& options, Recipe recipe)
    : options_(options.step), recipe_(recipe) {
  for (const NamedFormat& format : formats) {
    Conversion to_format = conversion;
    to_format.format = format.format;
    formats_.push_back({.search = WindowSearch(format, conversion, options.checked),
                        .safe_steps = {},
                        .tensors = {},
                        .forward = ForwardTally(to_format, recipe)});
  }
}

void WindowConsumer::AskAt(size_t format, int exponent, bool of_tensors, StepQuestions& questions) {
  const size_t answer = questions.Add(formats_[format].search.QuestionAt(exponent));
  probes_.push_back({format, exponent, of_tensors, answer});
}

void WindowConsumer::AskWanted(StepQuestions& questions) {
  for (size_t f = 0; f < formats_.size(); ++f) {
    for (const int exponent : formats_[f].search.Wanted()) {
      if (!questions.IsFull()) AskAt(f, exponent, false, questions);
    }
  }
}

bool WindowConsumer::Ask(const GradientStep& step, StepQuestions& questions) {
  probes_.clear();
  for (size_t f = 0; f < formats_.size(); ++f) {
    formats_[f].search.Begin(step.number());
    AskAt(f, formats_[f].exponent, true, questions);
    formats_[f].forward_answer = questions.AddForward(formats_[f].forward.conversion());
  }
  AskWanted(questions);
  questions.AddChannels();
  return true;
}

void WindowConsumer::Learn(const StepInputs& inputs, const StepMeasurement& measured) {
  for (const Probe& probe : probes_) {
    formats_[probe.format].search.Learn(probe.exponent, inputs, measured.answers[probe.answer]);
  }
}

void WindowConsumer::AddHarm(int64_t step, const StepInputs& inputs,
                             const StepMeasurement& measured, const Probe& probe) {
  Searched& searched = formats_[probe.format];
  AddTensorHarm(step, inputs, measured.answers[probe.answer],
                searched.search.QuestionAt(probe.exponent), searched.tensors);
}

// Looks at another scale from the next step on, if the steps so far ask for another.
void WindowConsumer::Settle(Searched& searched, size_t next_step) {
  const std::optional<SafeScales> range = searched.safe_steps.Best();
  if (!range || range->exponent == searched.exponent) return;
  searched.exponent = range->exponent;
  searched.first = next_step;
  searched.tensors = {};
}

void WindowConsumer::AddForward(const GradientStep& step, const StepInputs& inputs,
                                const StepMeasurement& forward) {
  if (forward.tensors.empty()) return;
  const ListedTensors listed = {
      step.Listed(kAutocastFloat32Key), step.Listed(kHarmlessOverflowKey),
      SlightOutputs(forward.tensors, TotalsOf(forward.answers.front()), inputs)};
  for (Searched& searched : formats_) {
    ForwardTally& tally = searched.forward;
    const std::set<std::string> suspects = tally.Add(
        step.number(), forward.tensors, TotalsOf(forward.answers[searched.forward_answer]), listed);
    if (suspects.empty()) continue;
    Conversion up = tally.conversion();
    up.rounding = Rounding::kTowardPositive;
    up.overflow = Overflow::kInfinity;
    const StepMeasurement rounded_up = step.MeasureForward(std::span(&up, 1), options_);
    tally.NameConstants(suspects, rounded_up.tensors, TotalsOf(rounded_up.answers.front()));
  }
}

void WindowConsumer::Advance(size_t i, const GradientStep& step, const MeasuredStep& all) {
  const StepMeasurement& measured = all.gradients;
  const StepInputs inputs(step, measured, measured.answers[probes_.front().answer], noise_);
  if (step.HasBrokenLoss() && broken_losses_.steps++ == 0) {
    broken_losses_.first_step = step.number();
  }
  refused_.Add(step.RefusedBefore());
  const std::set<std::string> types = step.Listed(kComputedInKey);
  computed_in_.float16 += types.contains("float16");
  computed_in_.bfloat16 += types.contains("bfloat16");
  for (const Probe& probe : probes_) {
    if (!probe.of_tensors) continue;
    AddHarm(step.number(), inputs, measured, probe);
  }
  AddForward(step, inputs, all.forward);
  Learn(inputs, measured);
  KeepChannels(measured.channels);
  while (true) {
    StepQuestions questions(QuestionsAtOnce(inputs.tensors.size(), options_.memory_bytes));
    probes_.clear();
    AskWanted(questions);
    if (probes_.empty()) break;
    Learn(inputs, step.Measure(questions.all(), options_));
  }
  for (Searched& searched : formats_) {
    searched.search.End(inputs);
    searched.safe_steps.Add(searched.search.windows().back());
    Settle(searched, i + 1);
  }
}

void WindowConsumer::KeepChannels(std::span<const ChannelCurves> channels) {
  if (kept_bytes_ > kMostKeptBytes) return;
  KeptChannels& kept = kept_channels_.emplace_back();
  kept.tensors = channels.size();
  PutCurves(channels, kept.curves);
  kept_bytes_ += sizeof(kept) + kept.curves.size();
}

// Measures a step that was advanced.
StepMeasurement WindowConsumer::MeasureAgain(size_t i, const GradientStep& step,
                                             const StepQuestions& questions) const {
  StepOptions options = options_;
  options.channels = i >= kept_channels_.size();
  StepMeasurement measured = step.Measure(questions.all(), options);
  if (options.channels) return measured;
  const KeptChannels& kept = kept_channels_[i];
  static const std::string place = "channels";
  ByteReader reader(place, kept.curves);
  measured.channels = TakeCurves(kept.tensors, reader);
  return measured;
}

std::vector<FormatWindows> WindowConsumer::Take(const GradientSource& source) {
  size_t behind = 0;
  for (const Searched& searched : formats_) behind = std::max(behind, searched.first);
  for (size_t i = 0; i < behind; ++i) {
    const std::unique_ptr<GradientStep> step = source.Load(i, StepNeeds::kTensors);
    StepQuestions questions;
    probes_.clear();
    for (size_t f = 0; f < formats_.size(); ++f) {
      if (i < formats_[f].first) AskAt(f, formats_[f].exponent, true, questions);
    }
    const StepMeasurement measured = MeasureAgain(i, *step, questions);
    const StepInputs inputs(*step, measured, measured.answers.front(), noise_);
    for (const Probe& probe : probes_) AddHarm(step->number(), inputs, measured, probe);
  }
  std::vector<FormatWindows> windows;
  for (Searched& searched : formats_) {
    windows.push_back({searched.search.format(), searched.search.windows(), searched.safe_steps,
                       searched.exponent, searched.tensors.Take(), broken_losses_,
                       searched.forward.VerdictOn(Role::kAct),
                       searched.forward.VerdictOn(Role::kValue), recipe_, refused_, computed_in_});
  }
  return windows;
}

}  // namespace dlsim::sim
