// SPDX-License-Identifier: Apache-2.0
// Every question of the default ladder: the replay of a profile equals that of the trace. The
// environment variable DLSIM_ORACLE_TRACES may name another directory of traces.
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "tests/support/profiled_trace.h"
#include "tests/support/small_replay.h"
#include "tests/support/test_traces.h"

namespace dlsim::sim {
namespace {

std::vector<std::string> TracesToReplay() {
  const char* other = std::getenv("DLSIM_ORACLE_TRACES");
  const std::string directory = other == nullptr || *other == '\0' ? kTraces : other;
  std::vector<std::string> traces;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_directory()) traces.push_back(entry.path().string());
  }
  std::sort(traces.begin(), traces.end());
  return traces;
}

// One format in one mode at all scales.
void CompareAtAllScales(const TraceReader& trace, const Conversion& conversion) {
  std::vector<ReplayRun> runs;
  for (const float scale : DefaultLadder().scales) {
    runs.push_back(StaticRun(conversion.format, scale, {.finite_test = FiniteTest::kGlobalNorm}));
    runs.back().conversion = conversion;
  }
  const Compared compared = CompareReplays(trace, runs);
  EXPECT_EQ(compared.inexact, 0u);
  EXPECT_EQ(compared.uncertain, 0u);
}

TEST(ProfileReplaySweep, EveryQuestionOfTheLadderIsAnsweredAsByTheTrace) {
  const Ladder ladder = DefaultLadder();
  size_t questions = 0;
  for (const std::string& path : TracesToReplay()) {
    SCOPED_TRACE(path);
    const TraceReader trace = OpenTrace({path});
    for (const NamedFormat& format : ladder.formats) {
      for (const Rounding rounding : ladder.roundings) {
        for (const Subnormals subnormals : ladder.subnormals) {
          for (const Overflow overflow : {Overflow::kInfinity, Overflow::kSaturate}) {
            CompareAtAllScales(trace, {format.format, rounding, overflow, subnormals});
            questions += ladder.scales.size();
            ASSERT_FALSE(HasFailure()) << format.name;
          }
        }
      }
    }
    std::cout << path << ": " << questions << " questions so far\n";
  }
}

}  // namespace
}  // namespace dlsim::sim
