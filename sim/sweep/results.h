// SPDX-License-Identifier: Apache-2.0
// A sweep: what it tries, every combination of what is varied or a random sample, as runs; and its
// results: which runs are best, as a table, JSON "dlsim.sweep/1" and CSV (docs/sweep.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/step.h"
#include "dlsim/sim/sweep.h"
#include "sim/base/rows.h"

namespace dlsim::sim {

// A range whose numbers are drawn from all of it, not from the listed ones alone.
struct ValueRange {
  size_t first = 0, count = 0;  // its place among the values
  double low = 0, high = 0;
  bool geometric = false;  // drawn with a uniform logarithm
  bool integers = false;   // all that is given is an integer
};

// The values of one parameter, as users write them: "100,200,1000..5000/500,2^0..2^32". "2^A..2^B"
// is every power of two, "A..B/STEP" an arithmetic and "A..B*FACTOR" a geometric row.
struct ValueList {
  std::vector<std::string> texts;
  std::vector<ValueRange> ranges = {};  // arithmetic and geometric
};

// Throws Error (exit code 2) that names `place`.
ValueList ParseValueList(std::string_view text, std::string_view place);

using SweepRandom = std::mt19937_64;

// Draws a value of the list, all alike, but from within a range if it falls into one; integers if
// the range is of integers.
std::string DrawValue(const ValueList& list, SweepRandom& random);

// One thing that is set or varied.
struct SweepAxis {
  std::string place;   // "--vary" or file and line, for messages
  std::string policy;  // the only policy that it is for; empty = all that have the key
  std::string key;
  ValueList values;
};

// Returns the axis of "KEY=VALUES" or "POLICY.KEY=VALUES". Throws Error (exit code 2).
SweepAxis ParseAxis(std::string_view text, std::string_view place);

// Returns the axis of "KEY=VALUE", whose value is taken as it is.
SweepAxis ParseSetting(std::string_view text, std::string_view place);

struct SweepGrid {
  std::vector<std::string> formats, policies, roundings;
  std::vector<SweepAxis> settings;  // of one value
  std::vector<SweepAxis> axes;
  std::optional<uint64_t> random = {};  // number of points drawn, instead of all combinations
  uint64_t seed = 0;
  uint64_t limit = 1'000'000;                  // of points
  Conversion conversion = {};                  // but for format and rounding
  std::optional<FiniteTest> finite_test = {};  // instead of each policy's own
};

// Returns what a file of --grid says (docs/sweep.md), as the Python package passes it on: an object
// with `format` and `policy` as of the command line, `set` and `vary` as pairs of a place and
// KEY=VALUES, `random`, `seed` and `limit`. Throws Error (exit code 2) for a bad setting.
SweepGrid ParseGrid(const std::string& json);

// Moves the axes of formats, policies and roundings to where they belong. Throws Error (exit code
// 2) for what is given in both ways.
void SortAxes(SweepGrid& grid);

struct GridPoint {
  size_t format = 0, rounding = 0;  // positions in the grid's lists
  const PolicyInfo* policy = nullptr;
  std::vector<std::string> values = {};  // of AxisKeys; empty where the policy does not have it
};

// Returns all points. Throws Error (exit code 2) for unknown names, with a suggestion, for settings
// and axes that no policy takes, and for too many points.
std::vector<GridPoint> PointsOf(const SweepGrid& grid);

// Returns the parameters of a point's policy.
ParameterMap ParametersOf(const SweepGrid& grid, const GridPoint& point);

// Returns the distinct keys of the axes.
std::vector<std::string> AxisKeys(const SweepGrid& grid);

// Points that were refused for one reason: by their policy, or by a profile that cannot answer.
struct RefusedPoints {
  std::string policy;
  std::string reason;  // of the first of them; a policy's is the original's "Type: message"
  uint64_t count = 0;
};

struct SweepPlan {
  std::vector<NamedFormat> formats;  // those of the grid
  std::vector<GridPoint> points;     // that were not refused
  std::vector<ReplayRun> runs;       // of the points
  std::vector<RefusedPoints> refused = {};
};

// Throws Error (exit code 2) as PointsOf does, and if all points are refused.
SweepPlan PlanSweep(const SweepGrid& grid);

// Moves the points whose runs were refused while they ran to plan.refused, and removes their
// outcomes. Throws Error (exit code 2) if those are all.
void DropRefused(std::vector<SweepOutcome>& outcomes, SweepPlan& plan);

// What runs are ranked by, the least first but for the scale; ties by gradient lost, skipped steps,
// head-room, energy lost, scale, and order.
enum class RankBy : uint8_t {
  kLoss,          // mean_loss, which must be known
  kSkipped,       // skipped_steps
  kEnergyLost,    // mean_energy_lost
  kWorstStep,     // worst_step_energy_lost
  kFirstApplied,  // first_applied_step; never comes last
  kFinalScale,    // final_scale, the largest first
};

constexpr auto EnumNames(RankBy) {
  return std::to_array<EnumName<RankBy>>({{RankBy::kLoss, "loss"},
                                          {RankBy::kSkipped, "skipped"},
                                          {RankBy::kEnergyLost, "energy-lost"},
                                          {RankBy::kWorstStep, "worst-step"},
                                          {RankBy::kFirstApplied, "first-applied"},
                                          {RankBy::kFinalScale, "final-scale"}});
}

// Returns the indices of the runs, best first. Runs that the original would have ended come last,
// the later their end the better. Where nothing else ranks runs, high scales are preferred
// (docs/tune.md has why), but low ones for those that are `wide`: in a format with float32's range
// of exponents.
std::vector<size_t> Rank(std::span<const SweepOutcome> outcomes, const std::vector<bool>& wide,
                         RankBy by);

// Returns the indices of the runs than which no other has both fewer skipped steps and a smaller
// gradient lost (without it mean energy lost), the fewest skipped first; one run for each pair of
// these, and none that the original would have ended unless it ends them all.
std::vector<size_t> ParetoFront(std::span<const SweepOutcome> outcomes,
                                const std::vector<bool>& wide);

// What a sweep was and what came out.
struct SweepResult {
  const SweepGrid& grid;
  const SweepPlan& plan;
  RankBy sort;
  SweepRun run;                     // outcomes of plan.points
  std::vector<bool> wide = {};      // of plan.points; see Rank
  std::vector<size_t> order = {};   // see Rank
  std::vector<size_t> pareto = {};  // see ParetoFront
};

// Ranks the outcomes.
SweepResult ResultOf(const SweepGrid& grid, const SweepPlan& plan, RankBy sort, SweepRun run);

// Returns the verdict, as a report begins with it.
std::string FormatSweepAdvice(const SweepResult& result);

// Returns the best runs in `top` rows, the Pareto front and what was refused, as text.
std::string FormatSweep(const SweepResult& result, uint64_t top);

void WriteSweepJson(const TellRows& trace, const TellRows& options, const SweepResult& result,
                    OutputFile& out);
void WriteSweepCsv(const SweepResult& result, OutputFile& out);
void AddSweepKeys(std::vector<KeyTable>& tables);

}  // namespace dlsim::sim
