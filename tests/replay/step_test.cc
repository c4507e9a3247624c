// SPDX-License-Identifier: Apache-2.0
// What a step tells from its tables is what measuring each element finds, for random steps and
// questions; without the values it tells the same or refuses.
#include "dlsim/sim/step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/measure.h"
#include "dlsim/trace.h"
#include "sim/replay/finite_test.h"
#include "tests/support/changed_trace.h"
#include "tests/support/same_measurement.h"
#include "tests/support/special_values.h"
#include "tests/support/trace_builder.h"
#include "tests/support/trace_test_util.h"
#include "tests/support/wanted_threads_for.h"

namespace dlsim::sim {
namespace {

constexpr float kMantissa = 0x1.c6bf52p+0f;  // of 2e15

// Draws steps and what is asked of them.
class Chance {
 public:
  explicit Chance(uint32_t seed) : random_(seed) {}

  int Draw(int from, int to) { return std::uniform_int_distribution(from, to)(random_); }
  bool OneIn(int n) { return Draw(1, n) == 1; }

  template <class T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[Draw(0, static_cast<int>(values.size()) - 1)];
  }

  // Writes a step of one or several recordings, of all types, and returns it.
  TraceStep WriteStep(const TempDir& dir) {
    const int micro_steps = Pick({1, 1, 2, 3});
    const int tensors = Draw(1, 5);
    std::vector<std::string> names, types;
    std::vector<std::vector<uint64_t>> shapes;
    std::vector<int> kinds;
    for (int t = 0; t < tensors; ++t) {
      names.push_back("t" + std::to_string(t) + Pick({".grad", ".grad", ".act_grad", ".act"}));
      types.push_back(Pick({"F32", "F32", "F16", "BF16", "F64"}));
      const auto columns = static_cast<uint64_t>(Draw(1, 40));
      const auto rows = static_cast<uint64_t>(OneIn(12) ? 0 : OneIn(12) ? 2000 : Draw(1, 60));
      shapes.push_back({rows, columns});
      kinds.push_back(Draw(0, 8));
    }
    names.front() = "t0.grad";
    const char* const scales[] = {"1", "1", "1024", "3"};
    const std::string scale = scales[Draw(0, 3)];
    for (int micro = 0; micro < micro_steps; ++micro) {
      std::vector<BuiltTensor> built;
      for (size_t t = 0; t < names.size(); ++t) {
        if (names[t].ends_with(".act") && OneIn(3)) continue;  // gradients are in all recordings
        built.push_back({names[t], types[t], shapes[t],
                         BytesOf(types[t], shapes[t][0] * shapes[t][1], kinds[t])});
      }
      const std::string name =
          micro_steps == 1 ? "step-7" : "step-7.micro-" + std::to_string(micro);
      dir.Write(name + ".safetensors", BuildSafetensors(built, {{"grad_scale", scale}}));
    }
    return OpenTrace({dir.path()}).Load(0);
  }

  Conversion DrawConversion() {
    Conversion conversion = {
        kFormats[static_cast<size_t>(Draw(0, int{kFormats.size()} - 1))].format};
    if (OneIn(3)) conversion.overflow = Overflow::kSaturate;
    if (OneIn(3)) conversion.subnormals = Subnormals::kFlushToZero;
    if (OneIn(8)) conversion.rounding = static_cast<Rounding>(Draw(0, 5));
    return conversion;
  }

  float DrawScale() {
    if (OneIn(20)) return Pick({0.0f, -4.0f, kInf, kQuietNan, 0x1p-149f, 0x1p127f});
    const float scale = std::ldexp(1.0f, OneIn(4) ? Draw(-120, 120) : Draw(-10, 40));
    return OneIn(3) ? Pick({kMantissa, 1.5f, 0x1.000002p+0f}) * scale : scale;
  }

  StepQuestion DrawQuestion(size_t gradients) {
    StepQuestion question = {DrawConversion(), DrawScale()};
    if (OneIn(5)) {
      for (size_t t = 0; t < gradients; ++t) question.tensor_scales.push_back(DrawScale());
    }
    if (OneIn(4)) question.detail.emplace();
    if (question.detail && OneIn(2)) question.detail->edge = std::ldexp(1.3f, Draw(-20, 20));
    if (question.detail && OneIn(2)) question.detail->limit = std::ldexp(1.1f, Draw(-20, 20));
    if (question.detail && OneIn(2)) question.detail->limit_domain = ClipDomain::kScaled;
    if (question.detail && OneIn(2)) question.detail->sums = false;
    question.converted_norm = OneIn(8);
    question.norm_decides = OneIn(2);
    return question;
  }

 private:
  float Value(int kind) {
    const auto bits = [](uint64_t pattern) {
      return std::bit_cast<float>(static_cast<uint32_t>(pattern));
    };
    const float normal = normal_(random_);
    switch (kind) {
      case 0:
        return bits(random_());  // NaN, infinity and subnormals among them
      case 1:
        return normal * 1e-42f;
      case 2:
        return normal * 0x1p120f;
      case 3:
        return OneIn(50) ? Pick({kInf, -kInf, kQuietNan}) : normal;
      case 4:
        return OneIn(10) ? normal * 1e-6f : 0.0f;
      case 5:  // ties, powers of two, and what rounds up to one
        return bits(static_cast<uint64_t>(Draw(90, 150)) << 23 |
                    Pick<uint64_t>({0, 0x7FFFFF, 0x7FF000, 0x7FE000, 0x1000, 0x3000, 0x8000,
                                    0x18000, 0x400000, 0x7F8000, 0x780000}));
      case 6:
        return normal * 1e-5f;
      default:
        return normal * std::exp(6 * normal_(random_) - 14);
    }
  }

  std::string BytesOf(const std::string& type, size_t count, int kind) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
      const float value = Value(kind);
      if (type == "F32") bytes += LittleEndian(std::bit_cast<uint32_t>(value), 4);
      if (type == "BF16") bytes += LittleEndian(std::bit_cast<uint32_t>(value) >> 16, 2);
      if (type == "F16")
        bytes += LittleEndian(
            Encode(MakeCodecSpec({kFp16}), Rounding::kNearestEven, std::bit_cast<uint32_t>(value))
                .code,
            2);
      if (type == "F64") bytes += LittleEndian(std::bit_cast<uint64_t>(double{value} * 1.1), 8);
    }
    return bytes;
  }

  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

Step OpenStep(const TraceStep& recorded, const StepOptions& options) {
  return {TabulateStep(recorded, options), std::make_shared<TraceStep>(recorded), options};
}

Step WithoutValues(const Step& step, const StepOptions& options) {
  return {step.tables(), nullptr, options};
}

bool IsPowerOfTwo(float scale) {
  int exponent = 0;
  return std::frexp(std::fabs(scale), &exponent) == 0.5f;
}

// At scales m * 2^k tables know the error of the float32 product with m, which is off by half a
// unit of float32: by Cauchy and Schwarz, `norm` * 2^-24 in the root of the sum.
double ToleranceOfError(double error, double norm, float scale) {
  if (IsPowerOfTwo(scale)) return 1e-12 * error;
  const double product = norm * 0x1.01p-24;
  return 2 * std::sqrt(error) * product + product * product + 1e-12 * error;
}

void ExpectNear(double got, double expected, double tolerance, const char* what) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << what << " " << got;
  } else if (std::isinf(expected)) {
    EXPECT_EQ(got, expected) << what;
  } else {
    EXPECT_NEAR(got, expected, tolerance) << what;
  }
}

void ExpectToldAsMeasured(const TensorStats& told, const TensorStats& found, float scale) {
  EXPECT_EQ(told.elements, found.elements);
  EXPECT_EQ(told.zeros, found.zeros);
  EXPECT_EQ(told.nan, found.nan);
  EXPECT_EQ(told.inf, found.inf);
  EXPECT_EQ(told.underflow, found.underflow);
  EXPECT_EQ(told.subnormal, found.subnormal);
  EXPECT_EQ(told.overflow, found.overflow);
  EXPECT_EQ(told.nonfinite_outputs, found.nonfinite_outputs);
  EXPECT_EQ(told.absmax, found.absmax);
  const double squares = found.sum_of_squares;
  ExpectNear(told.sum_of_squares, squares, 1e-12 * squares, "sum of squares");
  ExpectNear(told.error_sum_of_squares, found.error_sum_of_squares,
             ToleranceOfError(found.error_sum_of_squares, std::sqrt(squares), scale), "error");
  const double underflow = found.underflow_sum_of_squares;
  ExpectNear(told.underflow_sum_of_squares, underflow,
             (IsPowerOfTwo(scale) ? 1e-12 : 0x1p-22) * underflow, "underflow");
}

// Sums that are left out must be finite in float32 on any way to add them.
bool IsFarFromOverflow(double sum) { return std::fabs(sum) < 0x1p127; }

void ExpectSameDetail(const GradientDetail& told, const GradientDetail& found,
                      const DetailQuestion& question) {
  EXPECT_EQ(told.elements, found.elements);
  EXPECT_EQ(told.absmax, found.absmax);
  if (!std::isinf(question.edge)) {
    EXPECT_EQ(told.below_edge, found.below_edge);
    EXPECT_EQ(told.above_edge, found.above_edge);
  }
  EXPECT_EQ(told.above_limit, found.above_limit);
  if (!question.sums) return;
  if (told.scaled_sum == 0 && told.scaled_sum_of_squares == 0) {
    EXPECT_TRUE(
        std::isnan(found.scaled_sum) || std::isinf(found.absmax) ||
        (IsFarFromOverflow(found.scaled_sum) && IsFarFromOverflow(found.scaled_sum_of_squares)))
        << found.scaled_sum << " " << found.scaled_sum_of_squares;
  } else {
    ExpectSameSum(told.scaled_sum, found.scaled_sum);
    ExpectSameSum(told.scaled_sum_of_squares, found.scaled_sum_of_squares);
  }
}

// The sum of squares of the step's gradient, as recorded.
std::vector<double> SquaresOfSums(const TraceStep& step) {
  std::vector<double> squares;
  for (const TensorRef& tensor : DescribeTensors(step)) {
    if (!IsGradient(tensor->role)) continue;
    std::vector<float> sum;
    for (const Recording& recording : step.recordings) {
      for (const TraceTensor& recorded : recording.tensors) {
        if (recorded.info->name != tensor->name) continue;
        const std::vector<float> values = ValuesOf(recording, recorded);
        sum.resize(std::max(sum.size(), values.size()));
        for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
      }
    }
    double& total = squares.emplace_back();
    for (const float value : sum) {
      if (std::isfinite(value)) total += double{value} * double{value};
    }
  }
  return squares;
}

void ExpectToldAsMeasured(const Step& step, const StepQuestion& question,
                          const StepOptions& options) {
  const TraceStep& recorded = *step.recorded();
  const StepAnswer& told = *step.Ask(question);
  const StepAnswer found = MeasureStep(recorded, question, options);
  const std::vector<double> squares = SquaresOfSums(recorded);
  ASSERT_EQ(told.size(), found.size());
  double told_norm = 0, found_norm = 0;
  bool elements_finite = true;
  for (size_t t = 0; t < told.size(); ++t) {
    SCOPED_TRACE(step.gradients()[t].name + " at " + std::to_string(question.ScaleOf(t)));
    const float scale = question.ScaleOf(t);
    ExpectToldAsMeasured(told[t].total, found[t].total, scale);
    ASSERT_EQ(told[t].rest().parts.size(), found[t].rest().parts.size());
    for (size_t part = 0; part < told[t].rest().parts.size(); ++part) {
      SCOPED_TRACE("part " + std::to_string(part));
      ExpectToldAsMeasured(told[t].rest().parts[part], found[t].rest().parts[part], scale);
    }
    ExpectNear(told[t].sum_of_squares, squares[t], 1e-12 * squares[t], "squares of the sum");
    EXPECT_EQ(told[t].scaled_sum_finite, found[t].scaled_sum_finite);
    EXPECT_EQ(told[t].unscaled_finite, found[t].unscaled_finite);
    if (question.converted_norm) {
      EXPECT_TRUE(told[t].rest().converted_squares.has_value());
    }
    if (told[t].rest().converted_squares) {
      ExpectSameSum(*told[t].rest().converted_squares, *found[t].rest().converted_squares);
    }
    if (question.detail)
      ExpectSameDetail(told[t].rest().detail, found[t].rest().detail, *question.detail);
    told_norm += told[t].rest().converted_squares.value_or(told[t].sum_of_squares);
    found_norm += *found[t].rest().converted_squares;
    elements_finite = elements_finite && found[t].unscaled_finite;
  }
  if (question.norm_decides && elements_finite) {
    EXPECT_EQ(told_norm < kFloat32Overflow, found_norm < kFloat32Overflow)
        << told_norm << " " << found_norm;
  }
}

// Of a forward tensor, in each recording, at scale 1.
void ExpectForwardToldAsMeasured(const Step& step, const Conversion& conversion) {
  if (conversion.rounding == Rounding::kStochastic) return;  // has streams of its own
  const StepAnswer& told = *step.AskForward(conversion);
  const TraceStep& recorded = *step.recorded();
  ASSERT_EQ(told.size(), step.forward().size());
  for (size_t t = 0; t < told.size(); ++t) {
    SCOPED_TRACE(step.forward()[t].name);
    std::vector<TensorStats> parts(recorded.recordings.size());
    TensorStats total;
    for (size_t part = 0; part < parts.size(); ++part) {
      for (const TraceTensor& tensor : recorded.recordings[part].tensors) {
        if (tensor.info->name != step.forward()[t].name) continue;
        parts[part] = Measure(ValuesOf(recorded.recordings[part], tensor), {conversion});
      }
      total.Merge(parts[part]);
    }
    ExpectToldAsMeasured(told[t].total, total, 1);
    for (size_t part = 0; part < told[t].rest().parts.size(); ++part) {
      ExpectToldAsMeasured(told[t].rest().parts[part], parts[part], 1);
    }
  }
}

// Returns the answer, or null if it is refused.
std::shared_ptr<const StepAnswer> AskIfTold(const Step& step, const StepQuestion& question) {
  try {
    return step.Ask(question);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    return nullptr;
  }
}

StepOptions DrawOptions(Chance& chance) {
  StepOptions options;
  if (chance.OneIn(2)) options.accumulation = Accumulation::kSumThenQuantize;
  if (chance.OneIn(2)) options.mantissas = {1.5f, kMantissa};
  if (chance.OneIn(4)) options.memory_bytes = 1;
  options.seed = 5;
  return options;
}

TEST(Step, TellsWhatMeasuringFinds) {
  size_t told = 0, asked = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Chance chance(seed);
    const TempDir dir;
    const TraceStep recorded = chance.WriteStep(dir);
    const StepOptions options = DrawOptions(chance);
    const Step step = OpenStep(recorded, options), alone = WithoutValues(step, options);
    for (int i = 0; i < 16 && !testing::Test::HasFailure(); ++i) {
      const StepQuestion question = chance.DrawQuestion(step.gradients().size());
      SCOPED_TRACE("question " + std::to_string(i));
      ExpectToldAsMeasured(step, question, options);
      ExpectForwardToldAsMeasured(step, question.conversion);
      ++asked;
      const std::shared_ptr<const StepAnswer> of_tables = AskIfTold(alone, question);
      if (of_tables == nullptr) continue;
      ++told;
      ExpectSameBits(*of_tables, *step.Ask(question));
    }
  }
  EXPECT_GT(told, asked / 4);
  EXPECT_LT(told, asked);
}

// What is recorded is far too large for float32's squares, and what it becomes is not.
TEST(Step, TheNormOfClampedGradientsDecides) {
  const TempDir dir;
  dir.Write("step-0.safetensors", BuildSafetensors({FloatTensor("w.grad", {0x1p100f, 1})}));
  const Step step = OpenStep(OpenTrace({dir.path()}).Load(0), {});
  for (const Overflow overflow : {Overflow::kSaturate, Overflow::kInfinity}) {
    StepQuestion question = {.conversion = {kFp16}, .norm_decides = true};
    question.conversion.overflow = overflow;
    ExpectToldAsMeasured(step, question, {});
  }
  // The same where a small scale takes them to zero.
  ExpectToldAsMeasured(step, {.conversion = {kFp16}, .scale = 0x1p-126f, .norm_decides = true}, {});
}

TEST(Step, AnswersAndTablesAreTheSameForAnyNumberOfThreads) {
  for (uint32_t seed = 200; seed < 212; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Chance chance(seed);
    const TempDir dir;
    const TraceStep recorded = chance.WriteStep(dir);
    const StepOptions options = DrawOptions(chance);
    std::vector<StepQuestion> questions;
    const Step expected = OpenStep(recorded, options);
    for (int i = 0; i < 8; ++i) {
      questions.push_back(chance.DrawQuestion(expected.gradients().size()));
    }
    for (const int threads : {1, 2, 3, 8}) {
      const WantedThreadsFor wanted(threads);
      const Step step = OpenStep(recorded, options);
      EXPECT_TRUE(step.tables() == expected.tables()) << threads;
      for (const StepQuestion& question : questions) {
        ExpectSameBits(*step.Ask(question), *expected.Ask(question));
      }
    }
  }
}

// Usual gradients at the documented start of 2e15: the products with its mantissa add up to errors
// that differ by less than 1e-4.
TEST(Step, ErrorsAtScalesThatAreNoPowersOfTwoAreClose) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1e-6f);
  std::vector<float> values(30000);
  for (float& value : values) value = normal(random);
  const TempDir dir;
  dir.Write("step-0.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
  const TraceStep recorded = OpenTrace({dir.path()}).Load(0);
  const StepOptions options = {.mantissas = {kMantissa}};
  const Step step = WithoutValues(OpenStep(recorded, options), options);
  for (const Format& format : {kFp16, kBf16, kCb16, kE4m3}) {
    for (const int exponent : {0, 10, 18}) {
      const StepQuestion question = {{format}, std::ldexp(kMantissa, exponent)};
      const TensorStats told = step.Ask(question)->front().total;
      const TensorStats found = MeasureStep(recorded, question, {})[0].total;
      ExpectToldAsMeasured(told, found, question.scale);
      EXPECT_NEAR(told.error_sum_of_squares / found.error_sum_of_squares, 1, 1e-4);
    }
  }
}

TEST(Step, SaysWhyItRefusesWithoutValues) {
  const TempDir dir;
  dir.Write("step-3.safetensors", BuildSafetensors({FloatTensor("w.grad", {1, 2, 3})}));
  const Step step = WithoutValues(OpenStep(OpenTrace({dir.path()}).Load(0), {}), {});
  const auto expect = [&](const StepQuestion& question, const std::string& words) {
    try {
      step.Ask(question);
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("step 3"), std::string::npos) << error.what();
    }
  };
  expect({{kFp16, Rounding::kStochastic}}, WhyNot(NotInTable::kRounding));
  expect({{kFp16}, 3.0f}, WhyNot(NotInTable::kScale));
  expect({{Format{5, 11, 15}}}, WhyNot(NotInTable::kBits));
  expect({.conversion = {kFp16}, .converted_norm = true}, "converted gradients");
  EXPECT_THROW(step.Spreads(), Error);
  EXPECT_EQ(step.Ask({{kFp16}})->front().total.elements, 3u);
}

TEST(Step, AsksTheValuesOnlyIfTheFilesAreAsBefore) {
  const TempDir dir;
  dir.Write("step-0.safetensors", BuildSafetensors({FloatTensor("w.grad", {1, 2, 3})}));
  const TraceStep recorded = OpenTrace({dir.path()}).Load(0);
  int checks = 0;
  const Step step(TabulateStep(recorded, {}), std::make_shared<TraceStep>(recorded), {},
                  [&] { ++checks; });
  step.Ask({{kFp16}});
  EXPECT_EQ(checks, 0);
  const std::vector<std::function<void()>> reads = {[&] {
                                                      step.Ask({{kFp16}, 3.0f});
                                                    },
                                                    [&] {
                                                      step.Ask({{kFp16, Rounding::kTowardZero}});
                                                    },
                                                    [&] { step.Spreads(); }};
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i]();
    EXPECT_EQ(checks, static_cast<int>(i) + 1);
  }
}

TEST(Step, DropsTensorsFromTablesAndValues) {
  const TempDir dir;
  for (const std::string micro : {"0", "1"}) {
    dir.Write(
        "step-0.micro-" + micro + ".safetensors",
        BuildSafetensors({FloatTensor("t0.grad", {1, 2}), FloatTensor("t1.grad", {0x1p-24f, 3}),
                          FloatTensor("t2.grad", {kInf, 0.1f})}));
  }
  const TraceStep recorded = OpenTrace({dir.path()}).Load(0);
  const StepOptions options = {.mantissas = {kMantissa}};
  Step step = OpenStep(recorded, options);
  const Step whole = OpenStep(recorded, options);
  step.Drop([](const TensorInfo& tensor) { return tensor.name.starts_with("t0"); });
  ASSERT_EQ(step.gradients().size() + 1, whole.gradients().size());
  for (const float scale : {1.0f, 3.0f, kMantissa}) {
    for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kTowardZero}) {
      const StepQuestion question = {{kFp16, rounding}, scale};
      const StepAnswer &some = *step.Ask(question), &all = *whole.Ask(question);
      for (size_t t = 0; t < some.size(); ++t) ExpectSameBits(some[t], all[t + 1]);
    }
  }
}

// A thread that could not read all blocks of a tensor begins the next step again.
TEST(Step, AFailedReadLeavesNothingBehind) {
  const std::vector<float> values(3'000'000, 3.0f);
  const auto bytes = std::as_bytes(std::span(values));
  TraceStep step;
  step.recordings.resize(1);
  bool fails = false;
  const ByteReader read = [&](uint64_t offset, std::span<std::byte> out) {
    if (fails && offset >= 2 * kBlockElements * sizeof(float)) throw InputError("file", "cut");
    std::ranges::copy(bytes.subspan(offset, out.size()), out.begin());
  };
  step.recordings[0].tensors.push_back({.info = TensorInfo{"w.grad", {}, {}, {values.size()}},
                                        .elements = values.size(),
                                        .source = std::make_shared<const ByteReader>(read)});
  const WantedThreadsFor wanted(1);
  const StepTables expected = TabulateStep(step, {});
  fails = true;
  EXPECT_THROW(TabulateStep(step, {}), Error);
  fails = false;
  EXPECT_TRUE(TabulateStep(step, {}) == expected);
}

// A source of two steps of one value each, kept as far as `bytes` go, is gone through twice.
size_t LoadsOfTwoPasses(uint64_t bytes) {
  size_t loads = 0;
  StepSource source;
  source.load = [&](size_t i, const StepOptions& options) {
    ++loads;
    StepTables tables;
    tables.step = static_cast<int64_t>(i);
    tables.tensors = {TensorInfo{"w.grad", {}, {}, {1}}};
    tables.gradients = 1;
    tables.parts = {{Tabulate(std::vector{static_cast<float>(i) + 0.1f})}};
    return std::make_unique<Step>(std::move(tables), nullptr, options);
  };
  const StepSource kept = KeepSteps(source, bytes);
  for (const size_t i : {0, 1, 0, 1}) {
    const std::unique_ptr<Step> step = kept.load(i, {});
    EXPECT_TRUE(step->Asked().gradients.empty());
    const StepQuestion question = {.conversion = {kFp16}};
    ExpectSameBits(step->Ask(question)->front(), source.load(i, {})->Ask(question)->front());
    --loads;
  }
  return loads;
}

TEST(KeepSteps, LoadsOnceWhatFits) {
  EXPECT_EQ(LoadsOfTwoPasses(0), 4u);
  EXPECT_EQ(LoadsOfTwoPasses(300), 3u);
  EXPECT_EQ(LoadsOfTwoPasses(100'000), 2u);
}

}  // namespace
}  // namespace dlsim::sim
