// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/harm.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

// In twelve small models noise is below 2^-19 of the output's gradient, all else above 2^-6
// (docs/evidence.md). Of an output that was recorded in part, as one of 64 items of a batch, the
// norm is smaller, and noise reaches 2^-13 of it.
constexpr double kNoiseOfOutput = 0x1p-12, kNoiseOfParameters = 0x1p-18;
constexpr double kVariation = 0x1p3;  // of noise from step to step
constexpr double kSlightStep = 0x1p-12;

double RootMeanSquare(const TensorStats& stats) {
  const uint64_t finite = stats.elements - stats.nonfinite();
  return finite == 0 ? 0 : std::sqrt(stats.sum_of_squares / static_cast<double>(finite));
}

// What is known of a layer's gradients.
struct LayerGradients {
  double largest = 0;  // root mean square of its parameters' gradients
  double output_squares = 0;
};

// The modules that are called several times in a step.
std::unordered_set<std::string> RepeatedModules(std::span<const StepTensor> tensors) {
  std::unordered_set<std::string> repeated;
  for (const StepTensor& tensor : tensors) {
    const std::string call = LayerOf(tensor.name), module = WithoutCall(call);
    if (module != call) repeated.insert(module);
  }
  return repeated;
}

double ErrorsOf(const TensorAnswer& answer, Reading reading) {
  if (answer.bounds && reading != Reading::kLikely) {
    const Bracket<double>& errors = answer.bounds->counters.error_sum_of_squares;
    return reading == Reading::kSmallest ? errors.low : errors.high;
  }
  double errors = 0;
  for (const TensorStats& part : answer.parts) errors += part.error_sum_of_squares;
  return errors;
}

}  // namespace

void NoiseFinder::FindLayers(std::span<const StepTensor> tensors) {
  const auto name_of = [&](size_t place) -> const std::string& {
    return tallies_.items()[place].name;
  };
  if (std::ranges::equal(tensors, tally_of_, {}, &StepTensor::name, name_of)) return;
  layers_.clear();
  tally_of_.clear();
  std::unordered_map<std::string, size_t> places;
  for (const StepTensor& tensor : tensors) {
    layers_.push_back(places.try_emplace(LayerOf(tensor.name), places.size()).first->second);
    tally_of_.push_back(tallies_.PlaceOf(tensor.name, tally_of_.size()));
  }
  layer_count_ = places.size();
}

// Steps without a forward pass name nothing.
void NoiseFinder::FindNamed(const GradientStep& step) {
  std::set<std::string> named = step.Listed(kNoiseKey);
  if (!named.empty() || !step.Listed(kAutocastFloat32Key).empty()) named_ = std::move(named);
}

std::vector<bool> NoiseFinder::Find(const GradientStep& step, std::span<const StepTensor> tensors,
                                    std::span<const TensorStats> totals) {
  FindLayers(tensors);
  FindNamed(step);
  std::vector<LayerGradients> layers(layer_count_);
  for (size_t t = 0; t < tensors.size(); ++t) {
    LayerGradients& layer = layers[layers_[t]];
    if (tensors[t].role == Role::kGrad) {
      layer.largest = std::fmax(layer.largest, RootMeanSquare(totals[t]));
    } else if (!IsOfOperation(tensors[t].name)) {
      layer.output_squares += totals[t].sum_of_squares;
    }
  }
  std::vector<bool> noise(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    noise[t] = named_.contains(tensors[t].name);
    if (tensors[t].role != Role::kGrad || noise[t]) continue;
    const LayerGradients& layer = layers[layers_[t]];
    const double squares = totals[t].sum_of_squares;
    if (!(squares > 0)) continue;
    Tally& tally = tallies_[tally_of_[t]];
    const double variation = tally.mostly_noise() ? kVariation : 1;
    const bool below_output =
        std::sqrt(squares) < variation * kNoiseOfOutput * std::sqrt(layer.output_squares);
    const bool below_parameters =
        layer.output_squares == 0 &&
        RootMeanSquare(totals[t]) < variation * kNoiseOfParameters * layer.largest;
    noise[t] = below_output || below_parameters;
    tally.noise += noise[t];
    ++tally.steps;
  }
  if (descends_) FindSlight(tensors, totals, noise);
  return noise;
}

void NoiseFinder::FindSlight(std::span<const StepTensor> tensors,
                             std::span<const TensorStats> totals, std::vector<bool>& noise) const {
  double largest = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role == Role::kGrad) largest = std::fmax(largest, totals[t].sum_of_squares);
  }
  std::vector<bool> slight(layer_count_), moves(layer_count_);
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role != Role::kGrad) continue;
    const bool is_slight = totals[t].sum_of_squares < kSlightStep * kSlightStep * largest;
    if (is_slight) noise[t] = true;
    (is_slight ? slight : moves)[layers_[t]] = true;
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    const size_t layer = layers_[t];
    if (tensors[t].role == Role::kActGrad && slight[layer] && !moves[layer]) noise[t] = true;
  }
}

void NoiseFinder::Sample(const GradientSource& source, const StepOptions& options) {
  constexpr size_t kMost = 8;
  const size_t steps = source.step_count(), samples = std::min(kMost, (steps + kMost - 1) / kMost);
  if (steps == 0) return;
  const std::unique_ptr<GradientStep> last = source.Load(steps - 1, StepNeeds::kTensors);
  // The first step is recorded before an optimizer is known.
  descends_ = !last->Listed(kDescentKey).empty();
  if (samples < 2) return;
  const StepQuestion question = {{kFp16},
                                 1.0f};  // what is counted of the inputs is all that is used
  const auto look_at = [&](const GradientStep& step) {
    const StepMeasurement measured = step.Measure(std::span(&question, 1), options);
    Find(step, measured.tensors, TotalsOf(measured.answers.front()));
  };
  for (size_t s = 0; s + 1 < samples; ++s) {
    look_at(*source.Load(s * (steps - 1) / (samples - 1), StepNeeds::kTensors));
  }
  look_at(*last);
}

double HarmOf(const TensorAnswer& answer, const TensorStats& total, Reading reading) {
  return ErrorsOf(answer, reading) / total.sum_of_squares;
}

double HarmLimit(const Conversion& conversion, bool parameters_only) {
  return RoundingFloor(conversion) +
         (parameters_only ? kParametersOnlyHarmThreshold : kHarmThreshold);
}

HarmOverTensors HarmOver(Role role, std::span<const StepTensor> tensors,
                         std::span<const TensorAnswer> answers, std::span<const TensorStats> totals,
                         const std::vector<bool>& noise, Reading reading, Calls calls) {
  struct Sums {
    size_t tensor;  // the first
    double errors = 0, squares = 0;
  };
  std::vector<Sums> sums;
  std::unordered_map<std::string, size_t> places;  // in `sums`
  const std::unordered_set<std::string> repeated =
      calls == Calls::kTogether ? RepeatedModules(tensors) : std::unordered_set<std::string>();
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role != role || noise[t] || totals[t].sum_of_squares == 0) continue;
    size_t place = sums.size();
    if (!repeated.empty() && repeated.contains(WithoutCall(LayerOf(tensors[t].name)))) {
      place = places.try_emplace(WithoutCall(StemOf(tensors[t].name)), place).first->second;
    }
    if (place == sums.size()) sums.push_back({t});
    sums[place].errors += ErrorsOf(answers[t], reading);
    sums[place].squares += totals[t].sum_of_squares;
  }
  HarmOverTensors over;
  for (const Sums& one : sums) over.Add(one.tensor, one.errors / one.squares);
  over.TakeMean();
  return over;
}

HarmOverTensors ChannelHarmOver(Role role, std::span<const StepTensor> tensors,
                                std::span<const ChannelCurves> channels,
                                const std::vector<bool>& noise, double log_quantum) {
  HarmOverTensors over;
  for (size_t t = 0; t < channels.size(); ++t) {
    if (tensors[t].role != role || noise[t] || channels[t].channels < 2) continue;
    over.Add(t, channels[t].MeanAt(log_quantum));
  }
  over.TakeMean();
  return over;
}

double RoundingFloor(const Conversion& conversion) {
  const bool nearest = conversion.rounding == Rounding::kNearestEven ||
                       conversion.rounding == Rounding::kNearestAway;
  return std::ldexp(nearest ? 1.0 / 3 : 4.0 / 3, -2 * (conversion.format.mantissa_bits + 1));
}

double AboveFloor(double harm, const Conversion& conversion) {
  return std::clamp(harm - RoundingFloor(conversion), 0.0, 1.0);
}

std::vector<TensorStats> TotalsOf(std::span<const TensorAnswer> answers) {
  std::vector<TensorStats> totals(answers.size());
  for (size_t t = 0; t < answers.size(); ++t) {
    for (const TensorStats& part : answers[t].parts) totals[t].Merge(part);
  }
  return totals;
}

}  // namespace dlsim::sim
