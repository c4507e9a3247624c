// SPDX-License-Identifier: Apache-2.0
// Blocks of a step with micro-steps, measured on the emulated device, equal MeasureStep on the CPU.
#include <cmath>
#include <cstdint>
#include <limits>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "dlsim/measure_step.h"
#include "emulation.h"
#include "gpu/measure/measure_kernels.h"
#include "tests/gpu/device_pieces.h"
#include "tests/support/same_measurement.h"

namespace dlsim::gpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> Values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-36, 3);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = i % 17 == 0 ? -0.0f : std::ldexp(normal(random), exponent(random));
  }
  return values;
}

// One tensor over some micro-steps, for the CPU and for the device.
class RecordedTensor {
 public:
  // Lengths per micro-step; negative = absent.
  explicit RecordedTensor(const std::vector<int64_t>& lengths, float special = 0) {
    step_.step = 41;
    for (size_t r = 0; r < lengths.size(); ++r) {
      Recording& recording = step_.recordings.emplace_back();
      recording.micro = lengths.size() == 1 ? -1 : static_cast<int64_t>(r);
      recording.grad_scale = r == 1 ? 8.0f : 1.0f;
      if (lengths[r] < 0) continue;
      const auto length = static_cast<size_t>(lengths[r]);
      std::vector<float>& values = values_.emplace_back(Values(length, uint32_t(r)));
      if (special != 0 && length > 4100) values[4099] = special;
      TraceTensor& tensor = recording.tensors.emplace_back();
      tensor.name = "x.act_grad";
      tensor.elements = length;
      tensor.memory = reinterpret_cast<const std::byte*>(values.data());
      longest_ = std::max(longest_, length);
    }
  }

  const TraceStep& step() const { return step_; }
  uint32_t block_count() const {
    return static_cast<uint32_t>((longest_ + kBlockElements - 1) / kBlockElements);
  }

  // Returns [block * recordings + recording], with the values in `memory`.
  std::vector<Piece> Pieces(std::list<OffsetBytes>& memory) const {
    std::vector<Piece> pieces(block_count() * step_.recordings.size());
    for (size_t r = 0; r < step_.recordings.size(); ++r) {
      const Recording& recording = step_.recordings[r];
      Piece whole;
      whole.tensor = 1;
      whole.inverse_grad_scale = 1.0f / recording.grad_scale;
      whole.random_stream = StreamOf("x.act_grad", 41, recording.micro);
      for (size_t b = 0; b < block_count(); ++b) {
        whole.first_index = b * kBlockElements;
        pieces[b * step_.recordings.size() + r] = whole;
      }
      if (recording.tensors.empty()) continue;
      const TraceTensor& tensor = recording.tensors.front();
      const OffsetBytes& bytes =
          memory.emplace_back(std::span(tensor.memory, tensor.elements * sizeof(float)), 4);
      whole.values = bytes.data();
      std::vector<Piece> cut;
      AppendPieces(whole, tensor.elements, cut);
      for (size_t b = 0; b < cut.size(); ++b) pieces[b * step_.recordings.size() + r] = cut[b];
    }
    return pieces;
  }

 private:
  TraceStep step_;
  std::list<std::vector<float>> values_;
  size_t longest_ = 0;
};

// What the device says of a tensor, merged as MeasureStep does it.
std::vector<TensorAnswer> MeasureOnDevice(const RecordedTensor& tensor,
                                          std::span<const StepQuestion> questions,
                                          const StepOptions& options) {
  std::list<OffsetBytes> memory;
  const std::vector<Piece> pieces = tensor.Pieces(memory);
  const DeviceBuffer<Piece> on_device = Upload(std::span<const Piece>(pieces));
  const std::vector<float> scales = {-1.0f, 3.0f};
  const DeviceBuffer<float> tensor_scales = Upload(std::span<const float>(scales));
  DeviceBlocks blocks;
  blocks.pieces = on_device.data();
  blocks.block_count = tensor.block_count();
  blocks.part_count = static_cast<uint32_t>(tensor.step().recordings.size());
  std::vector<DeviceQuestion> asked;
  for (const StepQuestion& question : questions) {
    DeviceQuestion& kernel = asked.emplace_back();
    kernel.conversion = question.conversion;
    kernel.scale = question.scale;
    if (!question.tensor_scales.empty()) kernel.tensor_scales = tensor_scales.data();
    kernel.seed = options.seed;
    kernel.has_detail = question.detail.has_value();
    if (question.detail) kernel.detail = *question.detail;
  }
  const size_t answers = blocks.block_count * questions.size(), parts = blocks.part_count;
  const DeviceBuffer<TensorStats> stats(answers * parts);
  const DeviceBuffer<double> effective(answers), scaled(answers);
  const DeviceBuffer<GradientDetail> details(answers);
  const OwnedStream stream;
  LaunchMeasureBlocks(
      blocks, asked, {stats.data(), effective.data(), scaled.data(), details.data()}, stream.get());
  CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  const std::vector<TensorStats> all_stats = Download(stats);
  const std::vector<double> all_effective = Download(effective), all_scaled = Download(scaled);
  const std::vector<GradientDetail> all_details = Download(details);
  std::vector<TensorAnswer> result(questions.size());
  for (size_t i = 0; i < answers; ++i) {
    TensorAnswer& answer = result[i % questions.size()];
    answer.parts.resize(parts);
    for (size_t p = 0; p < parts; ++p) answer.parts[p].Merge(all_stats[i * parts + p]);
    answer.effective_sum_of_squares += all_effective[i];
    answer.scaled_sum_finite &= std::isfinite(all_scaled[i]);
    answer.detail.Merge(all_details[i]);
  }
  return result;
}

void ExpectAsOnCpu(const RecordedTensor& tensor, std::span<const StepQuestion> questions,
                   const StepOptions& options) {
  const StepMeasurement host = MeasureStep(tensor.step(), questions, options);
  const std::vector<TensorAnswer> device = MeasureOnDevice(tensor, questions, options);
  for (size_t q = 0; q < questions.size(); ++q) {
    SCOPED_TRACE("question " + std::to_string(q));
    const TensorAnswer& expected = host.answers[q][0];
    ASSERT_EQ(device[q].parts.size(), expected.parts.size());
    for (size_t p = 0; p < expected.parts.size(); ++p) {
      SCOPED_TRACE("part " + std::to_string(p));
      ExpectSameBits(device[q].parts[p], expected.parts[p]);
    }
    ExpectSameBits(device[q].effective_sum_of_squares, expected.effective_sum_of_squares);
    EXPECT_EQ(device[q].scaled_sum_finite, expected.scaled_sum_finite);
    ExpectSameBits(device[q].detail, expected.detail);
  }
}

std::vector<StepQuestion> Questions() {
  StepQuestion detailed = {{kFp16, Rounding::kTowardPositive}, 4.0f};
  detailed.detail = DetailQuestion{1.0f, 0.5f, ClipDomain::kUnscaled};
  StepQuestion scaled_limit = {{kCb16, Rounding::kStochastic, Overflow::kSaturate}, 0x1p20f};
  scaled_limit.detail = DetailQuestion{kInfinity, 1e3f, ClipDomain::kScaled};
  StepQuestion own_scale = {{kBf16}, 1.0f};
  own_scale.tensor_scales = {3.0f};
  return {detailed,
          {{kFp16}, 1024.0f},
          scaled_limit,
          own_scale,
          {{kCb16, Rounding::kStochastic}, 1.0f},
          {{kFp16, {}, {}, Subnormals::kFlushToZero}, 3e4f}};
}

class MeasureBlocksOnDevice : public testing::Test {
 protected:
  void SetUp() override { emulation::Reset(); }
  static StepOptions Options() {
    StepOptions options;
    options.seed = 987654321098765;
    return options;
  }
};

TEST_F(MeasureBlocksOnDevice, EqualMeasureStepForAnyLengthsOfParts) {
  const std::vector<std::vector<int64_t>> lengths = {
      {5},   {4097}, {70001}, {33, 33}, {66000, 9000, 70001}, {5000, -1, 200}, {-1, 4096, -1, 1},
      {0, 7}};
  for (const std::vector<int64_t>& of_parts : lengths) {
    SCOPED_TRACE(testing::PrintToString(of_parts));
    ExpectAsOnCpu(RecordedTensor(of_parts), Questions(), Options());
  }
}

TEST_F(MeasureBlocksOnDevice, EqualMeasureStepForValuesThatAreNotFinite) {
  for (const float special : {kInfinity, -kInfinity, std::nanf(""), 3e38f}) {
    SCOPED_TRACE(special);
    ExpectAsOnCpu(RecordedTensor({5000, 4101}, special), Questions(), Options());
    ExpectAsOnCpu(RecordedTensor({5000}, special), Questions(), Options());
  }
}

TEST_F(MeasureBlocksOnDevice, EqualMeasureStepInAnyOrderOfThreads) {
  for (const auto order :
       {emulation::ThreadOrder::kDescending, emulation::ThreadOrder::kShuffled}) {
    emulation::SetThreadOrder(order, 5);
    ExpectAsOnCpu(RecordedTensor({5000, 4101}), Questions(), Options());
  }
}

}  // namespace
}  // namespace dlsim::gpu
