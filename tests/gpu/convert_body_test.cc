// SPDX-License-Identifier: Apache-2.0
// What the threads of a device do to encode and to decode, done on the host one after another,
// gives the bits that the CPU gives.
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/gpu.h"
#include "gpu/encode/convert_body.h"
#include "tests/exhaustive/proof_formats.h"
#include "tests/gpu/elements.h"

namespace dlsim::gpu {
namespace {

template <class Code, class Codec>
void RunEncode(const EncodeJob& job, const Codec& codec, Rounding rounding) {
  WithRounding(rounding, [&](auto mode) {
    for (uint64_t block = 0; block < BlocksOf(job.elements); ++block) {
      for (uint32_t thread = 0; thread < kConvertThreads; ++thread) {
        EncodeOfThread<decltype(mode)::value, Code>(job, codec, block, thread);
      }
    }
  });
}

void RunEncode(const EncodeJob& job, const Conversion& conversion) {
  WithCodec(conversion, [&](const auto& codec, auto code) {
    RunEncode<decltype(code)>(job, codec, conversion.rounding);
  });
}

// Bytes some elements past an aligned address, and some after them that must stay as they are.
class Memory {
 public:
  Memory(size_t bytes, size_t offset)
      : offset_(offset), size_(bytes), words_((offset + bytes) / 16 + 2) {
    std::ranges::fill(std::as_writable_bytes(std::span(words_)), kUntouched);
  }
  Memory(const std::vector<std::byte>& content, size_t offset) : Memory(content.size(), offset) {
    std::ranges::copy(content, data());
  }

  std::byte* data() { return reinterpret_cast<std::byte*>(words_.data()) + offset_; }

  template <class T>
  std::vector<T> Read() {
    const std::span<std::byte> all = std::as_writable_bytes(std::span(words_));
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= offset_ && i < offset_ + size_) continue;
      EXPECT_EQ(all[i], kUntouched) << "byte " << i;
    }
    std::vector<T> content(size_ / sizeof(T));
    if (!content.empty()) std::memcpy(content.data(), data(), size_);
    return content;
  }

 private:
  static constexpr std::byte kUntouched{0xA5};
  size_t offset_, size_;
  std::vector<Words> words_;
};

struct Offsets {
  size_t values = 0, codes = 0;  // in elements
};

template <class Code>
void ExpectAsCpu(const ArrayConversion& how, DType dtype, float grad_scale, size_t count,
                 const Offsets& offsets) {
  const std::vector<std::byte> elements = Elements(dtype, count, static_cast<uint32_t>(count));
  Memory values(elements, offsets.values * DTypeSize(dtype));
  Memory codes(count * sizeof(Code), offsets.codes * sizeof(Code));
  const DeviceTensor tensor = {values.data(), count, dtype, codes.data(), grad_scale};
  RunEncode({PieceOf(tensor), count, how.scale, how.random, how.first_index}, how.conversion);
  ASSERT_EQ(codes.Read<Code>(), OnCpu<Code>(how, dtype, grad_scale, elements))
      << NameOf(dtype) << " " << count;
}

void ExpectAsCpuInWidth(const ArrayConversion& how, DType dtype, float grad_scale, size_t count,
                        const Offsets& offsets = {}) {
  if (CodeBytes(how.conversion.format) == 2) {
    ExpectAsCpu<uint16_t>(how, dtype, grad_scale, count, offsets);
  } else {
    ExpectAsCpu<uint32_t>(how, dtype, grad_scale, count, offsets);
  }
}

ArrayConversion How(const Format& format, Rounding rounding) {
  ArrayConversion how = {{format, rounding}};
  how.random = {0x0123456789ABCDEF, 7};
  return how;
}

class ConvertBody : public testing::TestWithParam<std::tuple<NamedFormat, NamedRounding>> {
 protected:
  static ArrayConversion GivenHow() {
    return How(std::get<0>(GetParam()).format, std::get<1>(GetParam()).rounding);
  }
};
INSTANTIATE_TEST_SUITE_P(All, ConvertBody,
                         testing::Combine(testing::ValuesIn(FormatsUnderTest()),
                                          testing::ValuesIn(kRoundings)),
                         [](const auto& test) {
                           return TestName(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

TEST_P(ConvertBody, EncodesEveryElementTypeAsTheCpu) {
  for (const DType dtype : kDTypes) {
    ASSERT_NO_FATAL_FAILURE(ExpectAsCpuInWidth(GivenHow(), dtype, 1.0f, kTileElements + 77));
  }
}

TEST_P(ConvertBody, ScalesAndObeysPoliciesAsTheCpu) {
  ArrayConversion how = GivenHow();
  how.conversion.overflow = Overflow::kSaturate;
  how.conversion.subnormals = Subnormals::kFlushToZero;
  how.first_index = (uint64_t{5} << 35) - 1000;  // the Philox counter carries into its second word
  for (const float scale : {1.0f, 0x1p-20f, 2e15f, 0.0f, std::numeric_limits<float>::infinity()}) {
    how.scale = scale;
    for (const float grad_scale : {1.0f, 1024.0f, 3.0f, 0.0f}) {
      ASSERT_NO_FATAL_FAILURE(ExpectAsCpuInWidth(how, DType::kF32, grad_scale, kTileElements))
          << scale << " " << grad_scale;
    }
  }
}

TEST(ConvertBodyShapes, EncodesEveryLengthAndAlignment) {
  constexpr size_t kTile = kTileElements;
  for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
    for (size_t offset = 0; offset < 9; ++offset) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{9}, kTile - 1,
                                 kTile, kTile + 1, 2 * kTile, kBlockElements + 3}) {
        for (const DType dtype : kDTypes) {
          ASSERT_NO_FATAL_FAILURE(ExpectAsCpu<uint16_t>(How(kFp16, rounding), dtype, 8.0f, count,
                                                        {offset, (offset * 3) % 9}))
              << "offset " << offset;
        }
      }
    }
  }
}

template <class Code, class Codec>
void ExpectDecodesAsCpu(const Format& format, const Codec& codec, size_t count,
                        const Offsets& offsets) {
  std::vector<std::byte> bytes = Elements(DType::kF32, count * sizeof(Code) / 4 + 1, 5);
  bytes.resize(count * sizeof(Code));
  Memory from(bytes, offsets.codes * sizeof(Code));
  const std::vector<Code> codes = from.Read<Code>();
  Memory to(count * sizeof(float), offsets.values * sizeof(float));
  for (uint64_t block = 0; block * kTileElements < count; ++block) {
    for (uint32_t thread = 0; thread < kConvertThreads; ++thread) {
      DecodeOfThread(reinterpret_cast<const Code*>(from.data()),
                     reinterpret_cast<float*>(to.data()), count, codec, block, thread);
    }
  }
  std::vector<float> expected(count);
  DecodeArray(format, std::span<const Code>(codes), expected);
  const std::vector<uint32_t> actual = to.Read<uint32_t>();
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(actual[i], std::bit_cast<uint32_t>(expected[i])) << codes[i] << " " << i;
  }
}

void ExpectDecodes(const Format& format, size_t count, const Offsets& offsets = {}) {
  WithCodec({format}, [&](const auto& codec, auto code) {
    ExpectDecodesAsCpu<decltype(code)>(format, codec, count, offsets);
  });
}

TEST(ConvertBodyShapes, DecodesEveryFormatLengthAndAlignment) {
  constexpr size_t kTile = kTileElements;
  for (const NamedFormat& format : FormatsUnderTest()) {
    // Of 16 bits these are nearly all codes.
    ASSERT_NO_FATAL_FAILURE(ExpectDecodes(format.format, 4 * 65536)) << format.name;
    for (size_t offset = 0; offset < 9; ++offset) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{9}, kTile, 2 * kTile + 3}) {
        ASSERT_NO_FATAL_FAILURE(ExpectDecodes(format.format, count, {offset, (offset * 3) % 9}))
            << format.name;
      }
    }
  }
}

}  // namespace
}  // namespace dlsim::gpu
