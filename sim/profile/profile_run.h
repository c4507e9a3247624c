// SPDX-License-Identifier: Apache-2.0
// Profiles a trace step by step into one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/profile_file.h"
#include "dlsim/trace.h"
#include "sim/profile/finished_steps.h"

namespace dlsim::sim {

// What becomes of what an interrupted run left.
enum class Unfinished : uint8_t {
  kResume,
  kDiscard,
};

struct ProfileRequest {
  std::string output;
  ProfileSettings settings;
  ProfileWriter::Existing existing = ProfileWriter::Existing::kReplace;
  Unfinished unfinished = Unfinished::kResume;
  uint64_t shard = 0, shards = 1;  // shard `shard`, counted from 0, of `shards`
  StepOptions step;                // but for what the settings say
};

// The steps of a trace that a profile is to hold.
class ProfileRun {
 public:
  // Both must live as long as this. Throws Error.
  ProfileRun(const TraceReader& trace, const ProfileRequest& request);

  // Opens the file and decides which steps to read. Throws Error.
  void Open();

  // Profiles them, writing each, then the file itself. Throws Error. Calls `on_step` after each
  // step with the number of those written.
  void Write(const std::function<void(size_t)>& on_step);

  // True if an unfinished profile with other settings was replaced.
  bool replaced() const { return writer_ != nullptr && writer_->replaced_partial(); }

  size_t kept() const { return resumption_.kept; }
  size_t finished() const { return finished_; }  // by an earlier run, kept or not
  size_t to_read() const { return resumption_.remaining.end - resumption_.remaining.begin; }

 private:
  const TraceReader& trace_;
  const ProfileRequest& request_;
  HistogramEdges edges_;
  Resumption resumption_;
  size_t finished_ = 0;
  std::unique_ptr<ProfileWriter> writer_;
};

}  // namespace dlsim::sim
