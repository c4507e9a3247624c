// SPDX-License-Identifier: Apache-2.0
// What thread blocks of a device do to tabulate pieces, done on the host thread by thread, gives
// the sums that adding value by value gives.
#include "gpu/tabulate/tabulate_body.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/gpu/elements.h"

namespace dlsim::gpu {
namespace {

enum class Order { kAscending, kDescending, kShuffled };

// A block whose threads run one after another.
class HostThreads {
 public:
  explicit HostThreads(Order order) : order_(kTabulateThreads), counts_(kTabulateThreads) {
    std::iota(order_.begin(), order_.end(), 0u);
    if (order == Order::kDescending) std::ranges::reverse(order_);
    if (order == Order::kShuffled) std::shuffle(order_.begin(), order_.end(), std::mt19937(1));
  }

  template <class Body>
  void operator()(const Body& body) const {
    for (const uint32_t thread : order_) body(thread, counts_[thread]);
  }

 private:
  std::vector<uint32_t> order_;
  mutable std::vector<OfThread> counts_;
};

// How a launch may be.
struct Shape {
  uint32_t blocks = 1;
  uint32_t binades = 22;
  Order order = Order::kAscending;
};

using Tables = std::vector<TableSums>;

Tables Run(std::span<const Piece> pieces, size_t tables, const Shape& shape, float scale = 1.0f) {
  Tables sums(tables);
  TabulateJob job;
  job.pieces = pieces.data();
  job.piece_count = static_cast<uint32_t>(pieces.size());
  job.blocks = shape.blocks;
  job.binades = shape.binades;
  job.scale = scale;
  job.tables = reinterpret_cast<uint64_t*>(sums.data());
  for (uint32_t block = 0; block < shape.blocks; ++block) {
    // What another kernel left there.
    std::vector<uint32_t> words(BlockSums::Words(shape.binades), 0xDEADBEEF);
    TabulateBlock(job, block, BlockSums(words.data(), shape.binades), HostThreads(shape.order));
  }
  return sums;
}

// The definition.
void AddEach(const Piece& piece, float scale, TableSums& sums) {
  const size_t bytes = piece.count * DTypeSize(piece.dtype);
  const std::vector<std::byte> elements(piece.values, piece.values + bytes);
  for (const float value : FloatsOf(piece.dtype, 1.0f / piece.inverse_grad_scale, elements)) {
    sums.Add(scale == 1.0f ? value : value * scale);
  }
}

void ExpectSame(const TableSums& actual, const TableSums& expected) {
  EXPECT_EQ(actual.zeros, expected.zeros);
  EXPECT_EQ(actual.nan, expected.nan);
  EXPECT_EQ(actual.inf, expected.inf);
  EXPECT_EQ(actual.absmax, expected.absmax);
  EXPECT_EQ(actual.largest, expected.largest);
  for (size_t i = 0; i < kExponents; ++i) {
    const auto* const words = reinterpret_cast<const uint64_t*>(&actual.binades[i]);
    const auto* const wanted = reinterpret_cast<const uint64_t*>(&expected.binades[i]);
    for (uint32_t c = 0; c < column::kColumns; ++c) {
      ASSERT_EQ(words[c], wanted[c])
          << "exponent " << kLowestExponent + static_cast<int>(i) << " column " << c;
    }
  }
}

// Tensors in memory at some offset from alignment, cut into pieces.
class Tensors {
 public:
  void Add(DType dtype, const std::vector<std::byte>& elements, size_t offset = 0,
           float inverse_grad_scale = 1.0f) {
    const size_t before = offset * DTypeSize(dtype);
    auto& memory =
        memory_.emplace_back(new (std::align_val_t{16}) std::byte[before + elements.size() + 16]);
    std::ranges::copy(elements, memory.get() + before);
    Piece whole;
    whole.values = memory.get() + before;
    whole.dtype = dtype;
    whole.tensor = static_cast<uint32_t>(tables_++);
    whole.inverse_grad_scale = inverse_grad_scale;
    AppendPieces(whole, elements.size() / DTypeSize(dtype), pieces_);
  }

  void Add(const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    Add(DType::kF32, {bytes.begin(), bytes.end()});
  }

  void ExpectAsDefined(const Shape& shape, float scale = 1.0f) const {
    const Tables actual = Run(pieces_, tables_, shape, scale);
    Tables expected(tables_);
    for (const Piece& piece : pieces_) AddEach(piece, scale, expected[piece.tensor]);
    for (size_t t = 0; t < tables_; ++t) {
      SCOPED_TRACE("tensor " + std::to_string(t));
      ASSERT_NO_FATAL_FAILURE(ExpectSame(actual[t], expected[t]));
    }
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{16}); }
  };
  std::vector<std::unique_ptr<std::byte[], Free>> memory_;
  std::vector<Piece> pieces_;
  size_t tables_ = 0;
};

// Normally distributed values times 2^k, with k up to `spread` for some.
std::vector<float> Normal(size_t count, float deviation, int spread = 0) {
  std::mt19937 random(static_cast<uint32_t>(count));
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    if (spread > 0) value = std::ldexp(value, static_cast<int>(random() % spread));
  }
  return values;
}

TEST(TabulateBody, EveryLengthTypeAndAlignment) {
  for (const DType dtype : kDTypes) {
    for (size_t offset = 0; offset < 9; ++offset) {
      Tensors tensors;
      for (const size_t count : {0, 1, 7, 8, 9, 16, 511, 4095, 4096, 4097, 16385}) {
        tensors.Add(dtype, Elements(dtype, count, static_cast<uint32_t>(count)), offset);
      }
      SCOPED_TRACE(std::string(NameOf(dtype)) + " offset " + std::to_string(offset));
      ASSERT_NO_FATAL_FAILURE(tensors.ExpectAsDefined({}));
    }
  }
}

TEST(TabulateBody, EveryLaunch) {
  Tensors tensors;
  for (const size_t count : {100, 70000, 3, 200000, 16384, 65536})
    tensors.Add(Normal(count, 1e-3f));
  tensors.Add(DType::kF32, Elements(DType::kF32, 70000, 1));
  for (const uint32_t blocks : {1u, 5u, 64u}) {
    for (const uint32_t binades : {1u, 6u, 22u}) {
      for (const Order order : {Order::kAscending, Order::kDescending, Order::kShuffled}) {
        SCOPED_TRACE(std::to_string(blocks) + " blocks, " + std::to_string(binades) + " binades");
        ASSERT_NO_FATAL_FAILURE(tensors.ExpectAsDefined({blocks, binades, order}));
      }
    }
  }
}

TEST(TabulateBody, ScalesValues) {
  Tensors tensors;
  const auto values = Normal(5000, 1.0f);
  const auto bytes = std::as_bytes(std::span(values));
  for (const float inverse : {1.0f, 0.125f, 1.0f / 3.0f, 0x1p-120f}) {
    tensors.Add(DType::kF32, {bytes.begin(), bytes.end()}, 0, inverse);
    tensors.Add(DType::kF16, Elements(DType::kF16, 5000, 2), 1, inverse);
  }
  for (const float scale : {1.0f, 1.5f, 1.9999999f}) {
    ASSERT_NO_FATAL_FAILURE(tensors.ExpectAsDefined({}, scale));
  }
}

// Buckets become full, sums of squares carry, and nothing is lost.
TEST(TabulateBody, ManyEqualValues) {
  Tensors tensors;
  for (const uint32_t bits :
       {0x3F800000u, 0x3F800FFFu, 0x3FFFFFFFu, 0x3FFF0000u, 0x3F9ABFFFu, 1u, 0x007FFFFFu,
        0x00800000u, 0x7F7FFFFFu, 0u, 0x7F800000u, 0xFFC00000u}) {
    tensors.Add(std::vector<float>(70000, std::bit_cast<float>(bits)));
  }
  tensors.ExpectAsDefined({});
  tensors.ExpectAsDefined({3, 6, Order::kShuffled});
}

TEST(TabulateBody, EveryBucketAndBoundary) {
  std::vector<float> values;
  for (uint32_t high = 0; high < kBuckets; ++high) {
    for (const uint32_t low : {0u, 1u, 2048u, 4095u}) {
      for (const uint32_t exponent : {0u, 1u, 127u, 254u}) {
        values.push_back(std::bit_cast<float>(exponent << 23 | high << kLowBits | low));
      }
    }
  }
  Tensors tensors;
  tensors.Add(values);
  tensors.ExpectAsDefined({});
}

// Values outside of the window: some, more than wait, and so many that the window moves.
TEST(TabulateBody, WideAndChangingTensors) {
  Tensors tensors;
  tensors.Add(Normal(100000, 1e-30f, 60));
  std::vector<float> changing = Normal(40000, 1e-20f);
  for (const float deviation : {1e10f, 1e-10f, 1e-40f, 1e30f}) {
    const std::vector<float> more = Normal(30001, deviation);
    changing.insert(changing.end(), more.begin(), more.end());
  }
  tensors.Add(changing);
  std::vector<float> late(100000, 0.0f);
  std::ranges::fill(std::span(late).subspan(90000), 3.0f);
  tensors.Add(late);
  for (const uint32_t binades : {6u, 22u}) tensors.ExpectAsDefined({2, binades, Order::kShuffled});
}

}  // namespace
}  // namespace dlsim::gpu
