// SPDX-License-Identifier: Apache-2.0
// A profile: what a trace's tensors look like between the edges of a ladder, step by step. It
// answers what a replay of the trace would find, and is a small part of the trace's size.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/channels.h"
#include "dlsim/histogram.h"
#include "dlsim/ladder.h"
#include "dlsim/measure_step.h"
#include "dlsim/scaled_codec.h"
#include "dlsim/trace.h"

namespace dlsim {

struct ProfileTensor {
  std::string name;
  Role role = Role::kGrad;
  DType dtype = DType::kF32;  // as recorded first
  std::vector<uint64_t> shape;

  friend bool operator==(const ProfileTensor&, const ProfileTensor&) = default;
};

// A file that a step was read from.
struct ProfileFile {
  std::string name;  // without directories
  uint64_t bytes = 0;
  uint64_t content = 0;  // a hash of what it held (docs/profile-format.md); 0 = not known

  friend bool operator==(const ProfileFile&, const ProfileFile&) = default;
};

// One step of a trace. A part is a micro-step, or the whole step without any.
struct ProfileStep {
  int64_t step = 0;
  std::vector<int64_t> micro_steps;                  // of each part; -1: the step has none
  std::map<std::string, std::string> metadata;       // of the first recording
  std::vector<ProfileFile> files;                    // in the order of the recordings
  std::vector<ProfileTensor> tensors;                // in file order; ProfileOf's gradients first
  std::vector<std::vector<Histogram>> histograms;    // [part][tensor]
  std::vector<ChannelCurves> channels = {};          // by tensor; empty: of none
  std::vector<std::vector<ScaledLoss>> scaled = {};  // [format of the settings][tensor]

  friend bool operator==(const ProfileStep&, const ProfileStep&) = default;
};

// One step summed over gradients: all that most policies ask for.
struct ProfileTotals {
  int64_t step = 0;
  std::vector<Histogram> gradients;    // per part, over parameter gradients
  std::vector<Histogram> activations;  // per part, over activation gradients
};

// Which steps of a trace a shard was made from, counted from 0 in the order of the trace.
struct ProfilePart {
  struct Range {
    uint64_t first = 0, count = 0;

    friend bool operator==(const Range&, const Range&) = default;
  };

  uint64_t steps = 0;         // of the whole trace
  std::vector<Range> ranges;  // ascending, with steps between them that are not there

  friend bool operator==(const ProfilePart&, const ProfilePart&) = default;
};

// What shaped the values of a profile; profiles of one trace merge only if these are equal, but for
// the part, which says what is missing.
struct ProfileSettings {
  Ladder ladder;
  std::vector<NamedScaledFormat> scaled = {};  // without delayed scaling
  std::string tensors = "*";                   // as TraceOptions::tensors
  Accumulation accumulation = Accumulation::kQuantizeThenSum;
  int64_t accumulate_steps = 1;                    // as ReplayOptions::accumulate_steps
  std::map<std::string, std::string> description;  // of the trace
  std::optional<ProfilePart> part = std::nullopt;  // nothing: the whole, or not known
};

// Profiles a step of a trace on all threads. Throws Error if reading fails.
ProfileStep ProfileOf(const TraceStep& step, const HistogramEdges& edges,
                      const StepOptions& options);

// Returns the tensors of a step in the order of ProfileStep::tensors.
std::vector<ProfileTensor> DescribeTensors(const TraceStep& step);

// Returns the totals of a step; of a trace's, those of its profile, without its forward pass being
// read.
ProfileTotals TotalsOf(const ProfileStep& step);
ProfileTotals TotalsOf(const TraceStep& step, const HistogramEdges& edges,
                       const StepOptions& options);

}  // namespace dlsim
