// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/harm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numbers>
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

}  // namespace

std::vector<bool> NoiseFinder::Find(const Step& step, std::span<const TensorStats> inputs) {
  const TensorSpan tensors = step.gradients();
  const auto described = std::span(step.tables().tensors).first(tensors.size());
  if (!std::ranges::equal(described, latest_)) {
    latest_.assign(described.begin(), described.end());
    layers_.clear();
    tally_of_.clear();
    tallies_.Reserve(tensors.size());
    std::unordered_map<std::string_view, size_t> places;
    places.reserve(tensors.size());
    for (const TensorRef& tensor : described) {
      layers_.push_back(places.try_emplace(LayerOf(tensor->name), places.size()).first->second);
      const size_t known = tallies_.items().size();
      tally_of_.push_back(tallies_.PlaceOf(tensor, tally_of_.size()));
      if (tally_of_.back() < known || sampled_.items().empty()) continue;
      const Tally& before = sampled_.Of(tensor, known);
      tallies_[known].noise = before.noise;
      tallies_[known].steps = before.steps;
    }
    layer_count_ = places.size();
  }
  // Steps without a forward pass name nothing.
  std::set<std::string> named = step.Listed(kNoiseKey);
  if (!named.empty() || !step.Listed(kAutocastFloat32Key).empty()) named_ = std::move(named);
  std::vector<LayerGradients> layers(layer_count_);
  for (size_t t = 0; t < tensors.size(); ++t) {
    LayerGradients& layer = layers[layers_[t]];
    if (tensors[t].role == Role::kGrad) {
      layer.largest = std::fmax(layer.largest, RootMeanSquare(inputs[t]));
    } else if (!IsOfOperation(tensors[t].name)) {
      layer.output_squares += inputs[t].sum_of_squares;
    }
  }
  std::vector<bool> noise(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    noise[t] = named_.contains(tensors[t].name);
    if (tensors[t].role != Role::kGrad || noise[t]) continue;
    const LayerGradients& layer = layers[layers_[t]];
    const double squares = inputs[t].sum_of_squares;
    if (!(squares > 0)) continue;
    Tally& tally = tallies_[tally_of_[t]];
    const double variation = tally.mostly_noise() ? kVariation : 1;
    const bool below_output =
        std::sqrt(squares) < variation * kNoiseOfOutput * std::sqrt(layer.output_squares);
    const bool below_parameters =
        layer.output_squares == 0 &&
        RootMeanSquare(inputs[t]) < variation * kNoiseOfParameters * layer.largest;
    noise[t] = below_output || below_parameters;
    tally.noise += noise[t];
    ++tally.steps;
  }
  if (descends_) FindSlight(tensors, inputs, noise);
  return noise;
}

void NoiseFinder::FindSlight(TensorSpan tensors, std::span<const TensorStats> inputs,
                             std::vector<bool>& noise) const {
  double largest = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role == Role::kGrad) largest = std::fmax(largest, inputs[t].sum_of_squares);
  }
  std::vector<bool> slight(layer_count_), moves(layer_count_);
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role != Role::kGrad) continue;
    const bool is_slight = inputs[t].sum_of_squares < kSlightStep * kSlightStep * largest;
    if (is_slight) noise[t] = true;
    (is_slight ? slight : moves)[layers_[t]] = true;
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    const size_t layer = layers_[t];
    if (tensors[t].role == Role::kActGrad && slight[layer] && !moves[layer]) noise[t] = true;
  }
}

void NoiseFinder::Sample(const StepSource& source, const StepOptions& options) {
  constexpr size_t kMost = 8;
  const size_t steps = source.step_count, samples = std::min(kMost, (steps + kMost - 1) / kMost);
  if (steps == 0) return;
  // The first step is recorded before an optimizer is known, also that of a training that goes on.
  const auto descends = [&](size_t i) { return !source.describe(i)->Listed(kDescentKey).empty(); };
  descends_ = descends(steps - 1) || (steps > 1 && descends(steps - 2));
  if (samples < 2) return;
  StepOptions plain = options;
  plain.mantissas.clear();
  plain.scaled = {};
  for (size_t s = 0; s < samples; ++s) {
    const std::unique_ptr<Step> step = source.load(s * (steps - 1) / (samples - 1), plain);
    Find(*step, step->Inputs());
  }
  sampled_ = std::exchange(tallies_, {});
  latest_.clear();
}

double HarmLimit(const Conversion& conversion, bool parameters_only) {
  return RoundingFloor(conversion) +
         (parameters_only ? kParametersOnlyHarmThreshold : kHarmThreshold);
}

CountedGradients::CountedGradients(const Step& step, const std::vector<bool>& noise) {
  const TensorSpan tensors = step.gradients();
  const auto has_channels = [&](size_t t) {
    uint64_t channels = 0;
    for (const std::vector<TensorTable>& part : step.tables().parts) {
      for (const auto& [quarter, count] : part[t].channels) channels += count;
    }
    return channels > 1;
  };
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (noise[t] || step.Inputs()[t].sum_of_squares == 0) continue;
    OfRole& of = tensors[t].role == Role::kGrad ? grads : act_grads;
    of.all.push_back(t);
    if (has_channels(t)) of.with_channels.push_back(t);
  }
}

HarmOverTensors HarmOver(std::span<const size_t> counted, const Step& step,
                         std::span<const double> errors, Calls calls) {
  HarmOverTensors over;
  const std::vector<TensorStats>& inputs = step.Inputs();
  std::unordered_set<std::string_view> repeated;  // modules that are called several times
  if (calls == Calls::kTogether) {
    for (const TensorInfo& tensor : step.gradients()) {
      const std::string_view call = LayerOf(tensor.name), module = WithoutCall(call);
      if (module != call) repeated.insert(module);
    }
  }
  struct Sums {
    size_t tensor;  // the first
    double errors = 0, squares = 0;
  };
  std::vector<Sums> sums;
  std::unordered_map<std::string_view, size_t> places;  // in `sums`
  for (const size_t t : counted) {
    if (repeated.empty()) {
      over.Add(t, errors[t] / inputs[t].sum_of_squares);
      continue;
    }
    const std::string& name = step.gradients()[t].name;
    size_t place = sums.size();
    if (repeated.contains(WithoutCall(LayerOf(name)))) {
      place = places.try_emplace(WithoutCall(StemOf(name)), place).first->second;
    }
    if (place == sums.size()) sums.push_back({t});
    sums[place].errors += errors[t];
    sums[place].squares += inputs[t].sum_of_squares;
  }
  for (const Sums& one : sums) over.Add(one.tensor, one.errors / one.squares);
  over.TakeMean();
  return over;
}

HarmOverTensors HarmOver(std::span<const size_t> counted, const StepAnswer& answer) {
  HarmOverTensors over;
  for (const size_t t : counted) over.Add(t, answer[t].total.harm());
  over.TakeMean();
  return over;
}

// The variance of a normal sample's rounding error (Widrow and Kollar, Quantization Noise, 2008);
// its first term is that of values anywhere between two multiples, which alone counts from 1 on.
double HarmOfNormal(double rms) {
  constexpr double kAllLost = 0.1, kSpread = 1, kNegligible = 1e-12;
  constexpr double kPiSquared = std::numbers::pi * std::numbers::pi;
  if (rms < kAllLost) return 1;
  double error = 1.0 / 12, sign = -1;
  for (double k = 1, term = 1; rms < kSpread && term > kNegligible; ++k, sign = -sign) {
    term = std::exp(-2 * kPiSquared * k * k * rms * rms) / (kPiSquared * k * k);
    error += sign * term;
  }
  return std::fmin(1, error / (rms * rms));
}

ChannelLoss LossOfChannels(const StepTables& step, size_t gradient, double quantum) {
  constexpr uint32_t kMiddle = 1 << 20;  // of a quarter of a binade
  ChannelLoss loss;
  for (const std::vector<TensorTable>& part : step.parts) {
    for (const auto& [quarter, count] : part[gradient].channels) {
      const double largest = std::bit_cast<float>((quarter << 21) + kMiddle);
      const double harm = HarmOfNormal(largest / (3 * quantum));
      loss.channels += count;
      loss.sum += harm * static_cast<double>(count);
      loss.worst = std::fmax(loss.worst, harm);
    }
  }
  return loss;
}

std::optional<double> SmallestQuantum(const Conversion& conversion, double scale) {
  const bool nearest = conversion.rounding == Rounding::kNearestEven ||
                       conversion.rounding == Rounding::kNearestAway;
  if (!nearest || conversion.subnormals != Subnormals::kKeep) return std::nullopt;
  const Format& format = conversion.format;
  return std::ldexp(1.0, 1 - format.bias - format.mantissa_bits) / std::fabs(scale);
}

double AddChannels(const StepTables& step, size_t gradient, std::optional<double> quantum,
                   double of_tensor, ChannelHarm& harm) {
  const ChannelLoss loss = LossOfChannels(step, gradient, quantum.value_or(1));
  harm.channels = std::max({harm.channels, loss.channels, uint64_t{1}});
  if (!quantum) return 0;
  const bool one = loss.channels < 2;
  const double mean = one ? of_tensor : loss.mean();
  harm.mean.Add(mean);
  harm.worst = std::fmax(harm.worst, one ? of_tensor : loss.worst);
  return mean;
}

HarmOverTensors ChannelHarmOver(const CountedGradients::OfRole& counted, const Step& step,
                                double quantum) {
  HarmOverTensors over;
  for (const size_t t : counted.with_channels) {
    over.Add(t, LossOfChannels(step.tables(), t, quantum).mean());
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

}  // namespace dlsim::sim
