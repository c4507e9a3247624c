// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/harm.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <unordered_map>

#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

// In twelve small models noise is below 2^-19 of the output's gradient, all else above 2^-6
// (docs/evidence.md).
constexpr double kNoiseOfOutput = 0x1p-16, kNoiseOfParameters = 0x1p-18;

double RootMeanSquare(const TensorStats& stats) {
  const uint64_t finite = stats.elements - stats.nonfinite();
  return finite == 0 ? 0 : std::sqrt(stats.sum_of_squares / static_cast<double>(finite));
}

// What is known of a layer's gradients.
struct LayerGradients {
  double largest = 0;  // root mean square of its parameters' gradients
  double output_squares = 0;
};

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
  if (std::ranges::equal(tensors, names_, {}, &StepTensor::name)) return;
  names_.clear();
  layers_.clear();
  std::unordered_map<std::string, size_t> places;
  for (const StepTensor& tensor : tensors) {
    names_.push_back(tensor.name);
    layers_.push_back(places.try_emplace(LayerOf(tensor.name), places.size()).first->second);
  }
  layer_count_ = places.size();
}

std::vector<bool> NoiseFinder::Find(std::span<const StepTensor> tensors,
                                    std::span<const TensorStats> totals) {
  FindLayers(tensors);
  std::vector<LayerGradients> layers(layer_count_);
  for (size_t t = 0; t < tensors.size(); ++t) {
    LayerGradients& layer = layers[layers_[t]];
    if (tensors[t].role == Role::kGrad) {
      layer.largest = std::fmax(layer.largest, RootMeanSquare(totals[t]));
    } else {
      layer.output_squares += totals[t].sum_of_squares;
    }
  }
  std::vector<bool> noise(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role != Role::kGrad) continue;
    const LayerGradients& layer = layers[layers_[t]];
    const double squares = totals[t].sum_of_squares;
    const bool below_output = std::sqrt(squares) < kNoiseOfOutput * std::sqrt(layer.output_squares);
    const bool below_parameters =
        layer.output_squares == 0 && RootMeanSquare(totals[t]) < kNoiseOfParameters * layer.largest;
    noise[t] = squares > 0 && (below_output || below_parameters);
  }
  return noise;
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
                         const std::vector<bool>& noise, Reading reading) {
  HarmOverTensors over;
  double sum = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role != role || noise[t] || totals[t].sum_of_squares == 0) continue;
    const double harm = HarmOf(answers[t], totals[t], reading);
    if (over.tensors++ == 0 || harm > over.worst) {
      over.worst = harm;
      over.worst_tensor = t;
    }
    sum += harm;
  }
  if (over.tensors > 0) over.mean = sum / static_cast<double>(over.tensors);
  return over;
}

double RoundingFloor(const Conversion& conversion) {
  const bool nearest = conversion.rounding == Rounding::kNearestEven ||
                       conversion.rounding == Rounding::kNearestAway;
  return std::ldexp(nearest ? 1.0 / 3 : 4.0 / 3, -2 * (conversion.format.mantissa_bits + 1));
}

std::vector<TensorStats> TotalsOf(std::span<const TensorAnswer> answers) {
  std::vector<TensorStats> totals(answers.size());
  for (size_t t = 0; t < answers.size(); ++t) {
    for (const TensorStats& part : answers[t].parts) totals[t].Merge(part);
  }
  return totals;
}

}  // namespace dlsim::sim
