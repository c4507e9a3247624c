// SPDX-License-Identifier: Apache-2.0
#include "src/profile/join_steps.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"

namespace dlsim {

void AddMicroStep(ProfileStep part, ProfileStep& step) {
  std::vector<Histogram> of_part(step.tensors.size());
  const size_t formats = step.scaled.size();
  for (size_t t = 0; t < part.tensors.size(); ++t) {
    const auto same = [&](const ProfileTensor& tensor) {
      return tensor.name == part.tensors[t].name;
    };
    const auto found = std::ranges::find_if(step.tensors, same);
    const auto i = static_cast<size_t>(found - step.tensors.begin());
    if (found == step.tensors.end()) {
      step.tensors.push_back(part.tensors[t]);
      of_part.emplace_back();
      for (std::vector<Histogram>& others : step.histograms) others.emplace_back();
      for (std::vector<ScaledLoss>& losses : step.scaled) losses.emplace_back();
    }
    for (size_t f = 0; f < formats; ++f) step.scaled[f][i].Merge(part.scaled[f][t]);
    of_part[i] = std::move(part.histograms.front()[t]);
  }
  step.channels.clear();  // what micro-steps lose together is not known of each
  step.histograms.push_back(std::move(of_part));
  step.micro_steps.push_back(part.micro_steps.front());
  step.files.insert(step.files.end(), part.files.begin(), part.files.end());
}

void AddTensors(ProfileStep more, ProfileStep& step) {
  std::set<std::string_view> names;
  for (const ProfileTensor& tensor : step.tensors) names.insert(tensor.name);
  for (const ProfileTensor& tensor : more.tensors) {
    if (names.contains(tensor.name)) throw InputError(Quoted(tensor.name), "given twice");
  }
  if (!step.channels.empty() || !more.channels.empty()) {
    step.channels.resize(step.tensors.size());
    more.channels.resize(more.tensors.size());
    std::ranges::move(more.channels, std::back_inserter(step.channels));
  }
  for (size_t f = 0; f < step.scaled.size(); ++f) {
    std::ranges::move(more.scaled[f], std::back_inserter(step.scaled[f]));
  }
  std::ranges::move(more.tensors, std::back_inserter(step.tensors));
  std::ranges::move(more.histograms.front(), std::back_inserter(step.histograms.front()));
  step.files.front().bytes += more.files.front().bytes;
}

}  // namespace dlsim
