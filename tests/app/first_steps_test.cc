// SPDX-License-Identifier: Apache-2.0
// Options of resources change no result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

// A tensor is so large that several threads have work.
TEST(FirstSteps, TheNumberOfThreadsIsNotSeen) {
  const TempDir dir;
  std::vector<float> values(1'000'001);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i)) * std::ldexp(1.0f, static_cast<int>(i % 40) - 30);
  }
  dir.Write("step-1.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
  std::ranges::reverse(values);
  dir.Write("step-2.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
  const std::string& trace = dir.path();
  for (const Arguments& command : {Arguments{"replay", trace, "--policy", "torch", "--json", "-"},
                                   {"tune", trace, "--json", "-"},
                                   {"sweep", trace, "--json", "-"},
                                   {"diff", trace, trace, "--json", "-"},
                                   {"replay", trace, "--summaries", "-"}}) {
    const auto with = [&](const std::string& threads) {
      Arguments arguments = command;
      arguments.insert(arguments.end(), {"--threads", threads});
      return Succeed(arguments);
    };
    const std::string one = with("1");
    EXPECT_EQ(Succeed(command), one) << command[0];
    EXPECT_EQ(with("3"), one) << command[0];
    EXPECT_EQ(with("64"), one) << command[0];
  }
  for (const char* const command : {"replay", "tune", "sweep"}) {
    const Arguments asked = {command, trace, "--json", "-"};
    Arguments little = asked;
    little.insert(little.end(), {"--memory", "1"});
    EXPECT_EQ(Succeed(little), Succeed(asked)) << command;
  }
  ExpectFailure({"replay", trace, "--memory", "0"}, 2, {"--memory: too small", "1 or more"});
  ExpectFailure({"tune", trace, "--memory", "2^31"}, 2, {"--memory: too large", "1073741824 MiB"});
  ExpectFailure({"replay", trace, "--threads", "0"}, 2, {"--threads: too small", "1 or more"});
  ExpectFailure({"replay", trace, "--threads", "-2"}, 2, {"--threads: too small", "'-2'"});
  ExpectFailure({"replay", trace, "--threads", "5000"}, 2, {"--threads: too large", "4096"});
  ExpectFailure({"replay", trace, "--threads", "all"}, 2, {"--threads: not a number", "'all'"});
}

}  // namespace
}  // namespace dlsim
