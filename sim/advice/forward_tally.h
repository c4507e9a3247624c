// SPDX-License-Identifier: Apache-2.0
// Gathers, step by step, whether forward tensors fit a format, and reads what the recorder has
// found by running steps again in formats. What is kept does not grow with the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "dlsim/codec.h"
#include "dlsim/sim/advice.h"
#include "dlsim/sim/step.h"
#include "sim/base/named_list.h"

namespace dlsim::sim {

// Returns how many binades lie between a magnitude and the largest finite value of the format:
// negative if the magnitude overflows, not negative if it fits, infinite for 0.
double ForwardHeadroom(const Conversion& conversion, float absmax);

// Forward tensors of a step: those that autocast keeps in float32, and those that may vanish.
struct ListedTensors {
  std::set<std::string> float32, slight;
};

// Returns those of a step; `inputs` are of its gradients, see Step::Inputs.
ListedTensors ListedIn(const Step& step, std::span<const TensorStats> inputs);

// The forward tensors of one conversion.
class ForwardTally {
 public:
  ForwardTally(const Conversion& conversion, Recipe recipe);

  // Takes over a step, its forward tensors at scale 1.
  void Add(const Step& step, const ListedTensors& listed);

  // Returns what is to be said of Role::kAct or of Role::kValue.
  ForwardVerdict VerdictOn(Role role) const;

 private:
  struct OfRole {
    NamedList<ForwardTensor> tensors;
    std::set<std::string> kept_in_float32;
    size_t steps = 0;
  };

  void CountLargest(const Step& step, size_t place, const TensorStats& total,
                    ForwardTensor& tensor) const;

  Conversion conversion_;
  Recipe recipe_;
  float largest_that_fits_;
  OfRole outputs_, values_;
};

// Returns what the text under kShadowKey (docs/traces.md) says of a format; nothing from an empty
// text, of a format that was not run, and of other conversions than autocast's: rounding to nearest
// with subnormals and infinity. Throws InputError for a damaged text.
std::optional<Shadow> ShadowIn(std::string_view text, const std::string& format,
                               const Conversion& conversion);

// Returns why the recorder could run no step, if the text says that.
std::string WhyNotRun(std::string_view text);

}  // namespace dlsim::sim
