// SPDX-License-Identifier: Apache-2.0
#include "bench/data_sets.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>

#include "dlsim/convert.h"

namespace dlsim::bench {
namespace {

// Arrays past this many values repeat them: no branch predictor learns as many, and drawing 2^27
// would take longer than most benchmarks.
constexpr size_t kDrawnValues = size_t{1} << 20;

constexpr size_t kHugePage = size_t{2} << 20;

void FillValues(DataSet data, int thread, std::span<float> values) {
  std::mt19937_64 generator(2023 + static_cast<uint64_t>(thread));
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-36, 3);
  const size_t drawn = std::min(values.size(), kDrawnValues);
  for (float& value : values.first(drawn)) {
    value = normal(generator);
    if (data == DataSet::kGrad) value = std::ldexp(value, exponent(generator));
  }
  for (size_t i = drawn; i < values.size(); i += drawn) {
    std::copy_n(values.begin(), std::min(drawn, values.size() - i),
                values.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// Whole huge pages: with 4 KiB pages the cache sets that an array falls into differ from run to
// run, and with them the speed in L2.
std::byte* Allocate(size_t bytes) {
  const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, rounded, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

std::string SizeName(Size size) {
  return size == Size::kL1 ? "L1" : size == Size::kL2 ? "L2" : "DRAM";
}

std::string DataSetName(DataSet data) {
  return data == DataSet::kAny ? "-" : data == DataSet::kNormal ? "normal" : "grad";
}

void ArrayStore::Free::operator()(std::byte* memory) const { std::free(memory); }

size_t ArrayStore::Elements(Size size) const {
  if (size == Size::kDram) return dram_elements_;
  return size == Size::kL1 ? size_t{16} << 8 : size_t{256} << 8;
}

template <class T, class Fill>
std::span<T> ArrayStore::Find(Size size, int thread, const std::string& what, const Fill& fill) {
  const std::lock_guard lock(mutex_);
  auto& memory = memory_[{size, thread, what}];
  const size_t elements = Elements(size);
  const bool is_new = memory == nullptr;
  if (is_new) memory.reset(Allocate(elements * sizeof(T)));
  const std::span<T> array(reinterpret_cast<T*>(memory.get()), elements);
  if (is_new) fill(array);
  return array;
}

Arrays ArrayStore::Get(Size size, DataSet data, int thread) {
  // Written once, or all reads would hit the one zero page of the kernel.
  const auto touch = [](auto array) { std::memset(array.data(), 1, array.size_bytes()); };
  const DataSet source = data == DataSet::kAny ? DataSet::kNormal : data;
  const auto draw = [&](std::span<float> values) { FillValues(source, thread, values); };
  return {Find<float>(size, thread, "values " + DataSetName(source), draw),
          Find<uint16_t>(size, thread, "codes", touch),
          Find<float>(size, thread, "floats", touch),
          size,
          source,
          thread};
}

std::span<const uint16_t> ArrayStore::Encoded(const Arrays& arrays, const Format& format) {
  const std::string what = DataSetName(arrays.data) + " as e" +
                           std::to_string(format.exponent_bits) + "m" +
                           std::to_string(format.mantissa_bits);
  return Find<uint16_t>(arrays.size, arrays.thread, what, [&](std::span<uint16_t> codes) {
    EncodeArray({{format}}, arrays.values, codes);
  });
}

}  // namespace dlsim::bench
