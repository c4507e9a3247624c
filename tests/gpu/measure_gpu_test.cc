// SPDX-License-Identifier: Apache-2.0
// The kernels that measure, on the emulated device, equal Measure on the CPU digit for digit.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "emulation.h"
#include "gpu/measure/measure_kernels.h"
#include "tests/gpu/device_pieces.h"
#include "tests/support/boundaries.h"
#include "tests/support/formats_under_test.h"
#include "tests/support/same_measurement.h"

namespace dlsim::gpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What arrays of a test consist of.
struct DataSet {
  std::string name;
  std::vector<float> values;
};

std::vector<float> Normal(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Over many binades, with zeros.
std::vector<float> GradientLike(size_t count) {
  std::vector<float> values = Normal(count);
  std::mt19937 random(8);
  std::uniform_int_distribution<int> exponent(-36, 3);
  for (size_t i = 0; i < count; ++i) {
    values[i] = i % 17 == 0 ? 0.0f : std::ldexp(values[i], exponent(random));
  }
  return values;
}

// Gradient-like but for one value in a few chunks.
std::vector<float> WithFew(size_t count, float value) {
  std::vector<float> values = GradientLike(count);
  for (size_t i = 4097; i < count; i += 3 * kChunkElements) values[i] = value;
  return values;
}

std::vector<float> Specials(size_t count) {
  const std::vector<uint32_t> bits = BoundaryBits(kFp16);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::bit_cast<float>(bits[i * 7919 % bits.size()]);
  }
  return values;
}

std::vector<DataSet> DataSets(size_t count) {
  return {{"normal", Normal(count)},
          {"gradient-like", GradientLike(count)},
          {"a few infinities", WithFew(count, -kInfinity)},
          {"a few NaNs", WithFew(count, -std::nanf(""))},
          {"a few huge values", WithFew(count, 3e38f)},
          {"specials", Specials(count)},
          {"infinities", std::vector<float>(count, kInfinity)},
          {"NaNs", std::vector<float>(count, std::nanf(""))},
          {"zeros", std::vector<float>(count, -0.0f)},
          {"huge", std::vector<float>(count, -3.4e38f)},
          {"tiny", std::vector<float>(count, 1e-45f)}};
}

DeviceQuestion ForDevice(const Measurement& question) {
  DeviceQuestion result;
  result.conversion = question.conversion;
  result.scale = question.scale;
  result.seed = question.random.seed;
  return result;
}

// Tensors of one type on the device.
class DeviceTensors {
 public:
  void Add(std::span<const std::byte> bytes, const Piece& how, size_t offset = 0) {
    Piece whole = how;
    whole.tensor = tensor_count_++;
    whole.values = bytes_.emplace_back(bytes, offset).data();
    AppendPieces(whole, bytes.size() / DTypeSize(how.dtype), pieces_);
  }
  void Add(std::span<const float> values, uint32_t random_stream = 0) {
    Piece how;
    how.random_stream = random_stream;
    Add(std::as_bytes(values), how, 4);
  }

  // Returns [question * tensor_count + tensor].
  std::vector<TensorStats> Measure(std::span<const DeviceQuestion> questions) const {
    const auto piece_count = static_cast<uint32_t>(pieces_.size());
    const DeviceBuffer<Piece> pieces = Upload(std::span<const Piece>(pieces_));
    const DeviceBuffer<TensorStats> parts(pieces_.size() * questions.size());
    const DeviceBuffer<TensorStats> totals(tensor_count_ * questions.size());
    const OwnedStream stream;
    LaunchMeasure(pieces.data(), piece_count, questions, parts.data(), stream.get());
    LaunchMerge(pieces.data(), piece_count, parts.data(), questions.size(), tensor_count_,
                totals.data(), stream.get());
    CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    return Download(totals);
  }

 private:
  uint32_t tensor_count_ = 0;
  std::vector<OffsetBytes> bytes_;
  std::vector<Piece> pieces_;
};

// Expects one launch for all questions to equal the CPU.
void ExpectAsOnCpu(std::span<const float> values, const std::vector<Measurement>& questions) {
  DeviceTensors tensors;
  tensors.Add(values, questions.front().random.stream);
  std::vector<DeviceQuestion> on_device;
  for (const Measurement& question : questions) on_device.push_back(ForDevice(question));
  const std::vector<TensorStats> results = tensors.Measure(on_device);
  const std::vector<TensorStats> expected = Measure(values, questions);
  ASSERT_EQ(results.size(), expected.size());
  for (size_t q = 0; q < results.size(); ++q) {
    SCOPED_TRACE("question " + std::to_string(q));
    ExpectSameBits(results[q], expected[q]);
  }
}

class MeasureOnDevice : public testing::Test {
 protected:
  void SetUp() override { emulation::Reset(); }
};

// Questions of every mode about some formats and scales.
std::vector<Measurement> EveryMode(const std::vector<NamedFormat>& formats,
                                   const std::vector<float>& scales) {
  std::vector<Measurement> questions;
  for (const NamedFormat& format : formats) {
    for (int mode = 0; mode < 6; ++mode) {
      for (const float scale : scales) {
        const auto rounding = static_cast<Rounding>(mode);
        const auto overflow = mode % 2 == 0 ? Overflow::kInfinity : Overflow::kSaturate;
        questions.push_back({{format.format, rounding, overflow}, scale, {99, 5}});
      }
    }
    for (const float scale : scales) {
      questions.push_back(
          {{format.format, {}, Overflow::kSaturate, Subnormals::kFlushToZero}, scale, {99, 5}});
    }
  }
  return questions;
}

const std::vector<NamedFormat> kTuned = {{"fp16", kFp16}, {"bf16", kBf16}, {"cb16", kCb16}};

TEST_F(MeasureOnDevice, EqualsTheCpuForEveryFormatModeAndScale) {
  const std::vector<float> scales = {0.0f,  0x1p-14f, 1.0f,   -32768.0f,
                                     2e15f, 3e38f,    1e-40f, kInfinity};
  for (const DataSet& data : DataSets(kChunkElements + 77)) {
    SCOPED_TRACE(data.name);
    ExpectAsOnCpu(data.values, EveryMode(kTuned, {-32768.0f}));
  }
  ExpectAsOnCpu(Specials(kChunkElements + 77),
                EveryMode(kTuned, {0.0f, 1.0f, -3.0f, 1e-40f, kInfinity}));
}

TEST_F(MeasureOnDevice, EqualsTheCpuForAnyFormat) {
  for (const NamedFormat& format : FormatsUnderTest()) {
    SCOPED_TRACE(format.name);
    ExpectAsOnCpu(Specials(3000), EveryMode({format}, {1.0f, 3.0f}));
    ExpectAsOnCpu(GradientLike(3000), EveryMode({format}, {0x1p-120f, 0x1p100f}));
  }
}

TEST_F(MeasureOnDevice, EqualsTheCpuForEverySize) {
  const std::vector<Measurement> questions = EveryMode(kTuned, {1e4f});
  for (const size_t count : {size_t{0}, size_t{1}, size_t{31}, size_t{32}, size_t{33}, size_t{255},
                             size_t{256}, size_t{257}, size_t{4095}, size_t{4096}, size_t{4097}}) {
    SCOPED_TRACE(count);
    ExpectAsOnCpu(GradientLike(count), questions);
  }
}

TEST_F(MeasureOnDevice, EqualsTheCpuOverSeveralBlocks) {
  const std::vector<Measurement> questions = {
      {{kFp16}, 1.0f},
      {{kCb16, Rounding::kStochastic}, 0x1p-20f, {1234567890123, 77}},
      {{kBf16}, 3.0f}};
  for (const size_t count :
       {kBlockElements - 1, kBlockElements, kBlockElements + 1, 2 * kBlockElements + 4097}) {
    SCOPED_TRACE(count);
    std::vector<Measurement> same_stream = questions;
    for (Measurement& question : same_stream) question.random.stream = 77;
    ExpectAsOnCpu(GradientLike(count), same_stream);
  }
}

TEST_F(MeasureOnDevice, AnswersAnyNumberOfQuestions) {
  const std::vector<float> values = WithFew(9000, 1e30f);
  std::vector<Measurement> questions;
  for (int k = 0; k < 21; ++k) {
    questions.push_back(
        {{kTuned[static_cast<size_t>(k) % 3].format}, std::ldexp(1.0f, k - 10), {}});
    ExpectAsOnCpu(values, questions);
  }
}

TEST_F(MeasureOnDevice, GivesTheSameInAnyOrderOfThreads) {
  const std::vector<Measurement> questions = EveryMode(kTuned, {0x1p-3f});
  const std::vector<float> values = WithFew(kBlockElements + 5000, kInfinity);
  for (const auto order :
       {emulation::ThreadOrder::kDescending, emulation::ThreadOrder::kShuffled}) {
    emulation::SetThreadOrder(order, 3);
    ExpectAsOnCpu(values, questions);
  }
}

TEST_F(MeasureOnDevice, MeasuresManyTensorsOfAllSizesAtOnce) {
  DeviceTensors tensors;
  std::vector<std::vector<float>> values;
  for (uint32_t t = 0; t < 60; ++t) {
    values.push_back(GradientLike(t == 40 ? 3 * kBlockElements + 5 : t % 7 == 0 ? 0 : t * t));
    tensors.Add(values.back(), t);
  }
  const DeviceBuffer<float> scales = Upload(std::span<const float>(Normal(values.size())));
  std::vector<Measurement> questions = {
      {{kFp16}, 8.0f, {}}, {{kCb16, Rounding::kStochastic}, 0x1p-9f, {5, 0}}, {{kCb16}, 0.0f, {}}};
  std::vector<DeviceQuestion> on_device;
  for (const Measurement& question : questions) on_device.push_back(ForDevice(question));
  on_device[2].tensor_scales = scales.data();
  const std::vector<TensorStats> results = tensors.Measure(on_device);
  for (uint32_t t = 0; t < values.size(); ++t) {
    SCOPED_TRACE(t);
    questions[1].random.stream = t;
    questions[2].scale = Normal(values.size())[t];
    for (size_t q = 0; q < questions.size(); ++q) {
      ExpectSameBits(results[q * values.size() + t], Measure(values[t], questions[q]));
    }
  }
}

// Elements of a type and what they are as float32, unscaled.
template <class T>
struct Typed {
  DType dtype;
  std::vector<T> elements;
  std::vector<float> values;
};

template <class T>
void ExpectTypedAsOnCpu(const Typed<T>& typed, float inverse_grad_scale) {
  Piece how;
  how.dtype = typed.dtype;
  how.inverse_grad_scale = inverse_grad_scale;
  std::vector<float> values = typed.values;
  for (float& value : values) value *= inverse_grad_scale;
  DeviceTensors tensors;
  tensors.Add(std::as_bytes(std::span<const T>(typed.elements)), how, sizeof(T));
  const std::vector<Measurement> questions = {
      {{kFp16}, 2.0f, {}}, {{kBf16, Rounding::kTowardZero}, 2.0f, {}}, {{kCb16}, 2.0f, {}}};
  std::vector<DeviceQuestion> on_device;
  for (const Measurement& question : questions) on_device.push_back(ForDevice(question));
  const std::vector<TensorStats> results = tensors.Measure(on_device);
  for (size_t q = 0; q < questions.size(); ++q) {
    ExpectSameBits(results[q], Measure(values, questions[q]));
  }
}

TEST_F(MeasureOnDevice, TakesEveryTypeOfElementAtItsOwnAlignment) {
  const std::vector<float> source = GradientLike(9001);
  Typed<double> f64 = {DType::kF64, {}, source};
  Typed<uint16_t> f16 = {DType::kF16, {}, {}}, bf16 = {DType::kBF16, {}, {}};
  const auto encode = [](const Format& format, float value, Typed<uint16_t>& into) {
    const CodecSpec spec = MakeCodecSpec({format});
    const EncodeResult result = Encode(spec, {}, std::bit_cast<uint32_t>(value));
    into.elements.push_back(static_cast<uint16_t>(result.code));
    into.values.push_back(std::bit_cast<float>(Decode(spec, result.code)));
  };
  for (const float value : source) {
    f64.elements.push_back(double{value} * (1 + 0x1p-40));
    encode(kFp16, value, f16);
    encode(kBf16, value, bf16);
  }
  const Typed<float> f32 = {DType::kF32, source, source};
  for (const float inverse_grad_scale : {1.0f, 0.125f, 1 / 3.0f}) {
    ExpectTypedAsOnCpu(f32, inverse_grad_scale);
    ExpectTypedAsOnCpu(f64, inverse_grad_scale);
    ExpectTypedAsOnCpu(f16, inverse_grad_scale);
    ExpectTypedAsOnCpu(bf16, inverse_grad_scale);
  }
}

TEST_F(MeasureOnDevice, NeitherAllocatesNorWaits) {
  if (!emulation::kIsEmulated) GTEST_SKIP() << emulation::kNeeded;
  const std::vector<float> values = Normal(100);
  const DeviceBuffer<float> on_device = Upload(std::span<const float>(values));
  Piece whole;
  whole.values = reinterpret_cast<const std::byte*>(on_device.data());
  whole.count = 100;
  const DeviceBuffer<Piece> pieces = Upload(std::span<const Piece>(&whole, 1));
  const DeviceBuffer<TensorStats> results(2), totals(2);
  const OwnedStream stream;
  const std::vector<DeviceQuestion> questions = {{{kFp16}}, {{kBf16, Rounding::kTowardZero}}};
  const emulation::CallCounts before = emulation::Counts();
  LaunchMeasure(pieces.data(), 1, questions, results.data(), stream.get());
  LaunchMerge(pieces.data(), 1, results.data(), 2, 1, totals.data(), stream.get());
  const emulation::CallCounts after = emulation::Counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  EXPECT_EQ(after.copies, before.copies);
  EXPECT_EQ(after.launches, before.launches + 3);
  CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
}

}  // namespace
}  // namespace dlsim::gpu
