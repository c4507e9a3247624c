// SPDX-License-Identifier: Apache-2.0
// The terms of emulated sums: elements of an array, or products of elements of two.
#pragma once

#include <cstdint>

#include "dlsim/accumulate.h"
#include "src/sums/accumulators.h"

namespace dlsim {

// Streams of random bits, after the stream of the options (accumulate.h).
inline constexpr uint32_t kTermStream = 2, kPartialStream = 3, kChunkStream = 4;

// Every stride-th element of an array, from the first on.
struct ElementTerms {
  const float* values = nullptr;
  uint64_t stride = 1;
  uint64_t first = 0;

  uint64_t Index(uint64_t i) const { return first + i * stride; }
  Rounded Term(uint64_t i) const { return {values[Index(i)]}; }
};

// Products that are added exactly: two float32 have 48 bits, and a double holds them.
struct ExactProducts {
  const float* a = nullptr;
  const float* b = nullptr;
  uint64_t first_a = 0, first_b = 0;
  uint64_t stride_b = 1;
  uint64_t first_index = 0;

  struct Product {
    double value;
    static constexpr bool overflows = false;
  };
  uint64_t Index(uint64_t i) const { return first_index + i; }
  Product Term(uint64_t i) const {
    return {static_cast<double>(a[first_a + i]) * static_cast<double>(b[first_b + i * stride_b])};
  }
};

// Products that are rounded first. For one thread.
class RoundedProducts {
 public:
  RoundedProducts(const ExactProducts& exact, const AccumulationOptions& options)
      : exact_(exact), rounder_(options.terms), random_(options.random, kTermStream) {}

  uint64_t Index(uint64_t i) const { return exact_.Index(i); }
  Rounded Term(uint64_t i) const { return rounder_.Round(exact_.Term(i).value, Index(i), random_); }

 private:
  ExactProducts exact_;
  AnyRounder rounder_;
  mutable RandomSequence random_;  // a cache of what is a function of the index
};

}  // namespace dlsim
