// SPDX-License-Identifier: Apache-2.0
// What the search for windows asks of steps.
#include "sim/advice/window_consumer.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/replay/trace_source.h"
#include "tests/support/test_traces.h"

namespace dlsim::sim {
namespace {

// Counts how often channels are asked for.
class AskedSource final : public GradientSource {
 public:
  explicit AskedSource(const GradientSource& source) : source_(source) {}

  const SourceFacts& facts() const override { return source_.facts(); }
  size_t step_count() const override { return source_.step_count(); }
  std::unique_ptr<GradientStep> Load(size_t i, StepNeeds needs) const override {
    return std::make_unique<Step>(source_.Load(i, needs), *this);
  }
  size_t measured() const { return measured_; }
  size_t with_channels() const { return with_channels_; }

 private:
  class Step final : public GradientStep {
   public:
    Step(std::unique_ptr<GradientStep> step, const AskedSource& source)
        : step_(std::move(step)), source_(source) {}

    int64_t number() const override { return step_->number(); }
    std::vector<StepTensor> Tensors() const override { return step_->Tensors(); }
    std::vector<GradientSpread> Spreads() const override { return step_->Spreads(); }
    ProfileTotals Totals(const HistogramEdges& edges, const StepOptions& options) override {
      return step_->Totals(edges, options);
    }
    StepMeasurement Measure(std::span<const StepQuestion> questions,
                            const StepOptions& options) const override {
      ++source_.measured_;
      source_.with_channels_ += options.channels;
      return step_->Measure(questions, options);
    }
    StepMeasurement MeasureForward(std::span<const Conversion> conversions,
                                   const StepOptions& options) const override {
      return step_->MeasureForward(conversions, options);
    }
    ScaledTensors MeasureScaled(std::span<const NamedScaledFormat> formats,
                                const ScaleOfTensor& scale) const override {
      return step_->MeasureScaled(formats, scale);
    }

   private:
    std::unique_ptr<GradientStep> step_;
    const AskedSource& source_;
  };

  const GradientSource& source_;
  mutable size_t measured_ = 0, with_channels_ = 0;
};

// The first step is measured again, at the scale that it asks for.
TEST(WindowConsumerTest, CountsChannelsOfEachStepOnce) {
  const std::vector<std::string> paths = {kTraces + "cnn-digits"};
  const TraceReader trace = TraceReader::Open(paths, {});
  const TraceSource steps(trace, 1);
  const AskedSource source(steps);
  WindowConsumer windows(NamedFormats(std::vector<std::string>{"fp8-e4m3"}), {}, {});
  ForEachStep(source, {}, windows);
  const std::vector<FormatWindows> found = windows.Take(source);
  EXPECT_NE(found.front().exponent, 0);
  EXPECT_GT(source.measured(), steps.step_count());
  EXPECT_EQ(source.with_channels(), steps.step_count());
  for (const TensorHarm& tensor : found.front().tensors) {
    EXPECT_EQ(tensor.channels.mean.steps, tensor.harm.steps) << tensor.name;
  }
}

}  // namespace
}  // namespace dlsim::sim
