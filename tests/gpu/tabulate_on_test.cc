// SPDX-License-Identifier: Apache-2.0
// A step that a device tabulates gives the tables of the CPU. The device here is the host, which
// adds value by value.
#include "src/device/compute_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "dlsim/measure.h"
#include "src/measure/step_blocks.h"
#include "tests/gpu/device_traces.h"

namespace dlsim {
namespace {

class HostDevice final : public ComputeDevice {
 public:
  std::string name() const override { return "host"; }

  // Hands over the sums of every other block, so that tables come several times.
  void Tabulate(std::span<const DeviceBlock> blocks, float scale, const TakeSums& take) override {
    std::map<size_t, TableSums> tables;
    size_t count = 0;
    const auto hand_over = [&] {
      for (auto& [table, sums] : tables) take(table, sums);
      tables.clear();
    };
    for (const DeviceBlock& block : blocks) {
      std::vector<std::vector<float>> values;
      std::vector<std::span<float>> places;
      for (const DevicePiece& piece : block.pieces) {
        ASSERT_LE(piece.count, kBlockElements);
        values.emplace_back(piece.count);
        places.push_back(piece.on_device == nullptr ? std::span(values.back())
                                                    : std::span<float>());
      }
      if (block.fill) block.fill(places);
      for (size_t i = 0; i < values.size(); ++i) {
        const DevicePiece& piece = block.pieces[i];
        for (size_t at = 0; piece.on_device != nullptr && at < piece.count; at += kChunkElements) {
          LoadFloats(piece.dtype, piece.on_device + at * DTypeSize(piece.dtype), piece.grad_scale,
                     std::span(values[i]).subspan(at, std::min(kChunkElements, piece.count - at)));
        }
        for (const float value : values[i]) tables[piece.table].Add(value * scale);
      }
      if (++count % 2 == 0) hand_over();
    }
    hand_over();
  }

  void Read(const std::byte* from, std::span<std::byte> to) override {
    std::memcpy(to.data(), from, to.size());
  }

  void Encode(const ArrayConversion&, DType, std::span<const std::byte>,
              std::span<std::byte>) override {}
  void Decode(const Format&, std::span<const std::byte>, std::span<float>) override {}
};

class TabulateOnTest : public TraceDirectoryTest {
 protected:
  TraceStep TwoMicroSteps() {
    dir_.Write("step-0.micro-0.safetensors", AllTypes(1));
    dir_.Write("step-0.micro-1.safetensors", AllTypes(100));
    return Open().Load(0);
  }

  HostDevice device_;
};

TEST_F(TabulateOnTest, GivesTheTablesOfTheCpu) {
  const TraceStep step = TwoMicroSteps();
  for (const Accumulation accumulation : kAccumulations) {
    StepOptions options = OptionsOf(accumulation);
    options.mantissas = {1.5f};
    const StepTables expected = TabulateStep(step, options);
    options.device = &device_;
    const StepTables got = TabulateStep(step, options);
    EXPECT_EQ(got, expected);
    EXPECT_EQ(TabulateAt(1.5f, got.parts, step, options), expected.by_mantissa.at(1.5f));
  }
}

TEST_F(TabulateOnTest, TensorsOnTheDeviceAreTabulatedWhereTheyLie) {
  TraceStep step = TwoMicroSteps();
  step.recordings.resize(1);
  StepTables expected = TabulateStep(step, {});
  for (TensorTable& table : expected.parts.front()) table.channels.clear();
  std::vector<std::vector<std::byte>> memory;
  for (TraceTensor& tensor : step.recordings.front().tensors) {
    std::vector<std::byte>& bytes =
        memory.emplace_back(tensor.elements * DTypeSize(tensor.info->dtype));
    if (!bytes.empty()) std::memcpy(bytes.data(), tensor.Bytes(0, bytes), bytes.size());
    tensor.memory = bytes.data();
    tensor.source = nullptr;
    tensor.device = 0;
  }
  EXPECT_EQ(TabulateStep(step, OptionsOf(Accumulation::kQuantizeThenSum, &device_)), expected);
}

}  // namespace
}  // namespace dlsim
