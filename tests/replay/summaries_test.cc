// SPDX-License-Identifier: Apache-2.0
// dlsim replay --summaries, against a plain definition per element and figures that NumPy computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/special_values.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

json SummariesOf(const std::string& trace, Arguments more = {}) {
  more.insert(more.begin(), {"replay", trace, "--summaries", "-"});
  return SucceedJson(more)["recordings"];
}

// Floats of random bits: every exponent and sign, subnormals, infinities and NaN; and whatever is
// special.
std::vector<float> RandomFloats(size_t count) {
  std::mt19937 random(7);
  std::vector<float> values = {0.0f,
                               -0.0f,
                               0x1p-149f,
                               -0x1p-126f,
                               1.0f,
                               0x1p-14f,
                               -0x1p-14f,
                               std::nextafter(0x1p-14f, 0.0f),
                               std::nextafter(1.0f, 0.0f),
                               std::numeric_limits<float>::max()};
  while (values.size() < count) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST(Summaries, EqualThePlainDefinition) {
  std::vector<double> limits = {0.0, std::numeric_limits<double>::max()};
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) {
    limits.push_back(limit);
    limits.push_back(-limit);
  }
  std::ranges::sort(limits);
  const std::vector<float> values = RandomFloats(100000);
  uint64_t zeros = 0, denormals = 0;
  long double squares = 0;
  std::map<int, uint64_t> exponents;
  std::map<double, uint64_t> buckets;
  for (const float value : values) {
    const float magnitude = std::fabs(value);
    zeros += value == 0;
    denormals += magnitude < 0x1p-14f && value != 0;
    squares += static_cast<long double>(value) * value;
    if (value != 0) ++exponents[std::ilogb(value)];
    const double logarithm = std::log2(static_cast<double>(magnitude + 0x1p-50f));
    ++buckets[*std::ranges::upper_bound(limits, logarithm)];
  }
  const TempDir dir;
  dir.Write("step-00000003.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
  const json found = SummariesOf(dir.path()).at(0);
  EXPECT_EQ(found["elements"], values.size());
  EXPECT_EQ(found["zeros"], zeros);
  EXPECT_EQ(found["denormals"], denormals);
  EXPECT_DOUBLE_EQ(found["norm"].get<double>(), static_cast<double>(std::sqrt(squares)));
  EXPECT_EQ(found["histogram"], json(exponents));
  EXPECT_EQ(found["tensorflow_histogram"], json(buckets));
}

TEST(Summaries, HaveARecordingForEachFileAndTensor) {
  const TempDir dir;
  dir.Write("step-00000003.safetensors",
            BuildSafetensors({FloatTensor("a.grad", {0.0f, -0.0f, 0x1p-20f, 2.0f}),
                              FloatTensor("inf.grad", {1.0f, kInf}),
                              FloatTensor("nan.grad", {kInf, kQuietNan}),
                              FloatTensor("zero.act_grad", {0.0f})}));
  const json found = SummariesOf(dir.path());
  ASSERT_EQ(found.size(), 4u);
  json first = found[0];
  first.erase("tensorflow_histogram");
  EXPECT_EQ(first, json::parse(R"({"step": 3, "micro": null, "tensor": "a.grad", "role": "grad",
      "norm": 2.0000000000002274, "elements": 4, "zeros": 2, "denormals": 1, "nan": 0, "inf": 0,
      "sparsity": 0.5, "denormal_fraction": 0.25, "histogram": [[-20, 1], [1, 1]]})"));
  EXPECT_EQ(found[1]["norm"], "inf");
  EXPECT_EQ(found[1]["inf"], 1);
  EXPECT_EQ(found[2]["norm"], "nan");
  EXPECT_EQ(found[2]["histogram"], json::array());
  EXPECT_EQ(found[3]["role"], "act_grad");
  std::map<std::string, int> recordings;
  for (const json& recording : SummariesOf(kAccumulated)) {
    EXPECT_TRUE(recording["micro"].is_number_integer());
    ++recordings[recording["tensor"]];
  }
  for (const auto& [tensor, count] : recordings) EXPECT_EQ(count, 8) << tensor;  // 2 steps of 4
}

TEST(Summaries, TheFormatDecidesWhatIsDenormal) {
  const TempDir dir;
  dir.Write("step-00000003.safetensors",
            BuildSafetensors({FloatTensor("w.grad", {0x1p-20f, 0x1p-31f, 0x1p-127f})}));
  const auto denormals = [&](const Arguments& formats) {
    return SummariesOf(dir.path(), formats).at(0)["denormals"].get<int>();
  };
  EXPECT_EQ(denormals({}), 3);
  EXPECT_EQ(denormals({"--format", "cb16"}), 2);
  EXPECT_EQ(denormals({"--format", "bf16"}), 1);
  EXPECT_EQ(denormals({"--format", "bf16", "--format", "cb16"}), 3);
}

// Computed with NumPy 2.4 from the bytes of the file.
TEST(Summaries, EqualNumpyOnARealTensor) {
  const json found = SummariesOf(kTraces + "lm-trouble-cut/step-00000171.safetensors",
                                 {"--tensors", "blocks.1.attn.qkv.bias.grad"})
                         .at(0);
  EXPECT_EQ(found["elements"], 96u);
  EXPECT_EQ(found["zeros"], 1u);
  EXPECT_EQ(found["denormals"], 36u);
  EXPECT_DOUBLE_EQ(found["norm"].get<double>(), 0.058674846521793236);
  EXPECT_EQ(found["histogram"],
            json::parse("[[-39, 2], [-38, 5], [-37, 14], [-36, 7], [-35, 3], [-17, 1], [-15, 4], "
                        "[-14, 9], [-13, 8], [-12, 10], [-11, 1], [-10, 3], [-9, 7], [-8, 8], "
                        "[-7, 8], [-6, 5]]"));
  const std::map<double, uint64_t> buckets = {
      {-45.66527761459169, 1},  {-37.73989885503445, 3},   {-34.30899895912222, 28},
      {-16.005401222038564, 1}, {-14.550364747307786, 3},  {-13.22760431573435, 7},
      {-12.025094832485772, 9}, {-10.931904393168884, 13}, {-9.034631729891638, 2},
      {-8.213301572628762, 5},  {-7.466637793298873, 11},  {-6.7878525393626115, 1},
      {-6.1707750357841915, 5}, {-5.609795487076537, 4},   {-5.099814079160488, 3}};
  EXPECT_EQ(found["tensorflow_histogram"], json(buckets));
}

TEST(Summaries, AFileIsCompleteOrNotThere) {
  const TempDir dir, results;
  dir.Write("step-00000003.safetensors", BuildSafetensors({FloatTensor("w.grad", {1.0f})}));
  const std::string path = results.path() + "/out.json";
  EXPECT_NE(Succeed({"replay", dir.path(), "--summaries", path}).find("fp16"), std::string::npos);
  EXPECT_EQ(json::parse(ReadBytes(path))["recordings"].size(), 1u);
  ExpectFailure({"replay", dir.path(), "--json", "-", "--summaries", "-"}, 2, {"taken by --json"});
  std::filesystem::remove(path);
  dir.Write("step-00000004.safetensors", "broken");
  ExpectFailure({"replay", dir.path(), "--summaries", path}, 3, {"step-00000004"});
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace dlsim
