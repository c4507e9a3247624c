// SPDX-License-Identifier: Apache-2.0
// What the threads of a device do to encode to scaled formats and to decode, done on the host one
// after another, gives the bits that the CPU gives.
#include "gpu/scaled/scaled_body.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dlsim/scaled_codec.h"
#include "src/scaled/element_kernels.h"
#include "tests/gpu/elements.h"

namespace dlsim::gpu {
namespace {

constexpr BlockAxis kAxes[] = {BlockAxis::kRow, BlockAxis::kColumn, BlockAxis::kBoth};

struct Shape {
  uint64_t rows = 0, columns = 0;
};

// A matrix of any type, and what it is encoded to.
struct Case {
  NamedScaledFormat named;
  BlockAxis axis = BlockAxis::kRow;
  Shape shape;
  DType dtype = DType::kF32;
  float grad_scale = 1.0f;
  std::optional<float> scale = {};
};

bool IsPossible(const ScaledFormat& format, BlockAxis axis) {
  return axis != BlockAxis::kBoth || format.sharing == Sharing::kBlock;
}

// Numbers of which each block has some 30 binades, and rows of zeros.
std::vector<std::byte> Numbers(const Shape& shape) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(shape.rows * shape.columns * sizeof(float));
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    const int exponent = static_cast<int>(random() % 30) - 20;
    const float fraction = static_cast<float>(random()) * 0x1p-32f - 0.5f;
    const float value = i / shape.columns % 3 == 2 ? 0 : std::ldexp(fraction, exponent);
    std::memcpy(&bytes[i * sizeof(float)], &value, sizeof(float));
  }
  return bytes;
}

// Calls body(thread) for the threads of a launch for these groups.
template <uint32_t kTeam, class Body>
void ForEachThread(const MatrixGroups& groups, const Body& body) {
  for (uint64_t block = 0; block * (kTeamBlock / kTeam) < groups.count; ++block) {
    for (uint32_t thread = 0; thread < kTeamBlock; ++thread) body(TeamThread{block, thread});
  }
}

uint32_t LargestOf(const MatrixGroups& shares, const MatrixValues& values) {
  uint32_t largest = 0;
  ForEachThread<kTeamBlock>(shares, [&](const TeamThread& thread) {
    largest = std::max(largest, LargestOfThread<kTeamBlock>(shares, thread, values));
  });
  return largest;
}

void ExpectAsCpu(const Case& c, const std::vector<std::byte>& elements) {
  const ScaledFormat& format = c.named.format;
  const auto [rows, columns] = c.shape;
  const std::vector<float> floats = FloatsOf(c.dtype, c.grad_scale, elements);
  const ScaledCodes expected =
      dlsim::EncodeScaled(format, format.forward, {floats, rows, columns}, c.axis, c.scale);
  const MatrixValues values = {elements.data(), c.dtype,
                               c.grad_scale == 1.0f ? 1.0f : 1.0f / c.grad_scale};
  const MatrixGroups shares = SharesOf(rows, columns);
  const bool one_scale = format.sharing == Sharing::kTensor;
  const bool has_tensor_scale = format.scale == ScaleType::kFp8;
  std::vector<uint8_t> codes(expected.codes.size());
  std::vector<uint32_t> scales(expected.scales.size());
  const ScaledJob job = {
      one_scale ? shares : GroupsOf(GroupSizeOf(format, rows, columns, c.axis), rows, columns),
      MakeElementSpec(format.forward),
      GroupScales(format, format.forward),
      codes.data(),
      scales.data(),
      one_scale};
  const uint32_t largest = LargestOf(shares, values);
  if (c.scale) {
    scales[0] = std::bit_cast<uint32_t>(*c.scale);
  } else if (one_scale) {
    scales[0] = ScaleOfTensor(job.of_groups, format.scale, largest);
  }
  float tensor_scale = 0;
  if (has_tensor_scale) {
    tensor_scale = std::bit_cast<float>(ScaleOfTensor(job.of_groups, format.scale, largest));
  }
  std::vector<float> decoded(codes.size());
  WithTeam(job.groups, [&](auto team) {
    constexpr uint32_t kTeam = decltype(team)::value;
    std::vector<uint32_t> of_groups(job.groups.count + kTeamBlock);
    ForEachThread<kTeam>(job.groups, [&](const TeamThread& thread) {
      uint32_t& of_group = of_groups[thread.Group<kTeam>()];
      of_group = std::max(of_group, LargestOfThread<kTeam>(job.groups, thread, values));
    });
    ForEachThread<kTeam>(job.groups, [&](const TeamThread& thread) {
      EncodeShare<kTeam>(job, thread, values, has_tensor_scale ? &largest : nullptr,
                         of_groups[thread.Group<kTeam>()]);
    });
    ForEachThread<kTeam>(job.groups, [&](const TeamThread& thread) {
      DecodeShare<kTeam>(job, thread, has_tensor_scale ? &tensor_scale : nullptr, decoded.data());
    });
  });
  EXPECT_EQ(codes, expected.codes);
  EXPECT_EQ(scales, expected.scales);
  if (has_tensor_scale) {
    EXPECT_EQ(tensor_scale, expected.tensor_scale);
  }
  std::vector<float> results(floats.size());
  dlsim::DecodeScaled(format, format.forward, expected, rows, columns, c.axis, results);
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(results[i]))
        << "element " << i;
  }
}

class ScaledBody : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ScaledBody,
                         testing::Values("fp8-current", "fp8-current:margin=3,pow2=1,forward=e5m2",
                                         "fp8-rowwise", "fp8-block", "fp8-block:block=24,pow2=0",
                                         "mxfp8", "mxfp8:rule=floor,block=48",
                                         "mxfp8:rule=nearest,forward=e5m2", "mxfp6-e2m3:rule=even",
                                         "mxfp6-e3m2", "mxfp4", "nvfp4", "nvfp4:forward=e4m3"),
                         [](const auto& test) { return "Format" + std::to_string(test.index); });

TEST_P(ScaledBody, EncodesAndDecodesAsTheCpu) {
  const NamedScaledFormat named = ParseScaledFormat(GetParam());
  for (const BlockAxis axis : kAxes) {
    if (!IsPossible(named.format, axis)) continue;
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 40}, Shape{70, 33}, Shape{130, 144}}) {
      SCOPED_TRACE(named.name + " axis " + std::to_string(static_cast<int>(axis)) + " " +
                   std::to_string(shape.rows) + " x " + std::to_string(shape.columns));
      Case c = {named, axis, shape};
      ASSERT_NO_FATAL_FAILURE(ExpectAsCpu(c, Numbers(shape)));
      // Infinities, NaN and all exponents.
      const size_t count = shape.rows * shape.columns;
      ASSERT_NO_FATAL_FAILURE(ExpectAsCpu(c, Elements(DType::kF32, count, 3)));
    }
  }
}

TEST_P(ScaledBody, TakesEveryType) {
  const NamedScaledFormat named = ParseScaledFormat(GetParam());
  for (const DType dtype : {DType::kF64, DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(named.name + " " + std::string(NameOf(dtype)));
    const Case c = {named, BlockAxis::kRow, {5, 64}, dtype, 8.0f};
    ASSERT_NO_FATAL_FAILURE(ExpectAsCpu(c, Elements(dtype, 320, 1)));
  }
}

TEST(ScaledBodyArguments, AScaleMayBeGiven) {
  for (const float scale : {1.0f, 3.0f, 0x1p-20f}) {
    const Case c = {
        ParseScaledFormat("fp8-delayed"), BlockAxis::kRow, {7, 50}, DType::kF32, 1.0f, scale};
    ASSERT_NO_FATAL_FAILURE(ExpectAsCpu(c, Numbers(c.shape)));
  }
}

}  // namespace
}  // namespace dlsim::gpu
