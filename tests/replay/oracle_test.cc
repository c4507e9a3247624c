// SPDX-License-Identifier: Apache-2.0
// Replays of real traces equal results that an independent program computed and that are next to
// them: NAME/ with NAME.oracle-static.json and NAME.oracle-dls.json (tests/data/README.md).
// The environment variable DLSIM_ORACLE_TRACES may name another directory laid out the same way.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/measure_step.h"
#include "dlsim/sim/policies.h"
#include "dlsim/sim/replay.h"
#include "sim/replay/simulation.h"
#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

using nlohmann::json;

constexpr char kBundled[] = DLSIM_TEST_DATA "/traces";

// What the bundled traces hold: a change here is a change of the test data.
constexpr size_t kBundledRows = 30096;   // (990 + 176 + 156 + 350 rows) x 3 formats x 6 scales
constexpr size_t kBundledNorms = 1260;   // (45 + 25 files) x 3 formats x 6 scales
constexpr size_t kBundledSettings = 48;  // 72 without those that start above their maximum

struct Totals {
  size_t traces = 0, rows = 0, norms = 0, settings = 0, float32_norm_settings = 0;
};

struct TraceWithOracle {
  std::string path;
  json oracle;
};

std::optional<std::string> OtherDirectory() {
  const char* directory = std::getenv("DLSIM_ORACLE_TRACES");
  return directory == nullptr || *directory == '\0' ? std::nullopt : std::optional(directory);
}

// Returns the traces of a directory that have an oracle of this kind ("static" or "dls").
std::vector<TraceWithOracle> Traces(const std::string& directory, const std::string& kind) {
  const std::string suffix = ".oracle-" + kind + ".json";
  std::vector<TraceWithOracle> traces;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string file = entry.path().string();
    if (!file.ends_with(suffix)) continue;
    traces.push_back({file.substr(0, file.size() - suffix.size()),
                      json::parse(std::ifstream(file, std::ios::binary))});
  }
  std::ranges::sort(traces, {}, &TraceWithOracle::path);
  return traces;
}

// Numbers that are not finite are text in the oracles; the absmax of no finite value is null.
double Number(const json& value) {
  if (value.is_null()) return 0;
  return value.is_string() ? std::strtod(value.get<std::string>().c_str(), nullptr)
                           : value.get<double>();
}

// Two sums in another order, and with a division where dlsim multiplies by the reciprocal.
void ExpectNear(double got, double expected, double tolerance) {
  if (std::isfinite(expected)) {
    EXPECT_NEAR(got, expected, tolerance * std::fabs(expected));
  } else {
    EXPECT_FALSE(std::isfinite(got)) << got;
  }
}

// One pass over a trace with every format and scale of its static oracle.
class StaticComparison {
 public:
  StaticComparison(const TraceWithOracle& trace, Totals& totals)
      : reader_(OpenTrace({trace.path})), oracle_(trace.oracle), totals_(totals) {
    for (size_t i = 0; i < oracle_["files"].size(); ++i) files_[oracle_["files"][i]["file"]] = i;
    for (size_t i = 0; i < oracle_["tensors"].size(); ++i) tensors_[oracle_["tensors"][i]] = i;
    for (size_t i = 0; i < oracle_["rows"].size(); ++i) {
      rows_[{oracle_["rows"][i][0], oracle_["rows"][i][1]}] = i;
    }
  }

  void Run() {
    std::vector<ReplayRun> runs;
    for (const auto& [format, scales] : oracle_["static"].items()) {
      for (const auto& [scale, columns] : scales.items()) {
        const SimulationRequest request = {
            .formats = {format},
            .policies = {"static"},
            .settings = {"loss_scale=" + oracle_["scales"][scale].dump()},
            .conversion = {},
            .finite_test = {}};
        runs.push_back(*PrepareRuns(request).front().start);
        runs.back().clipping.max_norm = 1e30;  // so that the norm is found
        columns_.push_back(&columns);
      }
    }
    ReplayOptions options;
    options.observer = [&](const ObservedStep& step) { CompareStep(step); };
    const size_t before = totals_.rows;
    Replay(TraceSteps(reader_), runs, options);
    EXPECT_EQ(rows_.size(), oracle_["rows"].size());
    EXPECT_EQ(totals_.rows - before, rows_.size() * runs.size());
  }

 private:
  void CompareStep(const ObservedStep& step) {
    const TraceStep recorded = reader_.Load(step.index);
    std::vector<StepAnswer> measured;
    for (const ObservedStep::Run& run : step.runs) {
      const auto scale = static_cast<float>(run.record.scale);
      measured.push_back(MeasureStep(recorded, {run.run.conversion, scale}, {}));
    }
    for (size_t part = 0; part < recorded.recordings.size(); ++part) {
      const std::filesystem::path place = recorded.recordings[part].place;
      ASSERT_TRUE(files_.contains(place.filename().string())) << place;
      const size_t file = files_.at(place.filename().string());
      EXPECT_EQ(recorded.step, oracle_["files"][file]["step"]);
      for (size_t run = 0; run < step.runs.size(); ++run) {
        ComparePart(step, run, part, file, measured[run]);
      }
    }
  }

  // What tables tell, and, with the norm, what each element does.
  void ComparePart(const ObservedStep& step, size_t run, size_t part, size_t file,
                   const StepAnswer& measured) {
    const StepTables& tables = step.step.tables();
    const json& columns = *columns_[run];
    double norm_squared = 0;
    for (size_t t = 0; t < tables.gradients; ++t) {
      const TensorInfo& tensor = *tables.tensors[t];
      ASSERT_TRUE(tensors_.contains(tensor.name)) << tensor.name;
      const std::pair<size_t, size_t> key = {file, tensors_.at(tensor.name)};
      ASSERT_TRUE(rows_.contains(key)) << tensor.name;
      CompareRow((*step.runs[run].answers)[t].Part(part), columns, rows_.at(key), tensor.name);
      CompareRow(measured[t].Part(part), columns, rows_.at(key), tensor.name);
      ++totals_.rows;
      if (tensor.role != Role::kGrad) continue;
      norm_squared += measured[t].Part(part).quantized_sum_of_squares;
    }
    if (!columns.contains("param_norm")) return;
    const double expected = Number(columns["param_norm"][file]);
    ExpectNear(std::sqrt(norm_squared), expected, 1e-6);
    if (tables.parts.size() == 1) {
      const std::optional<double> norm = step.runs[run].record.converted_norm;
      ASSERT_TRUE(norm.has_value());
      ExpectNear(*norm, expected, 1e-6);
    }
    ++totals_.norms;
  }

  void CompareRow(const TensorStats& stats, const json& columns, size_t row,
                  const std::string& tensor) {
    const json& input = oracle_["rows"][row];
    const bool equal =
        stats.elements == input[2] && stats.zeros == input[3] && stats.nan == input[4] &&
        stats.inf == input[5] && double{stats.absmax} == Number(input[6]) &&
        stats.underflow == columns["underflow"][row] &&
        stats.subnormal == columns["subnormal"][row] && stats.overflow == columns["overflow"][row];
    EXPECT_TRUE(equal) << tensor << " row " << row << ": " << input << " underflow "
                       << columns["underflow"][row] << " subnormal " << columns["subnormal"][row]
                       << " overflow " << columns["overflow"][row] << "; got " << stats.elements
                       << " " << stats.zeros << " " << stats.nan << " " << stats.inf << " "
                       << stats.absmax << " underflow " << stats.underflow << " subnormal "
                       << stats.subnormal << " overflow " << stats.overflow;
    ExpectNear(std::sqrt(stats.sum_of_squares), Number(input[7]), 1e-12);
  }

  const TraceReader reader_;
  const json& oracle_;
  Totals& totals_;
  std::map<std::string, size_t> files_, tensors_;
  std::map<std::pair<size_t, size_t>, size_t> rows_;  // (file, tensor) -> row
  std::vector<const json*> columns_;                  // of each run
};

bool SameSetting(const json& a, const json& b) {
  return std::ranges::all_of(
      std::vector{"format", "init", "steps_per_increase", "min", "max", "tolerance"},
      [&](const char* key) { return a[key] == b[key]; });
}

// The oracle writes scales as "2^15" or as numbers.
std::string SettingText(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

double Value(const json& value) {
  const std::string text = SettingText(value);
  return text.starts_with("2^") ? std::exp2(std::stod(text.substr(2))) : std::stod(text);
}

// The oracle starts from the initial scale as given, but the real GradScaler clamps it.
bool StartsBelowMaximum(const json& setting) {
  return Value(setting["init"]) <= Value(setting["max"]);
}

ReplayRun MakeRun(const json& setting) {
  const auto text = [&](const char* key, const char* parameter) {
    return std::string(parameter) + "=" + SettingText(setting[key]);
  };
  const SimulationRequest request = {
      .formats = {setting["format"]},
      .policies = {"cerebras"},
      .settings = {text("init", "init_scale"), text("steps_per_increase", "steps_per_increase"),
                   text("min", "min_loss_scale"), text("max", "max_loss_scale"),
                   text("tolerance", "overflow_tolerance")},
      .conversion = {},
      .finite_test = {}};
  return *PrepareRuns(request).front().start;
}

void ComparePath(const ReplayResult& result, const json& steps, const json& expected) {
  json numbers = json::array(), segments = json::array(), skipped = json::array();
  for (size_t i = 0; i < result.steps.size(); ++i) {
    const ReplayStep& step = result.steps[i];
    numbers.push_back(step.step);
    if (step.skipped) skipped.push_back(step.step);
    if (segments.empty() || segments.back()[2] != step.scale) {
      segments.push_back({i, 0, step.scale});
    }
    segments.back()[1] = segments.back()[1].get<int>() + 1;
  }
  EXPECT_EQ(numbers, steps);
  EXPECT_EQ(segments, expected["segments"]);
  EXPECT_EQ(skipped, expected["skipped_steps"]);
  EXPECT_EQ(result.steps.back().next_scale, expected["final_scale"].get<double>());
}

void CompareScalePaths(const TraceWithOracle& trace, Totals& totals) {
  std::vector<ReplayRun> runs;
  std::vector<const json*> expected;
  int64_t float32_norm_settings = 0;
  for (const json& setting : trace.oracle["settings"]) {
    if (!StartsBelowMaximum(setting)) continue;
    runs.push_back(MakeRun(setting));
    expected.push_back(&setting);
    for (const json& variant : trace.oracle["variants_that_differ"]) {
      if (variant["variant"] != "float32_norm" || !SameSetting(variant, setting)) continue;
      expected.back() = &variant;
      ++float32_norm_settings;
    }
  }
  EXPECT_EQ(runs.size() * 3, trace.oracle["settings"].size() * 2);
  const json& variants = trace.oracle["variants_that_differ"];
  EXPECT_EQ(float32_norm_settings, std::ranges::count_if(variants, [](const json& variant) {
              return variant["variant"] == "float32_norm" && StartsBelowMaximum(variant);
            }));
  totals.float32_norm_settings += static_cast<size_t>(float32_norm_settings);
  const std::vector<ReplayResult> results = Replay(TraceSteps(OpenTrace({trace.path})), runs);
  for (size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(expected[i]->dump().substr(0, 160));
    ComparePath(results[i], trace.oracle["steps"], *expected[i]);
    ++totals.settings;
  }
}

// Compares all traces of a directory with one kind of oracle.
Totals Compare(const std::string& directory, const std::string& kind) {
  const auto start = std::chrono::steady_clock::now();
  Totals totals;
  for (const TraceWithOracle& trace : Traces(directory, kind)) {
    SCOPED_TRACE(trace.path);
    ++totals.traces;
    if (kind == "static") {
      StaticComparison(trace, totals).Run();
    } else {
      CompareScalePaths(trace, totals);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << kind << " oracles in " << directory << ": " << totals.traces << " traces, "
            << totals.rows << " rows, " << totals.norms << " norms, " << totals.settings
            << " settings (" << totals.float32_norm_settings << " by float32 norm), "
            << seconds.count() << " s\n";
  return totals;
}

// fp16 and cb16 have the same smallest subnormal when their scales differ by 2^15.
void CompareFp16WithCb16(const std::string& directory) {
  constexpr int kLowest = -8, kHighest = 9;
  std::vector<StepQuestion> questions;
  for (const float base : {1.0f, 2e15f}) {
    for (int k = kLowest; k <= kHighest; ++k) {
      questions.push_back({{kFp16}, std::ldexp(base, 15 + k)});
      questions.push_back({{kCb16}, std::ldexp(base, k)});
    }
  }
  uint64_t underflows = 0;
  for (const TraceWithOracle& trace : Traces(directory, "static")) {
    SCOPED_TRACE(trace.path);
    const TraceReader reader = OpenTrace({trace.path});
    for (size_t i = 0; i < reader.step_count(); ++i) {
      const TraceStep recorded = reader.Load(i);
      const std::vector<TensorRef> tensors = DescribeTensors(recorded);
      std::vector<StepAnswer> measured;
      for (const StepQuestion& question : questions) {
        measured.push_back(MeasureStep(recorded, question, {}));
      }
      for (size_t q = 0; q < questions.size(); q += 2) {
        for (size_t t = 0; t < measured[q].size(); ++t) {
          for (size_t part = 0; part < recorded.recordings.size(); ++part) {
            const uint64_t fp16 = measured[q][t].Part(part).underflow;
            EXPECT_EQ(fp16, measured[q + 1][t].Part(part).underflow)
                << tensors[t]->name << " at scale " << questions[q + 1].scale;
            underflows += fp16;
          }
        }
      }
    }
  }
  EXPECT_GT(underflows, 0u);
}

TEST(Oracle, BundledTracesConvertAlike) {
  const Totals totals = Compare(kBundled, "static");
  EXPECT_EQ(totals.traces, 4u);
  EXPECT_EQ(totals.rows, kBundledRows);
  EXPECT_EQ(totals.norms, kBundledNorms);
}

TEST(Oracle, BundledTracesTakeTheSameScalePaths) {
  const Totals totals = Compare(kBundled, "dls");
  EXPECT_EQ(totals.traces, 1u);
  EXPECT_EQ(totals.settings, kBundledSettings);
}

TEST(Oracle, Fp16AndCb16UnderflowAlikeAtScales32768Apart) { CompareFp16WithCb16(kBundled); }

TEST(Oracle, OtherTracesAgree) {
  const std::optional<std::string> directory = OtherDirectory();
  if (!directory) GTEST_SKIP() << "DLSIM_ORACLE_TRACES is not set";
  const Totals converted = Compare(*directory, "static");
  EXPECT_GT(converted.traces, 0u);
  EXPECT_GT(converted.rows, 0u);
  EXPECT_EQ(Compare(*directory, "dls").settings, 48 * Traces(*directory, "dls").size());
  CompareFp16WithCb16(*directory);
}

}  // namespace
}  // namespace dlsim::sim
