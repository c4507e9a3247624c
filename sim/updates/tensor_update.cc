// SPDX-License-Identifier: Apache-2.0
#include "sim/updates/tensor_update.h"

#include <cmath>

namespace dlsim::sim {
namespace {

// A format at run time, or float32.
class Stored {
 public:
  explicit Stored(const StoredFormat& format) {
    if (format) spec_ = MakeCodecSpec({format->format});
  }

  float operator()(float value) const { return spec_ ? NearestIn(*spec_, value) : value; }

  // Up or down by chance.
  float Stochastic(float value, uint32_t random) const {
    if (!spec_) return value;
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t code = EncodeWith<Rounding::kStochastic>(*spec_, bits, random).code;
    return std::bit_cast<float>(Decode(*spec_, code));
  }

 private:
  std::optional<CodecSpec> spec_;
};

// After a kernel whose operations round; returns by how much the weight moved.
struct AsComputed {
  double operator()(size_t /*index*/, const UpdatedElement& before, UpdatedElement& after) const {
    return double{after.weight} - double{before.weight};
  }
};

// After a kernel that computes in float32.
class RoundedOnce {
 public:
  RoundedOnce(const UpdateRun& run, const RandomStream& random, std::vector<float>& compensation)
      : weights_(run.updated_weights()),
        first_(run.first),
        second_(run.second),
        stochastic_(run.rounding == WeightRounding::kStochastic),
        random_(random),
        compensation_(compensation) {}

  double operator()(size_t index, const UpdatedElement& before, UpdatedElement& after) const {
    after.first = first_(after.first);
    after.second = second_(after.second);
    after.max_second = second_(after.max_second);
    if (!compensation_.empty()) return Compensate(index, before.weight, after.weight);
    after.weight = stochastic_ ? weights_.Stochastic(after.weight, RandomBits(random_, index))
                               : weights_(after.weight);
    return double{after.weight} - double{before.weight};
  }

 private:
  // Adds the change to what earlier ones left, that to the weight, and keeps what it did not take.
  double Compensate(size_t index, float before, float& weight) const {
    const float owed = compensation_[index];
    const float change = weights_(owed + (weight - before));
    weight = weights_(before + change);
    compensation_[index] = weights_(change + weights_(before - weight));
    return (double{weight} - double{before}) + (double{compensation_[index]} - double{owed});
  }

  Stored weights_, first_, second_;
  bool stochastic_;
  RandomStream random_;
  std::vector<float>& compensation_;
};

template <class Optimizer, class Store>
void UpdateAll(const Optimizer& optimizer, const Store& store, std::span<const float> gradients,
               TensorState& state) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    const UpdatedElement before = state.elements[i];
    UpdatedElement after = before;
    const double wanted = optimizer(gradients[i], after);
    state.counts.Count(wanted, store(i, before, after));
    state.elements[i] = after;
  }
}

// Distance from 1 to the next value.
double EpsilonOf(const StoredFormat& format) {
  return std::ldexp(1, -(format ? format->format.mantissa_bits : 23));
}

template <class Keep, class Store>
void UpdateWith(const Keep& keep, const Store& store, double epsilon, const TensorStep& step,
                std::span<const float> gradients, TensorState& state) {
  const OptimizerSettings& s = step.settings;
  switch (s.kind) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return UpdateAll(AdamUpdate<Keep>(keep, s, step.update), store, gradients, state);
    case OptimizerKind::kSgd:
      return UpdateAll(SgdUpdate<Keep>(keep, s, step.has_first), store, gradients, state);
    case OptimizerKind::kLion:
      return UpdateAll(LionUpdate<Keep>(keep, s), store, gradients, state);
    case OptimizerKind::kAdafactor:
      AdafactorUpdate<Keep> optimizer(keep, s, step.update, epsilon);
      optimizer.Prepare(gradients, state.elements);
      return UpdateAll(optimizer, store, gradients, state);
  }
}

}  // namespace

void UpdateCounts::Count(double wanted, double moved) {
  if (wanted == 0 || !std::isfinite(wanted)) return;
  ++updates;
  if (moved == 0) {
    ++lost;
  } else if (!(std::fabs(moved - wanted) <= 0.5 * std::fabs(wanted))) {
    ++altered;
  }
}

float StoredIn(const StoredFormat& format, float value) { return Stored(format)(value); }

void UpdateTensor(const UpdateRun& run, const TensorStep& step, TensorState& state) {
  std::span<const float> gradients = step.gradients;
  std::vector<float> rounded;
  if (run.gradients) {
    const Stored stored(run.gradients);
    rounded.assign(gradients.begin(), gradients.end());
    for (float& gradient : rounded) gradient = stored(gradient);
    gradients = rounded;
  }
  const double epsilon = EpsilonOf(run.weights);
  const auto update = [&](const auto& keep, const auto& store) {
    UpdateWith(keep, store, epsilon, step, gradients, state);
  };
  const StoredFormat& weights = run.weights;
  if (run.kernel == UpdateKernel::kFused) {
    update(KeepFloat32(), RoundedOnce(run, step.random, state.compensation));
  } else if (!run.updated_weights()) {
    update(KeepFloat32(), AsComputed());
  } else if (weights->format == kBf16) {
    update(KeepBf16(), AsComputed());
  } else if (weights->format == kFp16) {
    update(KeepFp16(), AsComputed());
  } else {
    update(KeepFormat{MakeCodecSpec({weights->format})}, AsComputed());
  }
}

}  // namespace dlsim::sim
