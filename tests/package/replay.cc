// SPDX-License-Identifier: Apache-2.0
// Replays a trace under two policies, sweeps one of them and tunes, the way a user would.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/sim/replay.h"
#include "dlsim/sim/sweep.h"
#include "dlsim/sim/tune.h"

namespace {

// Of cerebras on fp16 (tests/data/traces/cnn-digits.oracle-dls.json).
constexpr uint64_t kSkipped = 35;
constexpr double kFinalScale = 58207.66015625;

// Returns whether the first run skips and ends as the oracle of this trace has it, the second
// never skips, and the sweep agrees.
bool Check(const std::string& path) {
  const std::vector<std::string> paths = {path};
  const dlsim::TraceReader reader = dlsim::TraceReader::Open(paths, {});
  const dlsim::sim::StepSource trace = dlsim::sim::TraceSteps(reader);
  const std::vector<std::string> settings = {"loss_scale=2^15"};
  const std::vector<dlsim::sim::ReplayRun> runs = {dlsim::sim::MakeRun("fp16", "cerebras"),
                                                   dlsim::sim::MakeRun("fp16", "static", settings)};
  const std::vector<dlsim::sim::ReplayResult> results = dlsim::sim::Replay(trace, runs);
  for (size_t r = 0; r < runs.size(); ++r) {
    const dlsim::sim::ReplaySummary& summary = results[r].summary;
    std::printf("%s: %llu of %llu steps skipped, scale %g at the end\n", runs[r].policy.c_str(),
                static_cast<unsigned long long>(summary.skipped_steps),
                static_cast<unsigned long long>(summary.steps), summary.final_scale);
  }
  const std::vector<dlsim::sim::SweepOutcome> swept = dlsim::sim::Sweep(trace, runs).outcomes;
  dlsim::sim::TuneRequest request;
  request.formats = {"fp16"};
  const dlsim::sim::TuneResult tuned =
      dlsim::sim::Tune(trace, request, dlsim::sim::AdviseOn(trace, request));
  const dlsim::sim::ReplaySummary& first = results[0].summary;
  return first.steps == 45 && first.skipped_steps == kSkipped && first.final_scale == kFinalScale &&
         results[1].summary.skipped_steps == 0 && swept[0].skipped_steps == first.skipped_steps &&
         tuned.formats.front().steps == first.steps;
}

}  // namespace

int main(int, char** arguments) {
  try {
    const bool right = Check(arguments[1]);
    std::puts(right ? "dlsim: replay works" : "dlsim: replay is broken");
    return right ? 0 : 1;
  } catch (const dlsim::Error& error) {
    std::puts(error.what());
    return static_cast<int>(error.kind());
  }
}
