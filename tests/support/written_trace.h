// SPDX-License-Identifier: Apache-2.0
// A trace of many small steps in a directory of its own, and its profile, for tests of dlsim
// profile.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/trace_builder.h"

namespace dlsim {

class WrittenTrace {
 public:
  explicit WrittenTrace(int steps, int tensors = 4, size_t values = 200)
      : tensors_(tensors), values_(values) {
    for (int step = 0; step < steps; ++step) WriteStep(step);
  }

  // Gradients over many binades; the same for one seed.
  void WriteStep(int step, uint32_t seed = 1) {
    std::mt19937 random(seed * 10'000 + static_cast<uint32_t>(step));
    std::vector<BuiltTensor> tensors;
    for (int t = 0; t < tensors_; ++t) {
      std::vector<float> values(values_);
      for (float& value : values) {
        const int exponent = static_cast<int>(random() % 40) - 36;
        value = std::ldexp(static_cast<float>(random() % 2001) / 1000 - 1, exponent);
      }
      tensors.push_back(FloatTensor("w" + std::to_string(t) + ".grad", values));
    }
    dir_.Write(StepName(step), BuildSafetensors(tensors));
  }

  void WriteBytes(int step, const std::string& bytes) { dir_.Write(StepName(step), bytes); }

  // Damages the values of a step: the file has the size and the time that it had.
  void CorruptAt(int step, size_t offset) {
    const std::string file = StepPath(step);
    const std::filesystem::file_time_type time = std::filesystem::last_write_time(file);
    std::string bytes = ReadBytes(file);
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), 400, '?');
    dir_.Write(StepName(step), bytes);
    std::filesystem::last_write_time(file, time);
  }

  // The same where no sample is taken: of a file of 640 KB, between the first two samples.
  void CorruptUnnoticed(int step) { CorruptAt(step, 70'000); }

  void Touch(int step) {
    std::filesystem::last_write_time(
        StepPath(step), std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  }

  void Remove(int step) { std::filesystem::remove(StepPath(step)); }

  std::string path() const { return dir_.path(); }
  static std::string StepName(int step) { return "step-" + std::to_string(step) + ".safetensors"; }
  std::string StepPath(int step) const { return dir_.path() + "/" + StepName(step); }

 private:
  int tensors_;
  size_t values_;
  TempDir dir_;
};

inline Arguments ProfileArguments(const std::string& trace, const std::string& output,
                                  const Arguments& more = {}) {
  Arguments arguments = {"profile", trace, "-o", output};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Returns the files of a profile, by name.
inline std::map<std::string, std::string> FilesOfProfile(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename()] = ReadBytes(entry.path());
  }
  return files;
}

// Profiles without a remark and returns the files of the profile.
inline std::map<std::string, std::string> ProfileBytes(const std::string& trace,
                                                       const Arguments& more = {}) {
  const TempDir dir;
  const std::string output = dir.path() + "/whole";
  Succeed(ProfileArguments(trace, output, more));
  return FilesOfProfile(output);
}

}  // namespace dlsim
