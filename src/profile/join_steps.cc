// SPDX-License-Identifier: Apache-2.0
#include "src/profile/join_steps.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile_file.h"

namespace dlsim {

void AddMicroStep(ProfileStep part, ProfileStep& step) {
  std::vector<Histogram> of_part(step.tensors.size());
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
    }
    of_part[i] = std::move(part.histograms.front()[t]);
  }
  step.histograms.push_back(std::move(of_part));
  step.micro_steps.push_back(part.micro_steps.front());
  step.files.insert(step.files.end(), part.files.begin(), part.files.end());
}

void AddShard(const std::string& place, ProfileStep other, ProfileStep& step) {
  if (other.step != step.step || other.micro_steps != step.micro_steps) {
    throw InputError(place, "other steps than in the first profile", std::to_string(step.step),
                     std::to_string(other.step));
  }
  for (const ProfileTensor& tensor : other.tensors) {
    const bool taken = std::ranges::any_of(
        step.tensors, [&](const ProfileTensor& known) { return known.name == tensor.name; });
    if (taken) throw InputError(place, "tensor " + Quoted(tensor.name) + " is in two profiles");
    step.tensors.push_back(tensor);
  }
  for (size_t part = 0; part < step.histograms.size(); ++part) {
    std::ranges::move(other.histograms[part], std::back_inserter(step.histograms[part]));
  }
  step.files.insert(step.files.end(), other.files.begin(), other.files.end());
}

void JoinProfiles(std::span<const std::string> paths, const std::string& output) {
  std::vector<ProfileReader> readers;
  for (const std::string& path : paths) {
    readers.push_back(ProfileReader::Open(std::array<std::string, 1>{path}));
    const size_t steps = readers.back().step_count(), expected = readers.front().step_count();
    if (steps != expected) {
      throw InputError(Printable(path), "another number of steps than in the first profile",
                       std::to_string(expected), std::to_string(steps));
    }
    if (readers.back().edges() != readers.front().edges()) {
      throw InputError(Printable(path), "answers other questions than the first profile");
    }
  }
  if (readers.empty()) throw UsageError("paths", "no profile to join", "one or more");
  const ProfileReader& first = readers.front();
  ProfileWriter writer(output, first.settings(), first.edges(), ProfileWriter::Existing::kReplace);
  writer.Truncate(0);
  for (size_t i = 0; i < first.step_count(); ++i) {
    ProfileStep step = first.Load(i);
    for (size_t r = 1; r < readers.size(); ++r) {
      AddShard(Printable(paths[r]), readers[r].Load(i), step);
    }
    writer.Append(EncodeStep(step, first.edges()));
  }
  writer.Commit();
}

}  // namespace dlsim
