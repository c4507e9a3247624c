// SPDX-License-Identifier: Apache-2.0
// The finite tests against the outcomes of the stacks' own code (finite_tests.jsonl).
#include "sim/replay/finite_test.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

namespace dlsim::sim {
namespace {

using Json = nlohmann::json;

float FromHex(const Json& text) { return std::strtof(text.get<std::string>().c_str(), nullptr); }

// A step of tensors whose still scaled elements are given, measured by the definitions.
struct ScaledStep {
  std::vector<TensorRef> tensors;
  StepAnswer answers;

  void Add(const std::vector<float>& scaled, float scale) {
    TensorAnswer answer;
    answer.total.elements = scaled.size();
    double squares = 0;
    for (const float value : scaled) {
      const float unscaled = value * (1.0f / scale);
      if (!std::isfinite(value)) ++answer.total.nonfinite_outputs;
      answer.total.inf += std::isinf(value) ? 1 : 0;
      answer.total.nan += std::isnan(value) ? 1 : 0;
      squares += double{unscaled} * double{unscaled};
      answer.MakeRest().detail.scaled_sum += double{value};
      answer.MakeRest().detail.scaled_sum_of_squares += double{value} * double{value};
    }
    answer.MakeRest().converted_squares = squares;
    answer.scaled_sum_finite = answer.total.nonfinite_outputs == 0;
    answer.unscaled_finite = std::isfinite(squares);
    answers.push_back(std::move(answer));
    tensors.push_back(TensorInfo{.name = "t" + std::to_string(answers.size()), .shape = {}});
  }

  FiniteFindings JudgeAll() const {
    std::vector<size_t> all(answers.size());
    std::iota(all.begin(), all.end(), size_t{0});
    return Judge({tensors, {}}, answers, all);
  }
};

TEST(FiniteTests, AgreeWithTheStacks) {
  const std::pair<const char*, FiniteTest> columns[] = {
      {"cerebras_pytorch_norm_after_unscale (real code)", FiniteTest::kGlobalNorm},
      {"tf_global_norm_isfinite (transcribed: sqrt(2*sum(l2_loss)))", FiniteTest::kGlobalNorm},
      {"deepspeed_has_inf_or_nan_fp32_sum (real code)", FiniteTest::kSum},
      {"apex_amp_python_fp32_sum (real code)", FiniteTest::kSum},
      {"torch_elementwise_before_unscale (transcribed: any !isfinite(scaled grad))",
       FiniteTest::kElementwise}};
  std::ifstream file(DLSIM_TEST_DATA "/scalers/finite_tests.jsonl");
  size_t cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const Json golden = Json::parse(line);
    ScaledStep step;
    for (const Json& tensor : golden.at("grads")) {
      std::vector<float> values;
      for (const Json& value : tensor) values.push_back(FromHex(value));
      step.Add(values, FromHex(golden.at("scale")));
    }
    const FiniteFindings findings = step.JudgeAll();
    for (const auto& [column, test] : columns) {
      EXPECT_EQ(!IsFinite(test, findings), golden.at("overflow").at(column).get<bool>())
          << golden.at("test") << " " << column;
    }
  }
  EXPECT_EQ(cases, 24u);
}

ReplayStep Explained(FiniteTest test, const FiniteFindings& findings) {
  ReplayStep record;
  record.finite = IsFinite(test, findings);
  Explain(test, findings, record);
  return record;
}

TEST(FiniteTests, ExplainsEachCause) {
  ScaledStep sum;
  sum.Add({1}, 1);
  sum.Add({3e38f, 3e38f}, 1);
  const ReplayStep by_sum = Explained(FiniteTest::kSum, sum.JudgeAll());
  EXPECT_EQ(by_sum.cause, Cause::kSum);
  EXPECT_EQ(by_sum.cause_tensor, "t2");
  EXPECT_TRUE(by_sum.lower_scale_helps);
  const ReplayStep by_norm = Explained(FiniteTest::kGlobalNorm, sum.JudgeAll());
  EXPECT_EQ(by_norm.cause, Cause::kNorm);
  EXPECT_FALSE(by_norm.lower_scale_helps);
  const ReplayStep by_scaled_norm = Explained(FiniteTest::kScaledNorm, sum.JudgeAll());
  EXPECT_EQ(by_scaled_norm.cause, Cause::kNorm);
  EXPECT_TRUE(by_scaled_norm.lower_scale_helps);
  EXPECT_EQ(Explained(FiniteTest::kElementwise, sum.JudgeAll()).cause, Cause::kNone);
}

TEST(FiniteTests, ALowerScaleHelpsMicroStepsWhoseUnscaledSumIsFinite) {
  ScaledStep step;
  step.Add({1}, 1);
  step.answers[0].MakeRest().parts.resize(2);
  step.answers[0].scaled_sum_finite = false;
  const ReplayStep finite = Explained(FiniteTest::kElementwise, step.JudgeAll());
  EXPECT_EQ(finite.cause, Cause::kAccumulation);
  EXPECT_TRUE(finite.lower_scale_helps);
  step.answers[0].unscaled_finite = false;
  const ReplayStep infinite = Explained(FiniteTest::kElementwise, step.JudgeAll());
  EXPECT_EQ(infinite.cause, Cause::kAccumulation);
  EXPECT_FALSE(infinite.lower_scale_helps);
}

TEST(FiniteTests, UnscalingMayOverflowByItself) {
  ScaledStep step;
  step.Add({1e38f}, 0x1p-14f);
  EXPECT_TRUE(IsFinite(FiniteTest::kElementwise, step.JudgeAll()));
  const ReplayStep record = Explained(FiniteTest::kUnscaledElementwise, step.JudgeAll());
  EXPECT_FALSE(record.finite);
  EXPECT_EQ(record.cause, Cause::kUnscaling);
  EXPECT_FALSE(record.lower_scale_helps);
}

TEST(FiniteTests, SumsOverflowWhereFloat32RoundsToInfinity) {
  const float max = std::numeric_limits<float>::max();
  ASSERT_TRUE(std::isfinite(max + 0x1p102f));
  ASSERT_FALSE(std::isfinite(max + 0x1p103f));
  ScaledStep below;
  below.Add({max, 0x1p102f}, 1);
  EXPECT_TRUE(IsFinite(FiniteTest::kSum, below.JudgeAll()));
  ScaledStep above;
  above.Add({max, 0x1p103f}, 1);
  EXPECT_FALSE(IsFinite(FiniteTest::kSum, above.JudgeAll()));
  // Squares of the same sums: (2^64 - 2^40)^2 is 2^128 - 2^105 + 2^80.
  const float root = 0x1.fffffep63f;
  for (const FiniteTest test : {FiniteTest::kGlobalNorm, FiniteTest::kScaledNorm}) {
    ScaledStep step;
    step.Add({root, 0x1p52f, 0x1p51f}, 1);
    EXPECT_TRUE(IsFinite(test, step.JudgeAll()));
    step.Add({0x1p51f}, 1);
    EXPECT_FALSE(IsFinite(test, step.JudgeAll()));
  }
}

TEST(FiniteTests, DetailIsNeededOnlyForWideFormats) {
  for (const FiniteTest test : {FiniteTest::kSum, FiniteTest::kScaledNorm}) {
    EXPECT_FALSE(NeedsDetail(test, kFp16));
    EXPECT_FALSE(NeedsDetail(test, kCb16));
    EXPECT_TRUE(NeedsDetail(test, kBf16));
  }
  EXPECT_FALSE(NeedsDetail(FiniteTest::kGlobalNorm, kBf16));
}

}  // namespace
}  // namespace dlsim::sim
