// SPDX-License-Identifier: Apache-2.0
// Profiles of the recorded traces, for tests of their files.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dlsim/profile_file.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_test_util.h"

namespace dlsim {

inline ProfileSettings SettingsOf(const Ladder& ladder) {
  ProfileSettings settings;
  settings.ladder = ladder;
  settings.description = {{"model", "a test"}};
  return settings;
}

// Few questions, so that files are small.
inline Ladder SmallLadder() {
  return {{ParseFormat("fp16")}, {Rounding::kNearestEven}, {Subnormals::kKeep}, {1.0f, 1024.0f}};
}

inline std::vector<ProfileStep> StepsOf(const std::string& trace, const HistogramEdges& edges) {
  const TraceReader reader = OpenTrace({trace});
  std::vector<ProfileStep> steps;
  for (size_t i = 0; i < reader.step_count(); ++i) {
    steps.push_back(ProfileOf(reader.Load(i), edges, {}));
  }
  return steps;
}

// Keeps the first tensors of each step, so that files are small.
inline std::vector<ProfileStep> FewTensors(std::vector<ProfileStep> steps) {
  for (ProfileStep& step : steps) {
    step.tensors.resize(3);
    step.channels.resize(3);
    for (std::vector<Histogram>& part : step.histograms) part.resize(3);
  }
  return steps;
}

inline std::vector<EncodedStep> Encode(const std::vector<ProfileStep>& steps,
                                       const HistogramEdges& edges) {
  std::vector<EncodedStep> encoded;
  for (const ProfileStep& step : steps) encoded.push_back(EncodeStep(step, edges));
  return encoded;
}

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteProfile(const std::string& path, const ProfileSettings& settings,
                         const std::vector<EncodedStep>& steps) {
  ProfileWriter writer(path, settings, ProfileWriter::Existing::kReplace);
  writer.Truncate(0);
  for (const EncodedStep& step : steps) writer.Append(step);
  writer.Commit();
}

inline ProfileReader OpenProfile(const std::vector<std::string>& paths) {
  return ProfileReader::Open(paths);
}

// Reads all that a profile holds.
inline void ReadWholeProfile(const std::vector<std::string>& paths) {
  const ProfileReader reader = OpenProfile(paths);
  for (size_t i = 0; i < reader.step_count(); ++i) {
    reader.LoadTotals(i);
    reader.Load(i);
  }
}

}  // namespace dlsim
