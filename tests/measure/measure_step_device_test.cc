// SPDX-License-Identifier: Apache-2.0
// A step that is handed to a device gives what the CPU gives. The device here is the CPU, late.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/ladder.h"
#include "dlsim/profile.h"
#include "src/base/side_task.h"
#include "src/device/compute_device.h"
#include "src/histogram/histogram_sums.h"
#include "src/measure/chunk_loader.h"
#include "src/measure/measure_block.h"
#include "tests/support/same_measurement.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

struct Owned {
  size_t tensor = 0;
  std::vector<TensorStats> parts;
  std::vector<double> effective, scaled;
  std::vector<GradientDetail> details;
};

using OnAnswer = std::function<void(size_t tensor, const BlockAnswer& answer)>;

// Delivers the answers of a wave when the next one comes.
class LateMeasurement final : public DeviceWork {
 public:
  LateMeasurement(const StepWork& work, OnAnswer on_answer)
      : work_(work), measurer_(work_), on_answer_(std::move(on_answer)) {}

  void Add(std::span<const Block> blocks) override {
    Finish();
    const size_t questions = work_.questions.size();
    for (const Block& block : blocks) {
      Owned& answer = pending_.emplace_back(
          Owned{block.tensor, std::vector<TensorStats>(questions * work_.micro_steps.size()),
                std::vector<double>(questions), std::vector<double>(questions),
                std::vector<GradientDetail>(questions)});
      measurer_.Measure(block, AnswerOf(answer));
    }
  }

  void Finish() override {
    for (Owned& answer : pending_) {
      BlockAnswer delivered = AnswerOf(answer);
      if (!HasDetail()) delivered.details = {};
      on_answer_(answer.tensor, delivered);
    }
    pending_.clear();
  }

 private:
  static BlockAnswer AnswerOf(Owned& answer) {
    return {answer.parts, answer.effective, answer.scaled, answer.details};
  }
  bool HasDetail() const {
    for (const StepQuestion& question : work_.questions) {
      if (question.detail) return true;
    }
    return false;
  }

  StepWork work_;
  BlockMeasurer measurer_;
  OnAnswer on_answer_;
  std::deque<Owned> pending_;
};

class LateCount final : public DeviceWork {
 public:
  LateCount(const StepWork& work, const HistogramEdges& edges, std::span<HistogramSums> sums)
      : work_(work), counter_(edges), sums_(sums) {}

  void Add(std::span<const Block> blocks) override {
    for (const Block& block : blocks) {
      ChunkLoader loader((*work_.tensors)[block.tensor], block, work_.options->accumulation);
      for (size_t part = 0; part < loader.part_count(); ++part) {
        if (!loader.Has(part)) continue;
        for (size_t begin = 0; begin < block.count; begin += kChunkElements) {
          counter_.Add(loader.Load(part, begin));
        }
        pending_.emplace_back(block.tensor * loader.part_count() + part, TakeSums(counter_));
      }
    }
  }

  void Finish() override {
    for (const auto& [index, sums] : pending_) sums_[index].Merge(sums);
    pending_.clear();
  }

 private:
  StepWork work_;
  HistogramCounter counter_;
  std::span<HistogramSums> sums_;
  std::deque<std::pair<size_t, HistogramSums>> pending_;
};

class LateDevice final : public ComputeDevice {
 public:
  std::string name() const override { return "late"; }
  std::unique_ptr<DeviceWork> Measure(const StepWork& work, OnAnswer on_answer) override {
    ++steps;
    return std::make_unique<LateMeasurement>(work, std::move(on_answer));
  }
  std::unique_ptr<DeviceWork> Count(const StepWork& work, const HistogramEdges& edges,
                                    std::span<HistogramSums> sums) override {
    ++steps;
    return std::make_unique<LateCount>(work, edges, sums);
  }
  void Encode(const ArrayConversion&, DType, std::span<const std::byte>,
              std::span<uint16_t>) override {}
  void Encode(const ArrayConversion&, DType, std::span<const std::byte>,
              std::span<uint32_t>) override {}
  void Decode(const Format&, std::span<const uint16_t>, std::span<float>) override {}
  void Decode(const Format&, std::span<const uint32_t>, std::span<float>) override {}

  size_t steps = 0;
};

constexpr Accumulation kAccumulations[] = {Accumulation::kQuantizeThenSum,
                                           Accumulation::kSumThenQuantize};

std::vector<StepQuestion> Questions() {
  StepQuestion stochastic = {{kFp16, Rounding::kStochastic}, 8.0f};
  StepQuestion detailed = {{kBf16}, 4.0f};
  detailed.detail = {1.0f, 0.5f, ClipDomain::kScaled};
  return {{{kFp16}, 1024.0f}, stochastic, detailed};
}

// Values of many binades.
std::vector<float> Values(size_t count, uint32_t state) {
  std::vector<float> values(count);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = std::ldexp(static_cast<float>(static_cast<int32_t>(state)), -40 - int(state % 61));
  }
  return values;
}

class MeasureStepDevice : public TraceDirectoryTest {
 protected:
  // Two micro-steps; 260 blocks, which are more than one wave.
  TraceStep SeveralWaves() {
    for (uint32_t micro = 0; micro < 2; ++micro) {
      std::vector<BuiltTensor> tensors = {FloatTensor("large.grad", Values(200'001, micro)),
                                          FloatTensor("empty.grad", {})};
      for (uint32_t t = 0; t < 256; ++t) {
        tensors.push_back(FloatTensor("w" + std::to_string(t) + ".grad", Values(5, micro + t)));
      }
      if (micro == 1) tensors.push_back(FloatTensor("y.act_grad", Values(7, 3)));
      dir_.Write("step-0.micro-" + std::to_string(micro) + ".safetensors",
                 BuildSafetensors(tensors));
    }
    return Open().Load(0);
  }
};

TEST_F(MeasureStepDevice, GivesTheDigitsOfTheCpu) {
  const TraceStep step = SeveralWaves();
  LateDevice device;
  for (const Accumulation accumulation : kAccumulations) {
    StepOptions options;
    options.accumulation = accumulation;
    options.seed = 5;
    for (size_t count = 0; count <= Questions().size(); ++count) {
      std::vector<StepQuestion> questions = Questions();
      questions.resize(count);
      options.device = nullptr;
      const StepMeasurement expected = MeasureStep(step, questions, options);
      options.device = &device;
      ExpectSameBits(MeasureStep(step, questions, options), expected);
    }
  }
  EXPECT_EQ(device.steps, 8u);
}

TEST_F(MeasureStepDevice, GivesTheProfileOfTheCpu) {
  const TraceStep step = SeveralWaves();
  const HistogramEdges edges = EdgesOf(DefaultLadder());
  LateDevice device;
  for (const Accumulation accumulation : kAccumulations) {
    StepOptions options;
    options.accumulation = accumulation;
    const ProfileStep expected = ProfileOf(step, edges, options);
    options.device = &device;
    EXPECT_EQ(ProfileOf(step, edges, options), expected);
  }
  EXPECT_EQ(device.steps, 2u);
}

TEST_F(MeasureStepDevice, GivesTheForwardPassOfTheCpu) {
  for (uint32_t micro = 0; micro < 2; ++micro) {
    dir_.Write("step-0.micro-" + std::to_string(micro) + ".safetensors",
               BuildSafetensors(
                   {FloatTensor("x.act", Values(micro == 0 ? 70'001 : 9, micro)),
                    FloatTensor("w.grad", Values(5, 2)), FloatTensor("w.value", Values(5, 7))},
                   {{"grad_scale", "64"}}));
  }
  const TraceStep step = Open().Load(0);
  const std::vector<Conversion> conversions = {{kFp16}, {kFp16, Rounding::kStochastic}};
  const HistogramEdges edges = EdgesOf(DefaultLadder());
  LateDevice device;
  for (const Accumulation accumulation : kAccumulations) {
    StepOptions options;
    options.accumulation = accumulation;
    const StepMeasurement expected = MeasureForward(step, conversions, options);
    const ProfileStep profile = ProfileOf(step, edges, options);
    options.device = &device;
    ExpectSameBits(MeasureForward(step, conversions, options), expected);
    EXPECT_EQ(ProfileOf(step, edges, options), profile);
  }
  EXPECT_EQ(device.steps, 6u);  // one measured and two counted each
}

TEST_F(MeasureStepDevice, DoesTheSideTaskOnce) {
  dir_.Write("step-1.safetensors", BuildSafetensors({}));
  const std::vector<TraceStep> steps = {SeveralWaves(), Open().Load(1)};
  LateDevice device;
  for (const TraceStep& step : steps) {
    int calls = 0;
    StepOptions options;
    options.device = &device;
    const auto task = [&] { ++calls; };
    RunWithSideTask(task, [&] { MeasureStep(step, Questions(), options); });
    EXPECT_EQ(calls, 1);
    RunWithSideTask(task, [&] { ProfileOf(step, EdgesOf(DefaultLadder()), options); });
    EXPECT_EQ(calls, 2);
  }
}

TEST_F(MeasureStepDevice, FailsIfTheSideTaskFails) {
  LateDevice device;
  StepOptions options;
  options.device = &device;
  const auto fail = [] { throw std::runtime_error("task"); };
  const auto measure = [&] { MeasureStep(SeveralWaves(), Questions(), options); };
  EXPECT_THROW(RunWithSideTask(fail, measure), std::runtime_error);
}

}  // namespace
}  // namespace dlsim
