// SPDX-License-Identifier: Apache-2.0
#include "sim/advice/window_consumer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace dlsim::sim {
namespace {

constexpr int kHeadroom = 2;  // binades

size_t PlaceOf(int exponent) { return static_cast<size_t>(exponent - kLowestWindowExponent); }

TensorHarm& TensorOf(const StepTensor& tensor, size_t t, std::vector<TensorHarm>& tensors) {
  // Steps mostly have the same tensors.
  if (t < tensors.size() && tensors[t].name == tensor.name) return tensors[t];
  const auto found = std::ranges::find(tensors, tensor.name, &TensorHarm::name);
  if (found != tensors.end()) return *found;
  TensorHarm added;
  added.name = tensor.name;
  added.role = tensor.role;
  return tensors.emplace_back(std::move(added));
}

}  // namespace

void ServedSteps::Add(const StepWindow& window) {
  ++steps_;
  if (window.empty()) return;
  for (int exponent = window.low; exponent <= window.high; ++exponent) {
    ++served_[PlaceOf(exponent)];
  }
}

size_t ServedSteps::ServedBy(int exponent) const { return served_[PlaceOf(exponent)]; }

std::optional<ServedSteps::Range> ServedSteps::Best() const {
  const size_t most = *std::ranges::max_element(served_);
  if (most == 0) return std::nullopt;
  std::optional<Range> best;
  for (int low = kLowestWindowExponent; low <= kHighestWindowExponent; ++low) {
    if (ServedBy(low) != most) continue;
    Range range = {low, low, most};
    while (range.high < kHighestWindowExponent && ServedBy(range.high + 1) == most) ++range.high;
    const auto rank = [](const Range& r) {
      return std::pair(r.low <= 0 && r.high >= 0, r.high - r.low);
    };
    if (!best || rank(range) > rank(*best)) best = range;
    low = range.high;
  }
  return best;
}

int ServedSteps::ScaleIn(const Range& range) {
  if (range.low <= 0 && range.high >= 0) return 0;
  return std::max(range.low, range.high - kHeadroom);
}

void AddTensorHarm(int64_t step, const StepMeasurement& measured,
                   const std::vector<TensorAnswer>& answers, std::vector<TensorHarm>& tensors) {
  const std::vector<TensorStats> totals = TotalsOf(answers);
  const std::vector<bool> noise = FindNoise(measured.tensors, totals);
  for (size_t t = 0; t < answers.size(); ++t) {
    TensorHarm& tensor = TensorOf(measured.tensors[t], t, tensors);
    if (totals[t].sum_of_squares == 0) continue;
    tensor.noise_steps += noise[t];
    const double harm = totals[t].harm();
    tensor.harm.Add(harm);
    if (harm <= kHarmAtRisk) continue;
    ++tensor.steps_at_risk;
    // Steps that were measured again come last.
    tensor.first_step = std::min(tensor.first_step.value_or(step), step);
    tensor.last_step = std::max(tensor.last_step.value_or(step), step);
  }
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
                               const StepOptions& options)
    : options_(options) {
  for (const NamedFormat& format : formats) {
    formats_.push_back({.search = WindowSearch(format, conversion), .served = {}, .tensors = {}});
  }
}

void WindowConsumer::AskAll(StepQuestions& questions) {
  for (const Probe& probe : probes_) {
    questions.push_back(formats_[probe.format].search.QuestionAt(probe.exponent));
  }
}

std::optional<StepQuestions> WindowConsumer::Ask(const GradientStep& step) {
  probes_.clear();
  for (size_t f = 0; f < formats_.size(); ++f) {
    formats_[f].search.Begin(step.number());
    const int at = formats_[f].exponent;
    bool asked = false;
    for (const int exponent : formats_[f].search.Wanted()) {
      probes_.push_back({f, exponent, exponent == at});
      asked |= exponent == at;
    }
    if (!asked) probes_.push_back({f, at, true});
  }
  StepQuestions questions;
  AskAll(questions);
  return questions;
}

void WindowConsumer::Learn(int64_t step, const StepMeasurement& measured) {
  for (size_t p = 0; p < probes_.size(); ++p) {
    const Probe& probe = probes_[p];
    Searched& of_format = formats_[probe.format];
    of_format.search.Learn(probe.exponent, measured, measured.answers[p]);
    if (probe.of_tensors) AddTensorHarm(step, measured, measured.answers[p], of_format.tensors);
  }
}

// Looks at another scale from the next step on, if the steps so far ask for another.
void WindowConsumer::Settle(Searched& searched, size_t next_step) {
  const std::optional<ServedSteps::Range> range = searched.served.Best();
  if (!range || ServedSteps::ScaleIn(*range) == searched.exponent) return;
  searched.exponent = ServedSteps::ScaleIn(*range);
  searched.first = next_step;
  searched.tensors.clear();
}

void WindowConsumer::Advance(size_t i, const GradientStep& step, const StepMeasurement& measured) {
  Learn(step.number(), measured);
  while (true) {
    probes_.clear();
    for (size_t f = 0; f < formats_.size(); ++f) {
      for (const int exponent : formats_[f].search.Wanted())
        probes_.push_back({f, exponent, false});
    }
    if (probes_.empty()) break;
    StepQuestions questions;
    AskAll(questions);
    Learn(step.number(), step.Measure(questions, options_));
  }
  for (Searched& searched : formats_) {
    searched.search.End();
    searched.served.Add(searched.search.windows().back());
    Settle(searched, i + 1);
  }
}

std::vector<FormatWindows> WindowConsumer::Take(const GradientSource& source) {
  size_t behind = 0;
  for (const Searched& searched : formats_) behind = std::max(behind, searched.first);
  for (size_t i = 0; i < behind; ++i) {
    const std::unique_ptr<GradientStep> step = source.Load(i, StepNeeds::kTensors);
    probes_.clear();
    for (size_t f = 0; f < formats_.size(); ++f) {
      if (i < formats_[f].first) probes_.push_back({f, formats_[f].exponent, true});
    }
    StepQuestions questions;
    AskAll(questions);
    const StepMeasurement measured = step->Measure(questions, options_);
    for (size_t p = 0; p < probes_.size(); ++p) {
      AddTensorHarm(step->number(), measured, measured.answers[p],
                    formats_[probes_[p].format].tensors);
    }
  }
  std::vector<FormatWindows> windows;
  for (Searched& searched : formats_) {
    windows.push_back({searched.search.format(), searched.search.windows(), searched.served,
                       searched.exponent, std::move(searched.tensors)});
  }
  return windows;
}

}  // namespace dlsim::sim
