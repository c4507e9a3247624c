// SPDX-License-Identifier: Apache-2.0
// The inputs of emulated sums for several options at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "dlsim/accumulate.h"

namespace dlsim {

// The inputs of each of several options, rounded once for those that round alike.
class InputSets {
 public:
  InputSets(std::span<const float> values, std::span<const AccumulationOptions> options,
            uint32_t stream) {
    for (const AccumulationOptions& o : options) {
      const RandomStream random = {o.random.seed, o.random.stream + stream};
      const auto same = std::ranges::find_if(sets_, [&](const Set& set) {
        return set.precision == o.inputs && set.random.seed == random.seed &&
               set.random.stream == random.stream;
      });
      if (same != sets_.end()) {
        of_option_.push_back(same->values);
      } else if (o.inputs.kind != Precision::Kind::kFormat) {
        of_option_.push_back(values);
      } else {
        Set& set = sets_.emplace_back();
        set = {o.inputs, random, RoundInputs(values, o.inputs, random), {}};
        set.values = set.rounded;
        of_option_.push_back(set.values);
      }
    }
  }

  // The inputs of the o-th options.
  std::span<const float> Of(size_t o) const { return of_option_[o]; }

 private:
  struct Set {
    Precision precision;
    RandomStream random;
    std::vector<float> rounded;
    std::span<const float> values;
  };
  std::list<Set> sets_;  // spans into them must stay
  std::vector<std::span<const float>> of_option_;
};

}  // namespace dlsim
