// SPDX-License-Identifier: Apache-2.0
// dlsim accumulate on real and on built traces: values, files, errors (docs/accumulation.md).
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/accumulate.h"
#include "dlsim/format.h"
#include "dlsim/tensor_values.h"
#include "tests/support/run_command.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

// A trace of one step, or of several micro-steps, each with these tensors.
class BuiltTrace {
 public:
  void AddStep(const std::string& file, const std::vector<BuiltTensor>& tensors) {
    dir_.Write(file, BuildSafetensors(tensors));
  }
  std::string path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

BuiltTensor Matrix(const std::string& name, uint64_t rows, const std::vector<float>& values) {
  return {name, "F32", {rows, values.size() / rows}, FloatBytes(values)};
}

json Study(const Arguments& arguments) {
  Arguments all = {"accumulate"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.insert(all.end(), {"--json", "-"});
  return SucceedJson(all);
}

const json& ResultOf(const json& document, const std::string& sum, const std::string& tensor) {
  for (const json& result : document["results"]) {
    if (result["sum"] == sum && result["tensor"] == tensor) return result;
  }
  ADD_FAILURE() << "no " << sum << " of " << tensor;
  return document["results"][0];
}

// The rows of a CSV file without quoted fields, by column.
std::vector<std::map<std::string, std::string>> CsvRows(const std::string& text) {
  std::vector<std::map<std::string, std::string>> rows;
  std::vector<std::string> names;
  for (const std::string& line : Lines(text)) {
    std::vector<std::string> fields(1);
    for (const char c : line) c == ',' ? fields.emplace_back() : fields.back() += c;
    if (names.empty()) {
      names = fields;
      continue;
    }
    std::map<std::string, std::string> row;
    EXPECT_EQ(fields.size(), names.size()) << line;
    for (size_t i = 0; i < names.size(); ++i) row[names[i]] = fields[i];
    rows.push_back(row);
  }
  return rows;
}

TEST(AccumulateCommand, ASwampedSumIsReported) {
  BuiltTrace trace;
  std::vector<float> values(1025, 0x1p-11f);
  values[0] = 1;
  trace.AddStep("step-7.safetensors", {FloatTensor("w.grad", values)});
  const json document =
      Study({trace.path(), "--accumulator", "fp16", "--accumulator", "fp32", "--reduce", "sum"});
  const json& runs = ResultOf(document, "sum", "w.grad")["runs"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0]["run"], "fp16");
  EXPECT_EQ(runs[0]["worst_error"], 0.5 / 1.5);
  EXPECT_EQ(runs[0]["worst_relative_error"], 0.5 / 1.5);
  EXPECT_EQ(runs[0]["worst_input_error"], 0.0);
  EXPECT_EQ(runs[0]["max_error"], 0.5);
  EXPECT_EQ(runs[0]["worst_step"], 7);
  EXPECT_EQ(runs[0]["worst_micro"], nullptr);
  EXPECT_EQ(runs[0]["additions"], 1025);
  EXPECT_EQ(runs[0]["swamped"], 1024);
  EXPECT_EQ(runs[1]["run"], "fp32 of cb16");
  EXPECT_EQ(runs[1]["worst_error"], 0.0);
  EXPECT_EQ(runs[1]["swamped"], 0);
}

TEST(AccumulateCommand, TheErrorOfCancellingTermsIsRelativeToTheirMagnitudes) {
  BuiltTrace trace;
  trace.AddStep("step-0.safetensors", {FloatTensor("w.grad", {2048, 1, -2048})});
  const json document = Study({trace.path(), "--accumulator", "fp16", "--reduce", "sum"});
  const json& run = ResultOf(document, "sum", "w.grad")["runs"][0];
  EXPECT_EQ(run["worst_error"], 1.0 / 4097);
  EXPECT_EQ(run["worst_relative_error"], 1.0);
}

TEST(AccumulateCommand, AxesAndChunksAndScales) {
  BuiltTrace trace;
  trace.AddStep("step-0.safetensors", {Matrix("w.grad", 2, {2048, 1, 1, 1, 1, 2048})});
  const auto row = [&](const Arguments& more) {
    Arguments all = {"accumulate", trace.path(), "--accumulator", "fp16", "--csv", "-"};
    all.insert(all.end(), more.begin(), more.end());
    return CsvRows(Succeed(all)).at(0);
  };
  // Rows: 2048 + 1 + 1 stays 2048, 1 + 1 + 2048 is 2050; L2 of the difference is 2.
  auto last = row({"--reduce", "axis:1"});
  EXPECT_EQ(last["sum"], "axis:1");
  EXPECT_EQ(last["operation"], "matmul");
  EXPECT_EQ(last["outputs"], "2");
  EXPECT_EQ(last["max_error"], "2");
  EXPECT_EQ(last["swamped"], "2");
  EXPECT_EQ(row({"--reduce", "axis:-1"})["max_error"], "2");
  EXPECT_EQ(row({"--reduce", "axis:0"})["outputs"], "3");
  // Chunks of two: 2048 + 1 is 2048, then + 1 in float32.
  EXPECT_EQ(row({"--reduce", "axis:1", "--chunk", "2"})["max_error"], "1");
  EXPECT_EQ(row({"--reduce", "axis:1", "--chunk", "2", "--combiner", "fp16"})["max_error"], "2");
  EXPECT_EQ(row({"--reduce", "axis:1", "--chunk", "2"})["additions"], "10");
  EXPECT_EQ(row({"--reduce", "sum", "--scale", "64"})["overflows"], "0");
  EXPECT_EQ(row({"--reduce", "sum", "--scale", "31"})["result"], "inf");
  EXPECT_EQ(row({"--reduce", "sum", "--scale", "31", "--overflow", "saturate"})["error"] == "inf",
            false);
  EXPECT_EQ(row({"--reduce", "sum", "--scale", "0.5"})["reference"], "4100");
}

TEST(AccumulateCommand, DotAndMatrixProducts) {
  BuiltTrace trace;
  trace.AddStep("step-0.safetensors",
                {Matrix("a.grad", 2, {1, 2, 3, 4}), Matrix("b.grad", 2, {5, 6, 7, 8}),
                 FloatTensor("c.grad", {1, 1, 1})});
  const auto rows = [&](const Arguments& more) {
    Arguments all = {"accumulate", trace.path(), "--accumulator", "fp32", "--csv", "-"};
    all.insert(all.end(), more.begin(), more.end());
    return CsvRows(Succeed(all));
  };
  auto dot = rows({"--dot", "a.grad:b.grad", "--scale", "4"});
  ASSERT_EQ(dot.size(), 1u);
  EXPECT_EQ(dot[0]["sum"], "dot");
  EXPECT_EQ(dot[0]["other"], "b.grad");
  EXPECT_EQ(dot[0]["reference"], "70");
  EXPECT_EQ(dot[0]["result"], "70");
  auto product = rows({"--matmul", "a.grad:b.grad"});
  ASSERT_EQ(product.size(), 1u);
  EXPECT_EQ(product[0]["outputs"], "4");
  EXPECT_EQ(std::stod(product[0]["result"]), std::sqrt(19. * 19 + 22 * 22 + 43 * 43 + 50 * 50));
  EXPECT_EQ(rows({"--dot", "*:*"}).size(), 2u);  // a:b and b:a, none with itself or with c
  EXPECT_EQ(rows({"--dot", "a.grad:a.grad"}).size(), 1u);
  auto narrow = rows({"--dot", "a.grad:b.grad", "--products", "e5m2"});
  EXPECT_EQ(narrow[0]["result"], "69");  // in three bits 5, 12 and 32 are exact, 21 is 20
}

TEST(AccumulateCommand, MicroStepsAreSummedInTheirOrder) {
  BuiltTrace trace;
  const char* const names[] = {"step-3.micro-00.safetensors", "step-3.micro-01.safetensors",
                               "step-3.micro-02.safetensors"};
  trace.AddStep(names[0], {FloatTensor("w.grad", {2048, 1})});
  trace.AddStep(names[1], {FloatTensor("w.grad", {1, 1})});
  trace.AddStep(names[2], {FloatTensor("w.grad", {1, 2048})});
  const json document = Study({trace.path(), "--accumulator", "fp16", "--reduce", "micro"});
  const json& run = ResultOf(document, "micro", "w.grad")["runs"][0];
  EXPECT_EQ(run["sums"], 1);
  EXPECT_EQ(run["max_error"], 2.0);  // 2048 swamps two ones; two ones and 2048 are exact
  EXPECT_EQ(run["swamped"], 2);
  EXPECT_EQ(run["additions"], 6);
}

TEST(AccumulateCommand, TheDefaultRunHasThreeLevels) {
  const json document = Study({kAccumulated});
  EXPECT_EQ(document["schema"], "dlsim.accumulate/1");
  EXPECT_EQ(document["trace"]["steps"], 2);
  ASSERT_EQ(document["runs"].size(), 3u);
  for (int level = 0; level < 3; ++level) {
    const json& run = document["runs"][static_cast<size_t>(level)];
    EXPECT_EQ(run["name"], "level " + std::to_string(level) + " cb16");
    EXPECT_EQ(run["level"], level);
    EXPECT_EQ(run["rules"].size(), 4u);
    EXPECT_EQ(run["chunk"], 128);
  }
  EXPECT_EQ(document["runs"][2]["rules"]["softmax"]["sums"], "short");
  EXPECT_EQ(document["runs"][1]["rules"]["reduction"]["evidence"], "assumption");
  // 20 gradients over micro-steps; 22 tensors otherwise.
  EXPECT_EQ(document["results"].size(), 20u + 22 + 22);
  for (const json& result : document["results"]) {
    const double level0 = result["runs"][0]["worst_error"],
                 level2 = result["runs"][2]["worst_error"];
    EXPECT_LT(level0, 2e-3) << result;  // rounding to 10 bits, and little else
    EXPECT_LT(level0, level2 + 1e-3) << result;
    const bool matmul = result["operation"] == "matmul";
    EXPECT_EQ(result["runs"][matmul ? 2 : 0]["worst_error"], result["runs"][1]["worst_error"]);
  }
}

TEST(AccumulateCommand, LevelsTakeSumsForTheOperationGiven) {
  // Activation gradients are of one item: along axis 0 they have one term, and levels agree.
  for (const auto& [operation, same_as_level_1] :
       {std::pair("attention", size_t{0}), {"matmul", 2}}) {
    const json document = Study(
        {kAccumulated, "--reduce", "axis:0", "--operation", operation, "--tensors", "*.grad"});
    for (const json& result : document["results"]) {
      EXPECT_EQ(result["operation"], operation);
      const json& runs = result["runs"];
      EXPECT_EQ(runs[1]["worst_error"], runs[same_as_level_1]["worst_error"]) << result;
      EXPECT_NE(runs[0]["worst_error"], runs[2]["worst_error"]) << result;
    }
  }
}

// The library, called on the recorded values, gives what the command writes.
TEST(AccumulateCommand, EqualsTheLibraryOnARealTrace) {
  const auto rows = CsvRows(Succeed({"accumulate", kAccumulated, "--accumulator", "bf16", "--chunk",
                                     "32", "--reduce", "norm", "--csv", "-"}));
  AccumulationOptions options;
  options.inputs = options.accumulator = FormatPrecision({kBf16});
  options.chunk_length = 32;
  const TraceReader reader = OpenTrace({kAccumulated});
  size_t row = 0;
  for (size_t i = 0; i < reader.step_count(); ++i) {
    const TraceStep step = reader.Load(i);
    for (const Recording& recording : step.recordings) {
      for (const TraceTensor& tensor : recording.tensors) {
        std::vector<float> values;
        VisitValues(recording, tensor, [&](uint64_t, std::span<const float> chunk) {
          values.insert(values.end(), chunk.begin(), chunk.end());
        });
        const Accumulated sum = SumOfSquares(values, std::span(&options, 1)).front();
        ASSERT_LT(row, rows.size());
        EXPECT_EQ(rows[row].at("tensor"), tensor.name);
        EXPECT_EQ(std::stod(rows[row].at("result")), static_cast<double>(sum.values.front()));
        EXPECT_EQ(rows[row].at("swamped"), std::to_string(sum.counts.swamped));
        ++row;
      }
    }
  }
  EXPECT_EQ(row, rows.size());
}

TEST(AccumulateCommand, NonfiniteValuesHaveNoError) {
  BuiltTrace trace;
  trace.AddStep("step-0.safetensors", {FloatTensor("w.grad", {1, HUGE_VALF})});
  trace.AddStep("step-1.safetensors", {FloatTensor("w.grad", {1, 60000})});
  const json document = Study({trace.path(), "--accumulator", "fp16", "--reduce", "norm"});
  const json& run = ResultOf(document, "norm", "w.grad")["runs"][0];
  EXPECT_EQ(run["sums"], 2);
  EXPECT_EQ(run["nonfinite"], 1);
  EXPECT_EQ(run["overflowed"], 1);
  EXPECT_EQ(run["worst_error"], "inf");
  EXPECT_EQ(run["mean_error"], 0.0);  // of no sum
  EXPECT_EQ(run["worst_step"], 1);
  const std::string report = Succeed({"accumulate", kSingle, "--level", "0"});
  EXPECT_NE(report.find("not finite, and no error"), std::string::npos) << report;
  EXPECT_EQ(report.find("nan"), std::string::npos) << report;
}

TEST(AccumulateCommand, StochasticRoundingDependsOnTheSeedAlone) {
  const auto csv = [](const char* seed) {
    return Succeed({"accumulate", kAccumulated, "--level", "2", "--rounding", "sr", "--seed", seed,
                    "--csv", "-"});
  };
  EXPECT_EQ(csv("1"), csv("1"));
  EXPECT_NE(csv("1"), csv("2"));
}

TEST(AccumulateCommand, HelpShowsAnExample) {
  EXPECT_NE(Succeed({"accumulate", "--help"}).find("  dlsim accumulate runs/"), std::string::npos);
}

TEST(AccumulateCommand, TheReportIsWorstFirst) {
  BuiltTrace trace;
  std::vector<float> swamped(1025, 0x1p-11f);
  swamped[0] = 1;
  trace.AddStep("step-0.safetensors",
                {FloatTensor("good.grad", {1, 2, 3}), FloatTensor("bad.grad", swamped)});
  const std::string report = Succeed(
      {"accumulate", trace.path(), "--accumulator", "fp16", "--reduce", "sum", "--top", "1"});
  EXPECT_EQ(report.find("good.grad"), std::string::npos) << report;
  EXPECT_NE(report.find("bad.grad"), std::string::npos) << report;
  EXPECT_NE(report.find("99.9 %"), std::string::npos) << report;
  EXPECT_EQ(Succeed({"accumulate", trace.path(), "--quiet"}), "");
}

}  // namespace
}  // namespace dlsim
