// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/tensor_update.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "dlsim/convert.h"

namespace dlsim::sim {
namespace {

// Elements that are updated together: in the first-level cache, and whole blocks of random bits.
constexpr size_t kPart = 1024;
using Part = std::array<float, kPart>;

template <class Code>
void EncodeAndDecode(const ArrayConversion& how, std::span<float> values) {
  std::array<Code, kPart> buffer;
  const std::span<Code> codes = std::span(buffer).first(values.size());
  EncodeArray(how, values, codes);
  DecodeArray(how.conversion.format, std::span<const Code>(codes), values);
}

// Rounds at most kPart values.
void Round(const ArrayConversion& how, std::span<float> values) {
  if (CodeBits(how.conversion.format) <= 16) return EncodeAndDecode<uint16_t>(how, values);
  EncodeAndDecode<uint32_t>(how, values);
}

void RoundNearest(const StoredFormat& format, std::span<float> values) {
  ArrayConversion how;
  if (!format) return;
  how.conversion.format = format->format;
  Round(how, values);
}

// Up or down by chance; `first` is the index of the first one in the stream.
void RoundByChance(const StoredFormat& format, const RandomStream& random, size_t first,
                   std::span<float> values) {
  ArrayConversion how;
  if (!format) return;
  how.conversion = {format->format, Rounding::kStochastic};
  how.random = random;
  how.first_index = first;
  Round(how, values);
}

// Distance from 1 to the next value.
double EpsilonOf(const StoredFormat& format) {
  return std::ldexp(1, -(format ? format->format.mantissa_bits : 23));
}

// One update of one tensor, part by part.
class TensorUpdate {
 public:
  TensorUpdate(const UpdateRun& run, const TensorStep& step, TensorState& state)
      : run_(run),
        step_(step),
        state_(state),
        computed_(run.kernel == UpdateKernel::kFused ? StoredFormat() : run.updated_weights()),
        factors_(MakeUpdateFactors(step.settings,
                                   {computed_, step.update, step.has_first, EpsilonOf(run.weights),
                                    run.kernel == UpdateKernel::kFused})) {
    if (step.settings.amsgrad) state.max_second.resize(state.weights.size());
  }

  void Update() {
    if (auto* factors = std::get_if<AdafactorFactors>(&factors_)) SetStep(*factors);
    ForEachPart([&](size_t begin, const UpdateArrays& arrays) {
      UpdateElements(factors_, computed_, arrays);
      MovedWeights moved;
      if (run_.kernel == UpdateKernel::kFused) {
        RoundMoments(begin, arrays.count);
        if (!state_.compensation.empty())
          moved = Compensate(begin, arrays.count);
        else
          RoundWeights(begin, arrays.count);
      }
      moved.before = arrays.before;
      moved.after = arrays.after;
      moved.steps = arrays.steps;
      moved.count = arrays.count;
      state_.counts += CountUpdates(WantedBy(factors_), moved);
      std::copy_n(arrays.after, arrays.count, &state_.weights[begin]);
    });
  }

 private:
  template <class Body>
  void ForEachPart(const Body& body) {
    const size_t count = step_.gradients.size();
    for (size_t begin = 0; begin < count; begin += kPart) {
      body(begin, ArraysOf(begin, std::min(kPart, count - begin)));
    }
  }

  UpdateArrays ArraysOf(size_t begin, size_t count) {
    UpdateArrays arrays;
    arrays.gradients = &step_.gradients[begin];
    if (run_.gradients) {
      std::copy_n(arrays.gradients, count, gradients_.begin());
      RoundNearest(run_.gradients, std::span(gradients_).first(count));
      arrays.gradients = gradients_.data();
    }
    arrays.before = &state_.weights[begin];
    arrays.after = after_.data();
    arrays.steps = steps_.data();
    arrays.first = &state_.first[begin];
    arrays.second = &state_.second[begin];
    if (step_.settings.amsgrad) arrays.max_second = &state_.max_second[begin];
    arrays.count = count;
    return arrays;
  }

  void SetStep(AdafactorFactors& factors) {
    std::vector<float> updates;
    ForEachPart([&](size_t, const UpdateArrays& arrays) {
      FindAdafactorUpdates(factors, computed_, arrays);
      updates.insert(updates.end(), arrays.steps, arrays.steps + arrays.count);
    });
    factors.step = AdafactorStep(step_.settings, computed_, step_.update, state_.weights, updates);
  }

  // What a kernel that computes in float32 stores.
  void RoundMoments(size_t begin, size_t count) {
    const OptimizerSettings& s = step_.settings;
    const auto part = [&](std::vector<float>& values) {
      return std::span(values).subspan(begin, count);
    };
    if (s.has_first_moment()) RoundNearest(run_.first, part(state_.first));
    if (s.has_second_moment()) RoundNearest(run_.second, part(state_.second));
    if (s.amsgrad) RoundNearest(run_.second, part(state_.max_second));
  }

  void RoundWeights(size_t begin, size_t count) {
    const std::span<float> weights = std::span(after_).first(count);
    if (run_.rounding == WeightRounding::kStochastic) {
      RoundByChance(weights_, step_.random, begin, weights);
    } else {
      RoundNearest(weights_, weights);
    }
  }

  // Adds the change to what earlier ones left, that to the weight, and keeps what it did not take.
  MovedWeights Compensate(size_t begin, size_t count) {
    const float* const before = &state_.weights[begin];
    float* const owing = &state_.compensation[begin];
    std::copy_n(owing, count, owed_.begin());
    const auto round = [&](float* values) { RoundNearest(weights_, std::span(values, count)); };
    float* const change = change_.data();
    for (size_t i = 0; i < count; ++i) change[i] = owed_[i] + (after_[i] - before[i]);
    round(change);
    for (size_t i = 0; i < count; ++i) after_[i] = before[i] + change[i];
    round(after_.data());
    for (size_t i = 0; i < count; ++i) owing[i] = before[i] - after_[i];
    round(owing);
    for (size_t i = 0; i < count; ++i) owing[i] = change[i] + owing[i];
    round(owing);
    MovedWeights moved;
    moved.owed = owed_.data();
    moved.owing = owing;
    return moved;
  }

  const UpdateRun& run_;
  const TensorStep& step_;
  TensorState& state_;
  StoredFormat computed_;  // in which the optimizer computes
  StoredFormat weights_ = run_.updated_weights();
  UpdateFactors factors_;
  Part gradients_, after_, steps_, owed_, change_;
};

}  // namespace

void UpdateTensor(const UpdateRun& run, const TensorStep& step, TensorState& state) {
  TensorUpdate(run, step, state).Update();
}

}  // namespace dlsim::sim
