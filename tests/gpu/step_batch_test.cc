// SPDX-License-Identifier: Apache-2.0
// Blocks go to a device in batches of bounded size.
#include "gpu/device/step_batch.h"

#include <gtest/gtest.h>

#include <cstring>

#include "src/measure/chunk_loader.h"
#include "tests/gpu/device_traces.h"

namespace dlsim::gpu {
namespace {

class StepBatchTest : public TraceDirectoryTest {
 protected:
  // Five blocks of 65,536 elements or less, each of 256 KiB and of 128 KiB in two micro-steps.
  TraceStep FiveBlocks() {
    const std::vector<float> values = ManyValues(5 * kBlockElements - 3, 1);
    dir_.Write("step-0.micro-0.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
    dir_.Write("step-0.micro-1.safetensors",
               BuildSafetensors({TensorAs("BF16", "w.grad", values)}, {{"grad_scale", "4"}}));
    return Open().Load(0);
  }

  // Returns the number of blocks in each batch; looks at the batches.
  std::vector<size_t> BatchesOf(const TraceStep& step, Accumulation accumulation,
                                size_t output_per_block, const BatchLimits& limits,
                                const std::function<void(const StepBatch&)>& look = {}) {
    const StepOptions options = OptionsOf(accumulation);
    const std::vector<TensorSources> tensors = CollectTensors(step, Pass::kBackward);
    const std::vector<int64_t> parts = PartNumbers(step, accumulation);
    const StepWork work = {&step, &tensors, parts, {}, &options};
    std::vector<size_t> counts;
    ForEachWave(tensors, [&](std::span<const Block> blocks) {
      while (!blocks.empty()) {
        const StepBatch batch = TakeBatch(work, blocks, output_per_block, limits);
        EXPECT_EQ(batch.parts.size(), batch.blocks.size() * parts.size());
        counts.push_back(batch.blocks.size());
        std::vector<std::byte> staged(batch.staged_bytes);
        StageBlocks(work, batch.blocks, batch.parts, staged.data());
        staged_.push_back(std::move(staged));
        if (look) look(batch);
      }
    });
    return counts;
  }

  std::vector<std::vector<std::byte>> staged_;
};

using Counts = std::vector<size_t>;
constexpr size_t kKiB = 1024;

TEST_F(StepBatchTest, AreBoundedByTheirBytes) {
  const TraceStep step = FiveBlocks();
  EXPECT_EQ(BatchesOf(step, {}, 0, {768 * kKiB, 0}), Counts({2, 2, 1}));
  EXPECT_EQ(BatchesOf(step, {}, 0, {768 * kKiB - 1, 0}), Counts({1, 1, 1, 1, 1}));
  EXPECT_EQ(BatchesOf(step, {}, 0, {}), Counts({5}));
  EXPECT_EQ(BatchesOf(step, Accumulation::kSumThenQuantize, 0, {768 * kKiB, 0}), Counts({3, 2}));
}

TEST_F(StepBatchTest, AreBoundedByTheirResults) {
  const TraceStep step = FiveBlocks();
  EXPECT_EQ(BatchesOf(step, {}, 10, {~size_t{0}, 39}), Counts({3, 2}));
  EXPECT_EQ(BatchesOf(step, {}, 10, {~size_t{0}, 40}), Counts({4, 1}));
}

TEST_F(StepBatchTest, HoldOneBlockHoweverLarge) {
  EXPECT_EQ(BatchesOf(FiveBlocks(), {}, 10, {1, 1}), Counts({1, 1, 1, 1, 1}));
}

TEST_F(StepBatchTest, HoldTheBytesAlignedWithWhatIsToBeMultiplied) {
  const TraceStep step = FiveBlocks();
  BatchesOf(step, {}, 0, {}, [&](const StepBatch& batch) {
    for (size_t i = 0; i < batch.parts.size(); ++i) {
      const StagedPart& part = batch.parts[i];
      EXPECT_EQ(part.offset % kStagedAlignment, 0u);
      EXPECT_EQ(part.count, batch.blocks[i / 2].count);
      EXPECT_EQ(part.dtype, i % 2 == 0 ? DType::kF32 : DType::kBF16);
      EXPECT_EQ(part.inverse_grad_scale, i % 2 == 0 ? 1.0f : 0.25f);
      const std::string bytes = TensorBytes(step.recordings[i % 2].tensors.front());
      const size_t begin = batch.blocks[i / 2].begin * DTypeSize(part.dtype);
      EXPECT_EQ(
          std::memcmp(staged_.back().data() + part.offset, bytes.data() + begin, part.bytes()), 0);
    }
  });
}

TEST_F(StepBatchTest, HoldSumsIfTheseAreMeasured) {
  const TraceStep step = FiveBlocks();
  const std::string first = TensorBytes(step.recordings[0].tensors[0]);
  const std::string second = TensorBytes(step.recordings[1].tensors[0]);
  BatchesOf(step, Accumulation::kSumThenQuantize, 0, {}, [&](const StepBatch& batch) {
    ASSERT_EQ(batch.parts.size(), 5u);
    const size_t i = 4 * kBlockElements + 5;
    float a = 0, sum = 0;
    uint16_t b = 0;
    std::memcpy(&a, first.data() + i * 4, 4);
    std::memcpy(&b, second.data() + i * 2, 2);
    std::memcpy(&sum, staged_.back().data() + batch.parts[4].offset + 5 * 4, 4);
    EXPECT_EQ(sum, a + std::bit_cast<float>(uint32_t{b} << 16) * 0.25f);
    EXPECT_NE(sum, 0.0f);
  });
}

}  // namespace
}  // namespace dlsim::gpu
