// SPDX-License-Identifier: Apache-2.0
// How much a step's tensors lose, each of its own: the harm of docs/numerics.md over tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dlsim/measure_step.h"
#include "dlsim/sim/replay.h"
#include "dlsim/sim/step.h"
#include "dlsim/step_tables.h"
#include "sim/base/named_list.h"

namespace dlsim::sim {

// Tells which tensors of a step have a gradient that is nothing but the rounding error of float32,
// as that of a bias before a normalization, whose true gradient is zero: its norm is below 2^-12 of
// that of the gradient of the layer's output, from which it is summed up. Where that was not
// recorded, its root mean square is below 2^-18 of that of another parameter of the layer. Such an
// error varies from step to step: up to 2^3 times as much is noise, too, where the tensor was noise
// at most of the steps that were seen. Others are named by the recording, at some steps: they are
// noise from there on up to the next step with a forward pass.
//
// Where every parameter moves by its gradient at one rate, as with SGD, one whose gradient has a
// norm below 2^-12 of the largest of the step hardly moves: it counts as noise, and so do the
// outputs of a module that has only such.
class NoiseFinder {
 public:
  // Sees steps all over the run before the first, an eighth of them and at most eight.
  void Sample(const StepSource& source, const StepOptions& options);

  // For each gradient of the next step, whose inputs are those of Step::Inputs; steps that follow
  // each other mostly have the same gradients.
  std::vector<bool> Find(const Step& step, std::span<const TensorStats> inputs);

  // For each tensor of the latest step its place among all so far, in the order of their first
  // appearance; and these.
  std::span<const size_t> places() const { return tally_of_; }
  size_t tensor_count() const { return tallies_.items().size(); }
  const TensorRef& Tensor(size_t place) const { return tallies_.items()[place].name; }

 private:
  // The steps so far at which a tensor was not zero.
  struct Tally {
    TensorRef name;
    uint32_t noise = 0, steps = 0;
    bool mostly_noise() const { return 2 * uint64_t{noise} > steps; }
  };

  void FindSlight(TensorSpan tensors, std::span<const TensorStats> inputs,
                  std::vector<bool>& noise) const;

  std::vector<TensorRef> latest_;  // of the latest step, and by tensor:
  std::vector<size_t> layers_;
  size_t layer_count_ = 0;
  std::vector<size_t> tally_of_;  // by tensor
  NamedList<Tally> sampled_;      // of all tensors of steps that were seen before the first
  NamedList<Tally> tallies_;      // of all tensors so far
  std::set<std::string> named_;   // as noise, at the latest step with a forward pass
  bool descends_ = false;         // whether every parameter moves by its gradient at one rate
};

// The gradients of a step that are neither zero nor noise: their places, ascending.
struct CountedGradients {
  struct OfRole {
    std::vector<size_t> all, with_channels;  // the latter have several
  };

  CountedGradients(const Step& step, const std::vector<bool>& noise);

  const OfRole& Of(Role role) const { return role == Role::kGrad ? grads : act_grads; }

  OfRole grads, act_grads;
};

// Over some gradients of a step.
struct HarmOverTensors {
  double mean = 0, worst = 0;
  size_t tensors = 0;
  size_t worst_tensor = 0;  // index; unless there are no tensors

  // Adds a tensor; `mean` is the sum until all are there.
  void Add(size_t tensor, double harm) {
    if (tensors++ == 0 || harm > worst) {
      worst = harm;
      worst_tensor = tensor;
    }
    mean += harm;
  }
  void TakeMean() {
    if (tensors > 0) mean /= static_cast<double>(tensors);
  }
};

// Whether the calls of a module in a step, `cell.act_grad` and `cell.call1.act_grad`, are tensors
// of their own, or parts of one; so with the operations of a module that has calls.
enum class Calls { kApart, kTogether };

// `errors`: the sum of squared errors of each gradient of a step.
HarmOverTensors HarmOver(std::span<const size_t> counted, const Step& step,
                         std::span<const double> errors, Calls calls = Calls::kApart);

// The same of the answer to a question.
HarmOverTensors HarmOver(std::span<const size_t> counted, const StepAnswer& answer);

// Returns the share of its energy that a normal sample loses where values are rounded to multiples
// of one: `rms` is its root mean square.
double HarmOfNormal(double rms);

// What the channels of a tensor lose; see TensorTable::channels. Each is taken for a normal sample
// whose root mean square is a third of its largest magnitude.
struct ChannelLoss {
  uint64_t channels = 0;
  double sum = 0, worst = 0;

  double mean() const { return channels == 0 ? 0 : sum / static_cast<double>(channels); }
};

// Returns what those of a gradient lose, over its parts, where the smallest values of a format are
// `quantum` apart.
ChannelLoss LossOfChannels(const StepTables& step, size_t gradient, double quantum);

// Returns how far the smallest values of a conversion are apart at a scale, in terms of unscaled
// gradients; nothing where values are not rounded to the nearest of them.
std::optional<double> SmallestQuantum(const Conversion& conversion, double scale);

// Adds a step of a gradient that is not zero to what its channels lose over the steps, and returns
// their mean. Without a quantum they are only counted. `of_tensor`: the harm of the whole above the
// rounding floor, which is that of its only channel.
double AddChannels(const StepTables& step, size_t gradient, std::optional<double> quantum,
                   double of_tensor, ChannelHarm& harm);

// Over the channels of gradients that have several, each gradient at its mean; one channel is the
// gradient itself, of which more is known.
HarmOverTensors ChannelHarmOver(const CountedGradients::OfRole& counted, const Step& step,
                                double quantum);

// The mean harm over tensors from which on training suffers, above the format's rounding floor:
// docs/evidence.md has where they come from. Backward passes the gradients of activations through
// the format, and they decide; those of parameters sum over batch and tokens and lose less at the
// same scale, so that they need a smaller threshold where they are all that was recorded.
inline constexpr double kHarmThreshold = 0.013, kParametersOnlyHarmThreshold = 0.0007;

// The same of channels: features of activations, rows of parameters. Each sees what the other and
// whole tensors do not.
inline constexpr double kFeatureHarmThreshold = 0.06, kRowHarmThreshold = 0.02;

// Returns how many of a run's steps may be lost: training goes on after a spike, and is not set up
// for it.
inline size_t MostLost(size_t steps) { return std::max<size_t>(1, steps / 20); }

// Returns the mean harm over tensors up to which a conversion is safe for a step.
double HarmLimit(const Conversion& conversion, bool parameters_only);

// Returns the harm of rounding alone, which a format does at any scale: about 2^-2p/3 for
// significands of p bits to nearest, four times that otherwise.
double RoundingFloor(const Conversion& conversion);

// Returns harm less that floor, 0 to 1.
double AboveFloor(double harm, const Conversion& conversion);

}  // namespace dlsim::sim
