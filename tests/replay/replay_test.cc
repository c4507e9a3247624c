// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/measure.h"
#include "dlsim/sim/policies.h"
#include "sim/policies/policy.h"
#include "sim/replay/simulation.h"
#include "sim/replay/step_sources.h"
#include "tests/support/small_replay.h"
#include "tests/support/special_values.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"
#include "tests/support/trace_test_util.h"
#include "tests/support/wanted_threads_for.h"

namespace dlsim::sim {
namespace {

void Print(const TensorStats& s, std::ostream& out) {
  ForEachCounter([&](auto row) {
    if constexpr (row.kIsMember) out << s.*row.kRow.of << ' ';
  });
  out << '\n';
}

// Every field of a result; floating-point numbers by their bits.
std::string AllFields(const ReplayResult& result) {
  std::ostringstream out;
  out << std::hexfloat;
  for (const ReplayStep& step : result.steps) {
    out << step.step << ' ' << step.scale << ' ' << step.next_scale << ' ' << step.finite
        << step.skipped << ' ' << step.grad_norm.value_or(-1) << ' ' << NameOf(step.cause) << ' '
        << step.cause_tensor << '\n';
    Print(step.gradients, out);
    Print(step.activations, out);
  }
  for (const ReplayTensor& tensor : result.tensors) {
    out << tensor.name << ' ' << NameOf(tensor.role) << ' '
        << tensor.first_overflow_step.value_or(-1) << ' ';
    Print(tensor.stats, out);
  }
  for (const ScalerEvent& event : result.events) {
    out << event.step << ' ' << event.type << ' ' << event.message << ' ' << event.fatal << '\n';
  }
  out << result.stopped_at.value_or(-1);
  return out.str();
}

// What a run goes through, without what its steps count.
std::string PathOf(const ReplayResult& result) {
  std::ostringstream out;
  out << std::hexfloat;
  for (const ReplayStep& step : result.steps) {
    out << step.step << ' ' << step.scale << ' ' << step.next_scale << ' ' << step.finite
        << step.skipped << ' ' << step.harm.mean << ' ' << step.harm.worst_tensor << ' '
        << step.activation_harm.mean << ' ' << step.activations.nonfinite_outputs << '\n';
  }
  for (const ScalerEvent& event : result.events) out << event.step << ' ' << event.type << '\n';
  return out.str();
}

std::vector<std::string> AllFields(const std::vector<ReplayResult>& results) {
  std::vector<std::string> texts;
  for (const ReplayResult& result : results) texts.push_back(AllFields(result));
  return texts;
}

// All policies in several formats, rounded in this way.
std::vector<ReplayRun> ManyRuns(Rounding rounding = Rounding::kNearestEven) {
  SimulationRequest request = {.formats = {"fp16", "bf16", "cb16", "fp8-e4m3"},
                               .policies = {},
                               .settings = {},
                               .conversion = {},
                               .finite_test = {}};
  request.conversion.rounding = rounding;
  for (const PolicyInfo& policy : Policies()) request.policies.emplace_back(policy.name);
  std::vector<ReplayRun> runs;
  for (const SimulationRun& run : PrepareRuns(request)) {
    EXPECT_TRUE(run.start) << run.policy;
    runs.push_back(*run.start);
  }
  return runs;
}

// The float32 value that one element becomes: scale, encode, decode, unscale.
float Quantize(const Conversion& conversion, float scale, float value) {
  const CodecSpec spec = MakeCodecSpec(conversion);
  const uint32_t bits = std::bit_cast<uint32_t>(value * scale);
  const uint32_t code = Encode(spec, conversion.rounding, bits, 0).code;
  return std::bit_cast<float>(Decode(spec, code)) * (1.0f / scale);
}

// The documented order of sums (measure.h) for at most one chunk.
double SumOfSquares(const std::vector<float>& values) {
  double lanes[kSumLanes] = {};
  for (size_t i = 0; i < values.size(); ++i) {
    lanes[i % kSumLanes] += double{values[i]} * double{values[i]};
  }
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Magnitudes around the ends of fp16, both signs, some zeros.
std::vector<float> RandomValues(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const int exponent = static_cast<int>(random() % 40) - 32;
    const float mantissa = static_cast<float>(random() >> 8) * 0x1p-24f + 1;
    value = random() % 16 == 0 ? 0.0f : std::ldexp(random() % 2 ? mantissa : -mantissa, exponent);
  }
  return values;
}

class ReplayTest : public TraceDirectoryTest {
 protected:
  void WriteTensors(const std::string& file, const std::vector<BuiltTensor>& tensors,
                    const nlohmann::ordered_json& metadata = {}) {
    dir_.Write(file, BuildSafetensors(tensors, metadata));
  }

  // Several steps of several blocks, odd sizes, micro-steps and activation gradients.
  void WriteBlocks() {
    for (const char* file : {"step-1.micro-0", "step-1.micro-1", "step-2"}) {
      const uint32_t seed = static_cast<uint32_t>(file[5]) + static_cast<uint32_t>(*(file + 6));
      WriteTensors(std::string(file) + ".safetensors",
                   {FloatTensor("a.grad", RandomValues(70'001, seed)),
                    FloatTensor("b.grad", RandomValues(65'536, seed + 1)),
                    FloatTensor("c.act_grad", RandomValues(5'003, seed + 2))});
    }
  }

  ReplayResult RunOne(const ReplayRun& run, const ReplayOptions& options = {}) {
    return Replay(TraceSteps(Open()), {run}, options).front();
  }
};

TEST_F(ReplayTest, OnePassEqualsSeparateReplays) {
  for (const char* name : {"lm-kjv-accum-cut", "lm-trouble-cut", "reg-diabetes-cut"}) {
    const TraceReader trace = OpenTrace({kTraces + name});
    const std::vector<ReplayRun> runs = ManyRuns();
    const std::vector<ReplayResult> together = Replay(TraceSteps(trace), runs, {});
    ASSERT_EQ(together.size(), runs.size());
    for (size_t i = 0; i < runs.size(); ++i) {
      const ReplayResult alone = Replay(TraceSteps(trace), {runs[i]}, {}).front();
      EXPECT_EQ(alone.steps.size(), trace.step_count());
      EXPECT_TRUE(AllFields(alone) == AllFields(together[i]))
          << name << " " << runs[i].format << " " << runs[i].policy;
    }
  }
}

TEST_F(ReplayTest, ThreadsAndSimdTargetsGiveTheSameBits) {
  WriteBlocks();
  for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
    const auto replay = [&] {
      return AllFields(Replay(TraceSteps(Open()), ManyRuns(rounding), {}));
    };
    const std::vector<std::string> expected = replay();
    for (const std::string& target : SupportedSimdTargets()) {
      UseSimdTarget(target);
      EXPECT_TRUE(replay() == expected) << target;
    }
    UseSimdTarget("");
    for (const int count : {1, 2, 3, 8}) {
      const WantedThreadsFor wanted(count);
      EXPECT_TRUE(replay() == expected) << count << " threads";
    }
  }
}

// Elements that overflow, norms that do, alone and in micro-steps.
TEST_F(ReplayTest, RunsGoTheSameWayWithoutRecordsOfTensors) {
  WriteBlocks();
  std::vector<float> infinite = RandomValues(8'003, 1);
  infinite[17] = HUGE_VALF;
  WriteTensors("step-3.safetensors", {FloatTensor("a.grad", infinite)});
  for (const int exponent : {20, 62, 66, 120}) {
    std::vector<float> large = RandomValues(8'003, 1);
    large[17] = std::ldexp(1.0f, exponent);
    WriteTensors("step-" + std::to_string(exponent) + ".safetensors",
                 {FloatTensor("a.grad", large), FloatTensor("c.act_grad", infinite)});
  }
  std::vector<ReplayRun> runs = ManyRuns();
  const std::vector<ReplayResult> expected = Replay(TraceSteps(Open()), runs, {});
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].tensor_records = TensorRecords::kDropped;
    EXPECT_EQ(PathOf(RunOne(runs[i])), PathOf(expected[i]))
        << runs[i].format << " " << runs[i].policy;
  }
}

TEST_F(ReplayTest, HarmOverTensorsNeedsNoRecordsOfThem) {
  WriteBlocks();
  std::vector<ReplayRun> runs = ManyRuns();
  const std::vector<ReplayResult> kept = Replay(TraceSteps(Open()), runs, {});
  for (ReplayRun& run : runs) run.tensor_records = TensorRecords::kHarm;
  const std::vector<ReplayResult> summed = Replay(TraceSteps(Open()), runs, {});
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string run = runs[i].format + " " + runs[i].policy;
    EXPECT_TRUE(summed[i].tensors.empty());
    EXPECT_EQ(PathOf(summed[i]), PathOf(kept[i])) << run;
    const HarmOverSteps &a = summed[i].summary.tensor_harm, &b = kept[i].summary.tensor_harm;
    EXPECT_EQ(a.sum, b.sum) << run;
    EXPECT_EQ(a.worst, b.worst) << run;
    EXPECT_EQ(a.steps, b.steps) << run;
    HarmOverSteps expected;
    for (const ReplayTensor& tensor : kept[i].tensors) {
      if (tensor.harm.steps > 0 && !tensor.noise()) expected.Add(tensor.harm.mean());
    }
    EXPECT_EQ(a.sum, expected.sum) << run;
    EXPECT_EQ(a.steps, expected.steps) << run;
  }
  EXPECT_GT(kept.front().summary.tensor_harm.steps, 0u);
}

// The files of a trace that are open.
size_t CountOpen(const std::string& in_path) {
  size_t open = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    open +=
        std::filesystem::read_symlink(entry, closed).string().find(in_path) != std::string::npos;
  }
  return open;
}

// Next to the step that is taken, the one before, whose questions the next will be asked.
TEST_F(ReplayTest, OpensTheNextStepOnlyIfMemoryHoldsIt) {
  constexpr uint32_t kSteps = 6;
  for (uint32_t i = 0; i < kSteps; ++i) {
    WriteTensors("step-" + std::to_string(i) + ".safetensors",
                 {FloatTensor("a.grad", RandomValues(100, i))});
  }
  ReplayOptions options;
  std::vector<size_t> open;
  options.observer = [&](const ObservedStep&) { open.push_back(CountOpen("step-")); };
  options.step.memory_bytes = 1;
  const std::string alone = AllFields(RunOne(ManyRuns().front(), options));
  ASSERT_EQ(open.size(), kSteps);
  EXPECT_LE(std::ranges::max(open), 2u);
  options.step.memory_bytes = kDefaultMemoryBytes;
  EXPECT_EQ(AllFields(RunOne(ManyRuns().front(), options)), alone);
}

// Each step once, and while the one before is taken where one thread does not open several.
TEST_F(ReplayTest, StepsAreReadAhead) {
  constexpr size_t kSteps = 8;
  for (const bool small : {false, true}) {
    StepTables tables;
    tables.parts.resize(1);
    StepSource source = HeldSteps(std::vector<StepTables>(kSteps, tables));
    std::mutex mutex;
    std::vector<size_t> ahead;
    source.small_steps = small;
    source.read_ahead = [&](size_t i) {
      const std::lock_guard lock(mutex);
      ahead.push_back(i);
    };
    size_t taken = 0;
    ForEachStep(source, {}, [&](size_t i, Step&) {
      EXPECT_EQ(i, taken++);
      if (!small) {
        EXPECT_EQ(ahead.size(), std::min(i + 1, kSteps - 1));
      }
      return true;
    });
    EXPECT_EQ(taken, kSteps);
    std::ranges::sort(ahead);
    EXPECT_EQ(std::ranges::adjacent_find(ahead), ahead.end());
    EXPECT_TRUE(ahead.empty() || ahead.back() < kSteps);
  }
}

// Small steps, at which scales change: some of what is measured ahead was not asked.
class StepsAheadTest : public ReplayTest {
 protected:
  static constexpr int kSteps = 24;

  StepsAheadTest() {
    for (uint32_t i = 0; i < kSteps; ++i) {
      std::vector<float> values = RandomValues(8'003, i);
      if (i % 7 == 3) values[i] = 0x1p70f;
      if (i == 17) values[i] = HUGE_VALF;
      std::vector<BuiltTensor> tensors = {FloatTensor("a.grad", values),
                                          FloatTensor("b.grad", RandomValues(4'001, i + 100))};
      if (i >= 20) tensors.pop_back();
      WriteTensors(FileOf(i), tensors);
    }
  }

  static std::string FileOf(uint32_t step) {
    return "step-" + std::to_string(100 + step) + ".safetensors";
  }
};

TEST_F(StepsAheadTest, GiveTheSameBits) {
  ReplayOptions options;
  for (const OnFatal on_fatal : {OnFatal::kContinue, OnFatal::kStop}) {
    options.on_fatal = on_fatal;
    std::vector<std::pair<size_t, size_t>> order;  // of steps and runs
    options.observer = [&](const ObservedStep& step) {
      for (const ObservedStep::Run& run : step.runs) order.emplace_back(step.index, run.index);
    };
    const auto replay = [&](int threads) {
      const WantedThreadsFor wanted(threads);
      order.clear();
      return AllFields(Replay(TraceSteps(Open()), ManyRuns(), options));
    };
    const std::vector<std::string> expected = replay(1);
    const std::vector<std::pair<size_t, size_t>> expected_order = order;
    EXPECT_EQ(order.front(), std::pair(size_t{0}, size_t{0}));
    EXPECT_EQ(order.back().first, size_t{kSteps - 1});
    // By the memory one step and question at a time, a few, and as many as there may be.
    for (const auto& [threads, memory] : {std::pair{8, uint64_t{1}},
                                          {3, uint64_t{8} << 20},
                                          {2, kDefaultMemoryBytes},
                                          {8, kDefaultMemoryBytes}}) {
      options.step.memory_bytes = memory;
      EXPECT_TRUE(replay(threads) == expected) << threads << " threads, " << memory;
      EXPECT_EQ(order, expected_order);
    }
  }
}

TEST_F(StepsAheadTest, FailAtTheirTurn) {
  dir_.Write(FileOf(12), "no tensors");
  dir_.Write(FileOf(13), "nor here");
  ReplayOptions options;
  for (const int threads : {1, 3}) {
    const WantedThreadsFor wanted(threads);
    size_t steps = 0;
    options.observer = [&](const ObservedStep&) { ++steps; };
    try {
      Replay(TraceSteps(Open()), ManyRuns(), options);
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(FileOf(12)), std::string::npos) << error.what();
    }
    EXPECT_EQ(steps, 12u) << threads << " threads";
  }
}

// Writes three micro-steps of small values, and returns the values of each.
std::vector<std::vector<float>> WriteMicroSteps(const TempDir& dir) {
  std::vector<std::vector<float>> parts;
  for (uint32_t micro = 0; micro < 3; ++micro) {
    std::vector<float>& values = parts.emplace_back(RandomValues(1000, micro));
    for (float& value : values) value *= 0x1p-30f;
    dir.Write("step-7.micro-" + std::to_string(micro) + ".safetensors",
              BuildSafetensors({FloatTensor("w.grad", values)}));
  }
  return parts;
}

TEST_F(ReplayTest, QuantizesEachMicroStepAndSums) {
  constexpr float kScale = 2e15f;
  const std::vector<std::vector<float>> parts = WriteMicroSteps(dir_);
  std::vector<float> sums(1000), converted(1000);
  double sum_of_squares = 0;
  uint64_t zeros = 0;
  for (const std::vector<float>& values : parts) {
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += values[i];
      converted[i] += Quantize({kCb16}, kScale, values[i]);
      zeros += values[i] == 0 ? 1 : 0;
    }
    sum_of_squares += SumOfSquares(values);
  }
  ReplayRun run = StaticRun(kCb16, kScale);
  const ReplayStep step = RunOne(run).steps[0];
  EXPECT_DOUBLE_EQ(*step.grad_norm, std::sqrt(SumOfSquares(sums)));
  EXPECT_EQ(step.converted_norm, std::nullopt);
  EXPECT_EQ(step.gradients.elements, 3 * sums.size());
  EXPECT_EQ(step.gradients.zeros, zeros);
  EXPECT_DOUBLE_EQ(step.gradients.sum_of_squares, sum_of_squares);
  run.clipping.max_norm = 1;
  EXPECT_EQ(RunOne(run).steps[0].converted_norm, std::sqrt(SumOfSquares(converted)));
}

TEST_F(ReplayTest, SumsMicroStepsAndQuantizesOnce) {
  constexpr float kScale = 2e15f;
  std::vector<float> sums(1000);
  for (const std::vector<float>& values : WriteMicroSteps(dir_)) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
  std::vector<float> converted;
  for (const float sum : sums) converted.push_back(Quantize({kCb16}, kScale, sum));
  ReplayOptions options;
  options.step.accumulation = Accumulation::kSumThenQuantize;
  options.observer = [](const ObservedStep& step) {
    EXPECT_EQ(step.step.tables().micro_steps, std::vector<int64_t>{-1});
  };
  ReplayRun run = StaticRun(kCb16, kScale);
  const ReplayStep step = RunOne(run, options).steps[0];
  EXPECT_DOUBLE_EQ(*step.grad_norm, std::sqrt(SumOfSquares(sums)));
  EXPECT_EQ(step.gradients.elements, sums.size());
  EXPECT_DOUBLE_EQ(step.gradients.sum_of_squares, SumOfSquares(sums));
  run.clipping.max_norm = 1;
  EXPECT_EQ(RunOne(run, options).steps[0].converted_norm, std::sqrt(SumOfSquares(converted)));
}

TEST_F(ReplayTest, ActivationGradientsDecideOnlyWhenAsked) {
  WriteTensors("step-0.safetensors",
               {FloatTensor("w.grad", {1, 2}), FloatTensor("x.act_grad", {kInf, 1e-9f, 0})});
  for (const FiniteTest test : {FiniteTest::kElementwise, FiniteTest::kGlobalNorm}) {
    const ReplayStep step = RunOne(StaticRun(kFp16, 1, {.finite_test = test})).steps[0];
    EXPECT_TRUE(step.finite);
    EXPECT_EQ(step.cause, Cause::kNone);
    EXPECT_EQ(step.grad_norm, std::sqrt(5.0));
    EXPECT_EQ(step.gradients.elements, 2u);
    EXPECT_EQ(step.activations.elements, 3u);
    EXPECT_EQ(step.activations.inf, 1u);
    EXPECT_EQ(step.activations.underflow, 1u);
    ReplayOptions all;
    all.checked = Checked::kAllGradients;
    const ReplayStep checked = RunOne(StaticRun(kFp16, 1, {.finite_test = test}), all).steps[0];
    EXPECT_FALSE(checked.finite);
    EXPECT_EQ(checked.cause, Cause::kInput);
    EXPECT_EQ(checked.cause_tensor, "x.act_grad");
    EXPECT_EQ(checked.grad_norm, std::sqrt(5.0));
  }
}

TEST_F(ReplayTest, BlamesAnInputThatIsNotFinite) {
  WriteTensors("step-0.safetensors", {FloatTensor("a", {1e30f}), FloatTensor("b", {kQuietNan}),
                                      FloatTensor("c", {kInf})});
  const ReplayStep step = RunOne(StaticRun(kFp16)).steps[0];
  EXPECT_FALSE(step.finite);
  EXPECT_EQ(step.cause, Cause::kInput);
  EXPECT_EQ(step.cause_tensor, "b");
  EXPECT_TRUE(std::isnan(*step.grad_norm)) << *step.grad_norm;
}

TEST_F(ReplayTest, BlamesTheTensorThatOverflowsFarthest) {
  WriteTensors("step-0.safetensors", {FloatTensor("a", {65520, 1}), FloatTensor("b", {-7e9f}),
                                      FloatTensor("c", {65519})});
  const ReplayResult result = RunOne(StaticRun(kFp16));
  EXPECT_EQ(result.steps[0].cause, Cause::kOverflow);
  EXPECT_EQ(result.steps[0].cause_tensor, "b");
  EXPECT_EQ(result.tensors[0].first_overflow_step, 0);
  EXPECT_EQ(result.tensors[2].first_overflow_step, std::nullopt);
  EXPECT_TRUE(RunOne(StaticRun(kBf16)).steps[0].finite);
}

TEST_F(ReplayTest, AFloat32NormMayOverflowWithFiniteElements) {
  WriteTensors("step-0.safetensors", {FloatTensor("a", {1}), FloatTensor("b", {2e19f, -3e19f})});
  EXPECT_TRUE(
      RunOne(StaticRun(kBf16, 1, {.finite_test = FiniteTest::kElementwise})).steps[0].finite);
  const ReplayStep step =
      RunOne(StaticRun(kBf16, 1, {.finite_test = FiniteTest::kGlobalNorm})).steps[0];
  EXPECT_FALSE(step.finite);
  EXPECT_EQ(step.cause, Cause::kNorm);
  EXPECT_EQ(step.cause_tensor, "b");
  EXPECT_TRUE(std::isfinite(*step.grad_norm));
}

// A sum of squares below 2^128 - 2^103 still rounds to the largest float32.
TEST_F(ReplayTest, TheNormTestFollowsFloat32Rounding) {
  WriteTensors("step-0.safetensors", {FloatTensor("a", {0x1.fep+63f})});
  WriteTensors("step-1.safetensors", {FloatTensor("a", {0x1p64f})});
  const ReplayResult result = RunOne(StaticRun(kBf16, 1, {.finite_test = FiniteTest::kGlobalNorm}));
  EXPECT_TRUE(result.steps[0].finite);
  EXPECT_FALSE(result.steps[1].finite);
}

TEST_F(ReplayTest, BlamesASumOverMicroStepsThatOverflows) {
  for (const char* file : {"step-0.micro-0.safetensors", "step-0.micro-1.safetensors"}) {
    WriteTensors(file, {FloatTensor("a", {1e-3f}), FloatTensor("b", {3e38f})});
  }
  for (const FiniteTest test : {FiniteTest::kElementwise, FiniteTest::kGlobalNorm}) {
    const ReplayStep step = RunOne(StaticRun(kBf16, 1, {.finite_test = test})).steps[0];
    EXPECT_FALSE(step.finite);
    EXPECT_EQ(step.cause, Cause::kAccumulation);
    EXPECT_EQ(step.cause_tensor, "b");
    EXPECT_FALSE(std::isfinite(*step.grad_norm));
  }
}

TEST_F(ReplayTest, TheElementwiseTestLooksAtScaledGradients) {
  // The reciprocal of the scale is infinite: unscaling turns every zero into NaN, which torch's
  // test does not see.
  for (const char* file : {"step-0.micro-0.safetensors", "step-0.micro-1.safetensors"}) {
    WriteTensors(file, {FloatTensor("a", {1e-3f, 0.0f})});
  }
  EXPECT_TRUE(RunOne(StaticRun(kFp16, 0x1p-130f)).steps[0].finite);
  EXPECT_FALSE(RunOne(StaticRun(kFp16, 0x1p-130f, {.finite_test = FiniteTest::kGlobalNorm}))
                   .steps[0]
                   .finite);
}

TEST_F(ReplayTest, TheWorstStepIsNotHiddenByALargeOne) {
  WriteTensors("step-0.safetensors", {FloatTensor("a", {1e-9f, -1e-9f})});
  WriteTensors("step-1.safetensors", {FloatTensor("a", {1e4f})});
  const ReplayResult result = RunOne(StaticRun(kFp16));
  EXPECT_LT(result.summary.gradients.energy_lost(), 1e-20);
  EXPECT_EQ(result.summary.worst_step_energy_lost, 1.0);
  EXPECT_EQ(result.tensors[0].worst_step_energy_lost, 1.0);
}

TEST_F(ReplayTest, ReadsEveryElementType) {
  // 1, -0.5, 2^-24, infinity in each type, and a float64 halfway between two float32 values.
  WriteTensors("step-0.safetensors",
               {{"f32", "F32", {4}, FloatBytes({1, -0.5f, 0x1p-24f, kInf})},
                {"f64",
                 "F64",
                 {4},
                 LittleEndian(0x3FF0000010000000, 8) + LittleEndian(0xBFE0000000000000, 8) +
                     LittleEndian(0x3E70000000000000, 8) + LittleEndian(0x7FF0000000000000, 8)},
                {"f16",
                 "F16",
                 {4},
                 LittleEndian(0x3C00, 2) + LittleEndian(0xB800, 2) + LittleEndian(0x0001, 2) +
                     LittleEndian(0x7C00, 2)},
                {"bf16",
                 "BF16",
                 {4},
                 LittleEndian(0x3F80, 2) + LittleEndian(0xBF00, 2) + LittleEndian(0x3380, 2) +
                     LittleEndian(0x7F80, 2)}});
  const ReplayResult result = RunOne(StaticRun(kFp16));
  ASSERT_EQ(result.tensors.size(), 4u);
  for (const ReplayTensor& tensor : result.tensors) {
    EXPECT_EQ(tensor.stats.elements, 4u) << tensor.name;
    EXPECT_EQ(tensor.stats.inf, 1u) << tensor.name;
    EXPECT_EQ(tensor.stats.subnormal, 1u) << tensor.name;
    EXPECT_EQ(tensor.stats.absmax, 1.0f) << tensor.name;
    EXPECT_EQ(tensor.stats.sum_of_squares, 1.25 + 0x1p-48) << tensor.name;
  }
}

TEST_F(ReplayTest, RemovesTheRecordedGradScale) {
  const std::vector<float> values = RandomValues(500, 1);
  std::vector<float> scaled = values;
  for (float& value : scaled) value *= 1024;
  WriteTensors("step-0.safetensors", {FloatTensor("w.grad", values)});
  const std::string plain = AllFields(RunOne(StaticRun(kFp16, 8)));
  WriteTensors("step-0.safetensors", {FloatTensor("w.grad", scaled)}, {{"grad_scale", "1024"}});
  EXPECT_EQ(AllFields(RunOne(StaticRun(kFp16, 8))), plain);
}

TEST_F(ReplayTest, EmptyAndZeroDimensionalTensors) {
  WriteTensors("step-0.safetensors", {{"empty.grad", "F32", {0}, ""},
                                      {"hollow.grad", "F32", {3, 0, 2}, ""},
                                      {"scalar.grad", "F32", {}, FloatBytes({-3})}});
  const ReplayResult result = RunOne(StaticRun(kFp16));
  ASSERT_EQ(result.tensors.size(), 3u);
  EXPECT_EQ(result.tensors[0].stats.elements, 0u);
  EXPECT_EQ(result.tensors[0].stats.underflow_fraction(), 0);
  EXPECT_EQ(result.tensors[0].stats.energy_lost(), 0);
  EXPECT_EQ(result.tensors[1].stats.elements, 0u);
  EXPECT_EQ(result.tensors[2].stats.elements, 1u);
  EXPECT_EQ(result.tensors[2].stats.absmax, 3.0f);
  EXPECT_EQ(result.steps[0].grad_norm, 3);
  EXPECT_TRUE(result.steps[0].finite);
}

TEST_F(ReplayTest, ATensorMayBeMissingFromSomeSteps) {
  WriteTensors("step-0.safetensors", {FloatTensor("a", {1})});
  WriteTensors("step-1.safetensors", {FloatTensor("b", {1e6f}), FloatTensor("a", {2})});
  const ReplayResult result = RunOne(StaticRun(kFp16));
  ASSERT_EQ(result.tensors.size(), 2u);
  EXPECT_EQ(result.tensors[0].name, "a");
  EXPECT_EQ(result.tensors[0].stats.elements, 2u);
  EXPECT_EQ(result.tensors[1].stats.elements, 1u);
  EXPECT_EQ(result.tensors[1].first_overflow_step, 1);
}

// Quantised sums of squares: per step, micro-step and tensor.
std::vector<double> StochasticSums(const TraceReader& trace, uint64_t seed) {
  ReplayRun run = StaticRun(kBf16);
  run.conversion.rounding = Rounding::kStochastic;
  std::vector<double> sums;
  ReplayOptions options;
  options.step.seed = seed;
  options.observer = [&](const ObservedStep& step) {
    for (const TensorAnswer& tensor : *step.runs[0].answers) {
      for (size_t part = 0; part < step.step.tables().parts.size(); ++part) {
        sums.push_back(tensor.Part(part).quantized_sum_of_squares);
      }
    }
  };
  Replay(TraceSteps(trace), {run}, options);
  return sums;
}

TEST_F(ReplayTest, StochasticRoundingDependsOnSeedTensorStepAndMicroStepAlone) {
  const std::vector<float> values = RandomValues(4096, 3);
  for (const char* file : {"step-0.micro-0", "step-0.micro-1", "step-1"}) {
    WriteTensors(std::string(file) + ".safetensors",
                 {FloatTensor("a", values), FloatTensor("b", values)});
  }
  const std::vector<double> sums = StochasticSums(Open(), 1);
  ASSERT_EQ(sums.size(), 6u);
  EXPECT_EQ(StochasticSums(Open(), 1), sums);
  std::vector<double> all = sums;
  for (const double sum : StochasticSums(Open(), 2)) all.push_back(sum);
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
  // Neither other tensors nor other steps matter.
  TraceOptions only_b;
  only_b.tensors = "b";
  const std::vector<double> b = StochasticSums(OpenTrace({dir_.path()}, only_b), 1);
  EXPECT_EQ(b, (std::vector<double>{sums[2], sums[3], sums[5]}));
}

// Stops at its third step.
struct ThirdStepIsFatal {
  struct Config {};
  struct State {
    int steps = 0;
    double scale = 1;
  };
  static State Start(const Config&) { return {}; }
  static double Scale(const State&) { return 1; }
  static Transition<State> Next(const Config&, const State& state, const ScalerInput&) {
    Transition<State> result = {.next = {.steps = state.steps + 1}};
    if (state.steps == 2) {
      result.event = ScalerEvent{.type = "Stop", .message = "stops", .fatal = true, .details = {}};
    }
    return result;
  }
  static constexpr std::tuple kFields = {StateField{"scale", &State::scale}};
};

TEST_F(ReplayTest, AFatalEventEndsItsOwnRunOnly) {
  for (const char* number : {"10", "20", "30", "40"}) {
    WriteTensors(std::string("step-") + number + ".safetensors", {FloatTensor("a", {1})});
  }
  ReplayRun fatal = StaticRun(kFp16);
  fatal.scaler = LossScaler::Make<ThirdStepIsFatal>({});
  const std::vector<ReplayResult> stopped =
      Replay(TraceSteps(Open()), {fatal, StaticRun(kFp16)}, {});
  EXPECT_EQ(stopped[0].steps.size(), 3u);
  EXPECT_EQ(stopped[0].stopped_at, 30);
  ASSERT_EQ(stopped[0].events.size(), 1u);
  EXPECT_EQ(stopped[0].events[0].step, 30);
  EXPECT_EQ(stopped[1].steps.size(), 4u);
  ReplayOptions options;
  options.on_fatal = OnFatal::kContinue;
  const ReplayResult continued = RunOne(fatal, options);
  EXPECT_EQ(continued.steps.size(), 4u);
  EXPECT_EQ(continued.stopped_at, std::nullopt);
}

}  // namespace
}  // namespace dlsim::sim
