// SPDX-License-Identifier: Apache-2.0
// Forward tensors at the edges of formats, masks and constants, and what each recipe counts.
#include "sim/advice/windows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/sim/step.h"
#include "dlsim/step_tables.h"
#include "sim/replay/layer_name.h"

namespace dlsim::sim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

struct Recorded {
  std::string name;
  std::vector<float> values;
};

// Adds a step of these tensors.
void AddStep(int64_t number, const std::vector<Recorded>& tensors, ForwardTally& tally,
             const std::set<std::string>& float32 = {}) {
  Recording recording;
  for (const Recorded& recorded : tensors) {
    const Role role = recorded.name.ends_with(".value") ? Role::kValue : Role::kAct;
    const uint64_t elements = recorded.values.size();
    recording.tensors.push_back({.info = TensorInfo{recorded.name, role, DType::kF32, {elements}},
                                 .elements = elements,
                                 .memory = std::as_bytes(std::span(recorded.values)).data()});
  }
  const auto recorded = std::make_shared<TraceStep>(TraceStep{number, {std::move(recording)}});
  tally.Add(Step(TabulateStep(*recorded, {}), recorded, {}), {float32, {}});
}

ForwardVerdict VerdictOnValues(const std::string& format, const std::vector<float>& values,
                               const Conversion& modes = {}) {
  Conversion conversion = modes;
  conversion.format = ParseFormat(format).format;
  ForwardTally tally(conversion, Recipe::kAutocast);
  AddStep(0, {{"a.act", values}}, tally);
  return tally.VerdictOn(Role::kAct);
}

bool Overflows(const std::string& format, float value, const Conversion& modes = {}) {
  return VerdictOnValues(format, {1, value, -2}, modes).state == ForwardState::kOverflows;
}

TEST(LayerName, OperationsBelongToTheirModule) {
  for (const char* name : {"a.b.act", "a.b/matmul.act", "a.b/matmul.call1.act_grad", "a.b.act_grad",
                           "a.b.weight.grad", "a.b.weight.value"}) {
    EXPECT_EQ(LayerOf(name), "a.b") << name;
  }
  EXPECT_EQ(LayerOf("scale.grad"), "scale");
}

TEST(ForwardTally, OverflowsWhereTheFormatRoundsToInfinity) {
  EXPECT_FALSE(Overflows("fp16", 65504));
  EXPECT_FALSE(Overflows("fp16", std::nextafter(65520.0f, 0.0f)));  // rounds down to 65504
  EXPECT_TRUE(Overflows("fp16", 65520));                            // a tie, to the even infinity
  EXPECT_TRUE(Overflows("fp16", -65520));
  EXPECT_FALSE(Overflows("bf16", 0x1.fefffep+127f));
  EXPECT_TRUE(Overflows("bf16", 0x1.ffp+127f));
  EXPECT_TRUE(Overflows("bf16", -kLargest));
  EXPECT_FALSE(Overflows("cb16", 0x1.ffbffep+31f));
  EXPECT_TRUE(Overflows("cb16", 0x1.ffcp+31f));
  EXPECT_FALSE(Overflows("fp8-e4m3", 464));  // a tie, to the even 448
  EXPECT_TRUE(Overflows("fp8-e4m3", std::nextafter(464.0f, 1e9f)));
  EXPECT_FALSE(Overflows("fp8-e5m2", std::nextafter(61440.0f, 0.0f)));
  EXPECT_TRUE(Overflows("fp8-e5m2", 61440));
}

// In every format, as the codec itself rounds.
TEST(ForwardTally, AgreesWithTheCodecAroundTheLargestValue) {
  for (const FormatRow& row : kFormats) {
    const Conversion conversion = {row.format};
    const CodecSpec spec = MakeCodecSpec(conversion);
    float value = static_cast<float>(MaxFinite(row.format));
    const float last = kLargest;
    for (const double factor : {1.0, 1.01, 1.03, 1.0625, 1.07, 1.2}) {
      value = static_cast<float>(std::fmin(MaxFinite(row.format) * factor, last));
      const bool encoded =
          Encode(spec, conversion.rounding, std::bit_cast<uint32_t>(value)).overflows;
      EXPECT_EQ(Overflows(std::string(row.name), value), encoded) << row.name << " " << value;
    }
  }
}

TEST(ForwardTally, ClampedValuesOverflow) {
  EXPECT_TRUE(Overflows("fp16", 65520, {.format = {}, .overflow = Overflow::kSaturate}));
  EXPECT_FALSE(Overflows("fp16", 65519, {.format = {}, .overflow = Overflow::kSaturate}));
  EXPECT_FALSE(Overflows("fp16", 65535, {.format = {}, .rounding = Rounding::kTowardZero}));
  EXPECT_TRUE(Overflows("fp16", 65536, {.format = {}, .rounding = Rounding::kTowardZero}));
}

TEST(ForwardTally, HeadroomIsInBinadesBelowTheLargestValue) {
  EXPECT_DOUBLE_EQ(*VerdictOnValues("fp16", {65504.0f / 8}).headroom, 3);
  EXPECT_DOUBLE_EQ(*VerdictOnValues("fp16", {-65504}).headroom, 0);
  EXPECT_DOUBLE_EQ(*VerdictOnValues("fp16", {65510}).headroom, 0);  // fits, as it rounds down
  EXPECT_DOUBLE_EQ(*VerdictOnValues("fp16", {2 * 65504}).headroom, -1);
  EXPECT_EQ(VerdictOnValues("fp16", {0, 0}).headroom, std::numeric_limits<double>::infinity());
  EXPECT_FALSE(ForwardTally({kFp16}, Recipe::kHalf).VerdictOn(Role::kAct).headroom);
}

TEST(ForwardTally, NothingRecordedIsNotThatAllFits) {
  const ForwardTally tally({kFp16}, Recipe::kAutocast);
  EXPECT_EQ(tally.VerdictOn(Role::kAct).state, ForwardState::kNotRecorded);
  EXPECT_EQ(tally.VerdictOn(Role::kValue).state, ForwardState::kNotRecorded);
}

TEST(ForwardTally, NamesTheFirstAndAllThatOverflow) {
  ForwardTally tally({kFp16}, Recipe::kAutocast);
  AddStep(3, {{"a.act", {10}}, {"b.act", {60000}}}, tally);
  AddStep(5, {{"a.act", {20}}, {"b.act", {70000}}}, tally);
  AddStep(7, {{"a.act", {1e5f}}, {"b.act", {9e4f}}}, tally);
  const ForwardVerdict verdict = tally.VerdictOn(Role::kAct);
  EXPECT_EQ(verdict.state, ForwardState::kOverflows);
  EXPECT_EQ(verdict.steps, 3u);
  EXPECT_EQ(verdict.absmax, 1e5f);
  const std::vector<const ForwardTensor*> overflowing = verdict.Overflowing();
  ASSERT_EQ(overflowing.size(), 2u);
  EXPECT_EQ(overflowing[0]->name, "b.act");
  EXPECT_EQ(overflowing[0]->overflow_step, 5);
  EXPECT_EQ(overflowing[0]->overflow_absmax, 70000);
  EXPECT_EQ(overflowing[0]->absmax, 9e4f);
  EXPECT_EQ(overflowing[1]->name, "a.act");
  EXPECT_EQ(overflowing[1]->overflow_step, 7);
}

TEST(ForwardTally, RolesAreApart) {
  ForwardTally tally({kFp16}, Recipe::kHalf);
  AddStep(0, {{"a.act", {1}}, {"a.weight.value", {7e4f}}}, tally);
  AddStep(1, {{"a.act", {2}}}, tally);
  EXPECT_EQ(tally.VerdictOn(Role::kAct).state, ForwardState::kFits);
  EXPECT_EQ(tally.VerdictOn(Role::kAct).steps, 2u);
  EXPECT_EQ(tally.VerdictOn(Role::kValue).state, ForwardState::kOverflows);
  EXPECT_EQ(tally.VerdictOn(Role::kValue).steps, 1u);
}

TEST(ForwardTally, InfiniteAsRecordedIsDistinguished) {
  ForwardTally tally({kFp16}, Recipe::kAutocast);
  AddStep(0, {{"mask.act", {-kInfinity, 0, -kInfinity}}}, tally);
  AddStep(1, {{"mask.act", {-kInfinity, 3, std::nanf("")}}}, tally);
  const ForwardVerdict verdict = tally.VerdictOn(Role::kAct);
  EXPECT_EQ(verdict.state, ForwardState::kFits);
  EXPECT_EQ(verdict.absmax, 3);
  EXPECT_EQ(verdict.tensors.front().inf, 3u);
  EXPECT_EQ(verdict.tensors.front().nan, 1u);
  EXPECT_EQ(verdict.tensors.front().nonfinite_step, 0);
}

TEST(ForwardTally, NamesAConstantOfMasks) {
  const auto constant = [](const std::string& format, const std::vector<float>& values) {
    const ForwardVerdict verdict = VerdictOnValues(format, values);
    EXPECT_EQ(verdict.state, ForwardState::kOverflows);
    return verdict.tensors.front().constant;
  };
  EXPECT_TRUE(constant("fp16", {-1e9f, 0, -1e9f, 3.5f}));  // among scores
  EXPECT_TRUE(constant("fp16", {-1e9f}));                  // alone
  EXPECT_TRUE(constant("fp16", {0, -1e9f, 0, 0}));
  EXPECT_FALSE(constant("fp16", {1e9f, 0, 1e9f}));    // no mask is positive
  EXPECT_FALSE(constant("fp16", {-1e9f, 2, 3}));      // one outlier among others
  EXPECT_FALSE(constant("fp16", {-1e9f, -2e9f, 3}));  // not one value
  EXPECT_FALSE(constant("fp16", {-1e9f, 1e9f}));      // nor of one sign
  // More values than a table lists.
  EXPECT_TRUE(constant("fp16", std::vector<float>(600, -1e9f)));
  EXPECT_FALSE(constant("fp16", std::vector<float>(600, 1e9f)));
  EXPECT_FALSE(constant("fp8-e4m3", {-500, 1, -500, 3}));  // no mask is so small
}

TEST(ForwardTally, TheLowestValueOfFloat32HidesScores) {
  const ForwardVerdict verdict = VerdictOnValues("fp16", {-kLargest, 0, -kLargest, 1});
  EXPECT_EQ(verdict.state, ForwardState::kFits);
  EXPECT_FALSE(verdict.tensors.front().hides_scores);  // in 16 bits it is another value
  EXPECT_FALSE(verdict.tensors.front().constant);
}

TEST(ForwardTally, RecipesCountWhatTheyHoldIn16Bits) {
  const std::vector<Recorded> step = {
      {"norm.act", {1e6f}}, {"fc.act", {5}}, {"norm.weight.value", {1e5f}}};
  const std::set<std::string> float32 = {"norm.act", "norm.weight.value", "not.recorded.act"};
  ForwardTally autocast({kFp16}, Recipe::kAutocast), half({kFp16}, Recipe::kHalf);
  AddStep(0, step, autocast, float32);
  AddStep(0, step, half, float32);
  const ForwardVerdict verdict = autocast.VerdictOn(Role::kAct);
  EXPECT_EQ(verdict.state, ForwardState::kFits);
  EXPECT_EQ(verdict.absmax, 5);
  EXPECT_EQ(verdict.kept_in_float32, std::vector<std::string>{"norm.act"});
  EXPECT_EQ(autocast.VerdictOn(Role::kValue).state, ForwardState::kFits);
  EXPECT_EQ(half.VerdictOn(Role::kAct).state, ForwardState::kOverflows);
  EXPECT_EQ(half.VerdictOn(Role::kValue).state, ForwardState::kOverflows);
  EXPECT_TRUE(half.VerdictOn(Role::kAct).kept_in_float32.empty());
}

TEST(ForwardTally, KnowsWhatUnderflowTakes) {
  ForwardTally tally({kFp16}, Recipe::kAutocast);
  AddStep(0, {{"a.act", {1, 1e-9f}}}, tally);
  AddStep(4, {{"a.act", {1e-9f, 1e-9f}}}, tally);
  AddStep(6, {{"a.act", {1e-9f, 1e-9f}}}, tally);
  const ForwardTensor tensor = tally.VerdictOn(Role::kAct).tensors.front();
  EXPECT_EQ(tensor.energy_lost, 1);
  EXPECT_EQ(tensor.energy_lost_step, 4);
}

}  // namespace
}  // namespace dlsim::sim
