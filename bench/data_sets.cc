// SPDX-License-Identifier: Apache-2.0
#include "bench/data_sets.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <utility>

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
// run, and with them the speed in L2. Written once, or all reads would hit the kernel's zero page.
std::byte* Allocate(size_t bytes) {
  const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, rounded, MADV_HUGEPAGE);
  std::memset(memory, 1, rounded);
  return static_cast<std::byte*>(memory);
}

template <class T, class Memory>
std::span<T> View(Memory& memory, size_t elements) {
  if (memory == nullptr) memory.reset(Allocate(elements * sizeof(T)));
  return {reinterpret_cast<T*>(memory.get()), elements};
}

}  // namespace

void Arrays::Free::operator()(std::byte* memory) const { std::free(memory); }

std::span<const float> Arrays::Values(DataSet data) {
  Memory& memory = values_[static_cast<size_t>(data)];
  const bool is_new = memory == nullptr;
  const std::span<float> values = View<float>(memory, elements_);
  if (is_new) FillValues(data, thread_, values);
  return values;
}

std::span<uint16_t> Arrays::Codes() { return View<uint16_t>(codes_, elements_); }

std::span<float> Arrays::Floats() { return View<float>(floats_, elements_); }

Arrays& ArraysOf(size_t elements, int thread) {
  static std::mutex mutex;
  static std::map<std::pair<size_t, int>, Arrays> known;
  const std::lock_guard lock(mutex);
  return known.try_emplace({elements, thread}, elements, thread).first->second;
}

}  // namespace dlsim::bench
