// SPDX-License-Identifier: Apache-2.0
// The vector kernels of updates against the same text with one lane.
#include "sim/updates/update_kernel.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/support/on_target.h"

namespace dlsim::sim {
namespace {

// Sizes below, at and behind whole vectors of every width.
constexpr size_t kSizes[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 1000, 1024};

std::vector<StoredFormat> Formats() {
  std::vector<StoredFormat> formats = {std::nullopt};
  for (const FormatRow& row : kFormats) formats.emplace_back(ParseFormat(row.name));
  for (const char* name : {"e2m3", "e5m15", "e8m22"}) formats.emplace_back(ParseFormat(name));
  return formats;
}

std::string NameOfFormat(const StoredFormat& format) { return format ? format->name : "fp32"; }

// Ordinary values of all sizes; every eighth is special, or any float32 at all.
std::vector<float> Values(std::mt19937& random, size_t count) {
  constexpr float kSpecial[] = {0.0f,  -0.0f,    1e-45f,    1e-40f, 6e-8f,    65504.0f,
                                65520, INFINITY, -INFINITY, NAN,    3.39e38f, 1.0f};
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> log_size(-9, 3);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = normal(random) * std::pow(10.0f, log_size(random));
    if (random() % 8 != 0) continue;
    const auto draw = static_cast<uint32_t>(random());
    values[i] = draw % 2 == 0 ? kSpecial[draw / 2 % std::size(kSpecial)]
                              : std::bit_cast<float>(static_cast<uint32_t>(random()));
  }
  return values;
}

// Compares bits; NaN is NaN, whatever its sign and payload.
void ExpectSame(const std::vector<float>& expected, const std::vector<float>& found,
                const std::string& what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(found[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(found[i]))
        << what << ", element " << i << " of " << expected.size();
  }
}

// The arrays of a call: what is written past the end shows.
struct Elements {
  static constexpr size_t kPast = 16;

  Elements(std::mt19937& random, size_t elements)
      : count(elements),
        gradients(Values(random, elements)),
        before(Values(random, elements)),
        first(Values(random, elements + kPast)),
        second(Values(random, elements + kPast)),
        max_second(Values(random, elements + kPast)),
        after(elements + kPast, 7),
        steps(elements + kPast, 7) {
    for (float& value : second) value = std::fabs(value);
  }

  UpdateArrays arrays() {
    return {gradients.data(), before.data(), after.data(),      steps.data(),
            first.data(),     second.data(), max_second.data(), count};
  }

  size_t count;
  std::vector<float> gradients, before, first, second, max_second, after, steps;
};

void ExpectSame(const Elements& expected, const Elements& found, const std::string& what) {
  ExpectSame(expected.after, found.after, what + ": weights");
  ExpectSame(expected.steps, found.steps, what + ": steps");
  ExpectSame(expected.first, found.first, what + ": first");
  ExpectSame(expected.second, found.second, what + ": second");
  ExpectSame(expected.max_second, found.max_second, what + ": largest second");
}

struct Case {
  std::string name;
  OptimizerSettings settings;
  bool fused = false;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, OptimizerKind kind) -> OptimizerSettings& {
    OptimizerSettings s;
    s.kind = kind;
    s.lr = 1e-2;
    s.eps = 1e-4;
    s.decoupled = kind != OptimizerKind::kAdam && kind != OptimizerKind::kSgd;
    return cases.emplace_back(Case{name, s}).settings;
  };
  add("adamw", OptimizerKind::kAdamW).weight_decay = 0.1;
  add("amsgrad", OptimizerKind::kAdamW).amsgrad = true;
  OptimizerSettings& ascending = add("adam with L2, ascending", OptimizerKind::kAdam);
  ascending.weight_decay = 0.01;
  ascending.maximize = true;
  ascending.beta1 = 0.3;
  for (const bool fused : {false, true}) {
    add("adamw on CUDA", OptimizerKind::kAdamW).device = UpdateDevice::kCuda;
    cases.back().settings.weight_decay = 0.1;
    cases.back().fused = fused;
  }
  add("sgd", OptimizerKind::kSgd).weight_decay = 1e-3;
  add("momentum", OptimizerKind::kSgd).momentum = 0.9;
  OptimizerSettings& nesterov = add("nesterov", OptimizerKind::kSgd);
  nesterov.momentum = 0.8;
  nesterov.nesterov = true;
  add("lion", OptimizerKind::kLion).weight_decay = 0.1;
  add("adafactor", OptimizerKind::kAdafactor).weight_decay = 0.1;
  return cases;
}

void CompareWithReference(const Case& how, const StoredFormat& format, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(count));
  const std::string what = how.name + " in " + NameOfFormat(format) + " on " + CurrentSimdTarget();
  Elements expected(random, count);
  Elements found = expected;
  for (uint64_t update = 1; update <= 3; ++update) {
    UpdateFactors factors =
        MakeUpdateFactors(how.settings, {format, update, update > 1, 1e-3, how.fused});
    if (auto* adafactor = std::get_if<AdafactorFactors>(&factors)) adafactor->step = -1e-3f;
    UpdateElementsReference(factors, format, expected.arrays());
    UpdateElements(factors, format, found.arrays());
    ExpectSame(expected, found, what);
    const WantedChange wanted = WantedBy(factors);
    MovedWeights moved = {
        found.before.data(), found.after.data(), nullptr, nullptr, found.steps.data(), count};
    EXPECT_EQ(CountUpdates(wanted, moved), CountUpdatesReference(wanted, moved)) << what;
    moved.owed = found.first.data();
    moved.owing = found.second.data();
    EXPECT_EQ(CountUpdates(wanted, moved), CountUpdatesReference(wanted, moved)) << what;
    expected.gradients = found.gradients = Values(random, count);
    std::copy_n(found.after.begin(), count, found.before.begin());
    expected.before = found.before;
  }
}

using UpdatesOnTarget = OnTarget;

TEST_P(UpdatesOnTarget, GivesTheBitsOfOneLane) {
  for (const Case& how : Cases()) {
    for (const StoredFormat& format : Formats()) {
      for (const size_t count : kSizes) CompareWithReference(how, format, count);
    }
  }
}

// An SGD that adds the gradient to -0 stores what it rounds to.
TEST_P(UpdatesOnTarget, RoundsAsTheCodecDoes) {
  SgdFactors factors;
  factors.step = 1;
  for (const StoredFormat& format : Formats()) {
    std::mt19937 random(5);
    Elements elements(random, 4099);
    for (float& value : elements.gradients) {
      value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    }
    elements.before.assign(elements.count, -0.0f);
    UpdateElements(factors, format, elements.arrays());
    std::vector<float> expected;
    for (const float value : elements.gradients) expected.push_back(StoredIn(format, value));
    ExpectSame(expected, elements.after, NameOfFormat(format) + " on " + GetParam());
  }
}

TEST_P(UpdatesOnTarget, CountsWhatIsLostAndAltered) {
  // Wanted: 1, 1, 1, 1, 1, nothing, infinity, NaN.
  const std::vector<float> steps = {1, 1, 1, 1, 1, 0, INFINITY, NAN};
  const std::vector<float> before(steps.size(), 1);
  const std::vector<float> after = {1, 2, 1.5f, 1.25f, 2.75f, 5, 5, 5};
  const MovedWeights moved = {before.data(), after.data(), nullptr,
                              nullptr,       steps.data(), steps.size()};
  EXPECT_EQ(CountUpdatesReference({}, moved), (UpdateCounts{5, 1, 2}));
  EXPECT_EQ(CountUpdates({}, moved), (UpdateCounts{5, 1, 2}));
}

INSTANTIATE_TEST_SUITE_P(Targets, UpdatesOnTarget, testing::ValuesIn(SupportedSimdTargets()));

}  // namespace
}  // namespace dlsim::sim
