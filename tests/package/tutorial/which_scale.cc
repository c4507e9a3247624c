// SPDX-License-Identifier: Apache-2.0
// The second program of docs/library.md: what two loss scalers would have done to a trace, and what
// one tensor becomes in CB16.
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "dlsim/measure.h"
#include "dlsim/sim/replay.h"

void ReplayTrace(const std::string& path) {
  const std::vector<std::string> paths = {path};
  const std::vector<dlsim::sim::ReplayRun> runs = {dlsim::sim::MakeRun("cb16", "cerebras-2.10"),
                                                   dlsim::sim::MakeRun("fp16", "torch")};
  const dlsim::TraceReader trace = dlsim::TraceReader::Open(paths, {});
  const auto results = dlsim::sim::Replay(dlsim::sim::TraceSteps(trace), runs);
  for (size_t r = 0; r < runs.size(); ++r) {
    const dlsim::sim::ReplaySummary& summary = results[r].summary;
    std::printf("%s %s: %d of %d steps skipped, scale %g at the end\n", runs[r].format.c_str(),
                runs[r].policy.c_str(), static_cast<int>(summary.skipped_steps),
                static_cast<int>(summary.steps), summary.final_scale);
  }
}

void ConvertTensor() {
  const std::vector<float> gradients = {1.0f, -0.5f, 0x1p-60f, 1e10f};
  std::vector<uint16_t> codes(gradients.size());
  dlsim::EncodeArray({{dlsim::kCb16}}, gradients, std::span<uint16_t>(codes));
  const dlsim::TensorStats stats =
      dlsim::Measure(gradients, dlsim::ArrayConversion{{dlsim::kCb16}, 32768.0f});
  std::printf("1 is 0x%04X; at 2^15 %d values underflow, %d overflow\n", codes[0],
              static_cast<int>(stats.underflow), static_cast<int>(stats.overflow));
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "which_scale: expected a trace\n");
    return 2;
  }
  try {
    ReplayTrace(arguments[1]);
    ConvertTensor();
  } catch (const dlsim::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.kind());
  }
}
