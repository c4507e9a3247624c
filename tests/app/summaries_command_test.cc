// SPDX-License-Identifier: Apache-2.0
// The contract of dlsim summaries: rows, keys, table and refusals (docs/summaries.md).
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/support/run_command.h"
#include "tests/support/special_values.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

std::set<std::string> Keys(const json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

class SummariesCommand : public testing::Test {
 protected:
  // One step with a row for every rule.
  void SetUp() override {
    dir_.Write("step-00000003.safetensors",
               BuildSafetensors({FloatTensor("a,b.grad", {0.0f, -0.0f, 0x1p-20f, 2.0f}),
                                 FloatTensor("inf.grad", {1.0f, kInf}),
                                 FloatTensor("zero.act_grad", {0.0f})}));
  }

  TempDir dir_;
};

TEST_F(SummariesCommand, CsvHasOneRowPerTensor) {
  EXPECT_EQ(Lines(Succeed({"summaries", dir_.path(), "--csv", "-"})),
            (Arguments{"step,micro,tensor,role,elements,sparsity,denormal_fraction,norm,zeros,"
                       "denormals,nan,inf,lowest_exponent,median_exponent,highest_exponent",
                       "3,,\"a,b.grad\",grad,4,0.5,0.25,2.0000000000002274,2,1,0,0,-20,-20,1",
                       "3,,inf.grad,grad,2,0,0,inf,0,0,0,1,0,0,0",
                       "3,,zero.act_grad,act_grad,1,1,0,0,1,0,0,0,,,"}));
}

TEST_F(SummariesCommand, JsonHasEveryKey) {
  const json document = SucceedJson({"summaries", dir_.path(), "--json", "-"});
  EXPECT_EQ(Keys(document),
            (std::set<std::string>{"schema", "trace", "options", "recordings", "tensors"}));
  EXPECT_EQ(document["schema"], "dlsim.summaries/1");
  EXPECT_EQ(document["options"], json::parse(R"({"denormal_below": 6.103515625e-05, "format": null,
            "scale": 1.0, "quantize": false, "tensors": "*"})"));
  EXPECT_EQ(document["recordings"][0],
            json::parse(R"({"step": 3, "micro": null, "tensor": "a,b.grad", "role": "grad",
                "norm": 2.0000000000002274, "elements": 4, "zeros": 2, "denormals": 1, "nan": 0,
                "inf": 0, "sparsity": 0.5, "denormal_fraction": 0.25,
                "histogram": [[-20, 1], [1, 1]]})"));
  EXPECT_EQ(document["recordings"][1]["norm"], "inf");
  EXPECT_EQ(document["tensors"][0],
            json::parse(R"({"name": "a,b.grad", "role": "grad", "recordings": 1,
                "largest_norm": 2.0000000000002274, "worst_denormal_fraction": 0.25,
                "worst_step": 3, "elements": 4, "zeros": 2, "denormals": 1, "nan": 0, "inf": 0,
                "sparsity": 0.5, "denormal_fraction": 0.25, "histogram": [[-20, 1], [1, 1]]})"));
  EXPECT_EQ(document["tensors"][2]["worst_step"], nullptr);
}

TEST_F(SummariesCommand, JsonHasTensorflowBucketsIfAsked) {
  const json document =
      SucceedJson({"summaries", dir_.path(), "--json", "-", "--tensorflow-histogram"});
  for (const char* array : {"recordings", "tensors"}) {
    const json& buckets = document[array][0]["tensorflow_histogram"];
    ASSERT_EQ(buckets.size(), 3u);
    EXPECT_EQ(buckets[0][1], 2);  // the zeros, at -50
    EXPECT_LT(buckets[0][0], -45);
  }
}

TEST_F(SummariesCommand, OptionsDecideWhatIsDenormal) {
  const auto denormals = [&](const Arguments& options) {
    Arguments arguments = {"summaries", dir_.path(), "--json", "-"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return SucceedJson(arguments)["recordings"][0]["denormals"].get<int>();
  };
  EXPECT_EQ(denormals({"--precision", "mixed"}), 1);
  EXPECT_EQ(denormals({"--precision", "float32"}), 0);
  EXPECT_EQ(denormals({"--format", "cb16"}), 0);
  EXPECT_EQ(denormals({"--format", "cb16", "--scale", "2^-11"}), 1);
  EXPECT_EQ(denormals({"--scale", "2^6"}), 0);
  EXPECT_EQ(denormals({"--format", "fp8-e4m3"}), 1);
  EXPECT_EQ(denormals({"--format", "fp8-e4m3", "--quantize"}), 0);  // it becomes zero
}

TEST_F(SummariesCommand, MicroStepsAreRowsOfTheirOwn) {
  const json document = SucceedJson({"summaries", kAccumulated, "--json", "-"});
  std::map<std::string, uint64_t> elements, recordings;
  for (const json& row : document["recordings"]) {
    EXPECT_TRUE(row["micro"].is_number_integer());
    elements[row["tensor"]] += row["elements"].get<uint64_t>();
    ++recordings[row["tensor"]];
  }
  ASSERT_FALSE(document["tensors"].empty());
  for (const json& tensor : document["tensors"]) {
    EXPECT_EQ(tensor["recordings"], 8);  // 2 steps of 4
    EXPECT_EQ(recordings[tensor["name"]], 8u);
    EXPECT_EQ(elements[tensor["name"]], tensor["elements"].get<uint64_t>());
  }
}

TEST_F(SummariesCommand, TableShowsTheWorstFirst) {
  const std::string bar_of_ab = "|          @         @         |";
  const std::string text = Succeed({"summaries", dir_.path(), "--top", "2"});
  EXPECT_NE(text.find("denormal: 0 < |x| < 2^-14\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  and 1 more: --top 3\n"), std::string::npos) << text;
  const size_t first = text.find("a,b.grad"), second = text.find("inf.grad");
  ASSERT_NE(second, std::string::npos) << text;
  EXPECT_LT(first, second);
  EXPECT_EQ(text.find("zero.act_grad"), std::string::npos);
  EXPECT_NE(text.find(bar_of_ab), std::string::npos) << text;
}

TEST_F(SummariesCommand, BarsShowSharesByPowersOfFour) {
  std::vector<float> values(4096, 1.0f);
  values.insert(values.end(), 1024, 4.0f);
  values.insert(values.end(), 2, 16.0f);
  values.push_back(0x1p-41f);
  values.push_back(0x1p20f);
  const TempDir dir;
  dir.Write("step-00000000.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
  const std::string text = Succeed({"summaries", dir.path()});
  EXPECT_NE(text.find(":|                    @#-       |:"), std::string::npos) << text;
}

TEST_F(SummariesCommand, FilesAndQuietLeaveStandardOutputEmpty) {
  const std::string json_path = dir_.path() + "/out.json", csv_path = dir_.path() + "/out.csv";
  EXPECT_EQ(Succeed({"summaries", dir_.path(), "--json", json_path, "--csv", csv_path, "--quiet"}),
            "");
  EXPECT_EQ(Lines(ReadBytes(csv_path)).size(), 4u);
  EXPECT_EQ(json::parse(ReadBytes(json_path))["recordings"].size(), 3u);
}

TEST_F(SummariesCommand, RefusesWrongUsage) {
  ExpectFailure({"summaries", dir_.path(), "--json", "-", "--csv", "-"}, 2, {"taken by --json"});
  ExpectFailure({"summaries", dir_.path(), "--precision", "fp16"}, 2, {"--precision", "mixed"});
  ExpectFailure({"summaries", dir_.path(), "--precision", "mixed", "--format", "fp16"}, 2,
                {"--precision"});
  ExpectFailure({"summaries", dir_.path(), "--format", "fp17"}, 2, {"fp17"});
  ExpectFailure({"summaries", dir_.path(), "--quantize"}, 2, {"--format"});
  ExpectFailure({"summaries", dir_.path(), "--tensorflow-histogram"}, 2, {"--json"});
  for (const char* scale : {"0", "-1", "1e39", "1e-60", "x"}) {
    ExpectFailure({"summaries", dir_.path(), "--scale", scale}, 2, {"--scale", scale});
  }
}

TEST_F(SummariesCommand, RefusesBadInputAndLeavesNoResult) {
  ExpectFailure({"summaries", dir_.path() + "/none"}, 3, {"none"});
  ExpectFailure({"summaries", dir_.path(), "--tensors", "x*"}, 3, {"no tensor matches"});
  dir_.Write("step-00000004.safetensors", "broken");
  const std::string path = dir_.path() + "/out.csv";
  ExpectFailure({"summaries", dir_.path(), "--csv", path}, 3, {"step-00000004"});
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace dlsim
