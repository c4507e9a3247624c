// SPDX-License-Identifier: Apache-2.0
// The plot of safe scales and of the policies' paths in it.
#include "sim/advice/advice.h"

#include <gtest/gtest.h>

#include <cmath>

namespace dlsim::sim {
namespace {

std::vector<StepWindow> Windows(size_t steps, int low, int high) {
  std::vector<StepWindow> windows(steps);
  for (size_t i = 0; i < steps; ++i) {
    windows[i].step = static_cast<int64_t>(i);
    windows[i].low = low;
    windows[i].high = high;
  }
  return windows;
}

std::vector<ReplayStep> Path(const std::vector<int>& exponents) {
  std::vector<ReplayStep> steps(exponents.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i].scale = std::ldexp(1.0, exponents[i]);
    steps[i].finite = true;
  }
  return steps;
}

TEST(WindowPlot, PutsScalesInTheRowThatIsLabelledWithThem) {
  const std::vector<StepWindow> windows = Windows(4, 0, 9);
  const std::vector<ReplayStep> path = Path({12, 10, 9, 0});
  const std::vector<PlottedPath> paths = {{"torch", path}};
  EXPECT_EQ(PlotWindows(windows, paths, 1, 60, 20),
            "  2^12 |a\n"
            "  ...  |\n"
            "  2^10 | a\n"
            "  2^9  |..A.\n"
            "  2^8  |....\n"
            "  2^7  |....\n"
            "  2^6  |....\n"
            "  2^5  |....\n"
            "  2^4  |....\n"
            "  2^3  |....\n"
            "  2^2  |....\n"
            "  2^1  |....\n"
            "  1    |...A\n"
            "        step 0 3\n"
            "  . safe  lower case: the policy's scale is not safe  A/a torch\n");
}

TEST(WindowPlot, ARowOfSeveralScalesSaysWhichAndWhetherAllAreSafe) {
  const std::string plot = PlotWindows(Windows(3, 2, 9), {}, 0, 60, 2);
  EXPECT_EQ(plot,
            "  2^6..2^9 |...\n"
            "  2^2..2^5 |...\n"
            "            step 0 2\n"
            "  . safe\n");
  EXPECT_EQ(PlotWindows(Windows(3, 2, 8), {}, 0, 60, 2),
            "  2^5..2^8 |...\n"
            "  2^1..2^4 |:::\n"
            "            step 0 2\n"
            "  . safe  : safe for some of the scales or steps\n");
}

TEST(WindowPlot, ExplainsSharedCellsAndHowManyPathsAreDrawn) {
  const std::vector<StepWindow> windows = Windows(2, 0, 1);
  const std::vector<ReplayStep> one = Path({1, 2}), other = Path({1, 2});
  const std::vector<PlottedPath> paths = {{"torch", one}, {"jmp", other}};
  const std::string plot = PlotWindows(windows, paths, 32, 60, 12);
  EXPECT_NE(plot.find("2^2 | #\n"), std::string::npos) << plot;
  EXPECT_NE(plot.find("2^1 |*.\n"), std::string::npos) << plot;
  for (const char* part : {"several, all safe", "# several, not", "(2 of 32 policies"}) {
    EXPECT_NE(plot.find(part), std::string::npos) << part << "\n" << plot;
  }
}

TEST(WindowPlot, IsEmptyWithoutSteps) { EXPECT_EQ(PlotWindows({}, {}, 0, 60, 12), ""); }

}  // namespace
}  // namespace dlsim::sim
