// SPDX-License-Identifier: Apache-2.0
// The arrays that benchmarks convert: sizes, data sets, and memory that is made once and shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>

#include "dlsim/format.h"

namespace dlsim::bench {

// Where the arrays lie: 16 KiB and 256 KiB of float32, and more than the last-level cache holds.
enum class Size : uint8_t { kL1, kL2, kDram };

// kNormal: N(0,1). kGrad: N(0,1) * 2^U{-36..3}, of which fp16 makes a third subnormal or zero.
// kAny is for streams, for which values do not matter.
enum class DataSet : uint8_t { kAny, kNormal, kGrad };

std::string SizeName(Size size);
std::string DataSetName(DataSet data);

// The arrays of one benchmark thread; all have one length. The outputs do not depend on the data
// set: workloads with the same size and thread write to the same ones, one after the other.
struct Arrays {
  std::span<const float> values;
  std::span<uint16_t> codes;
  std::span<float> floats;
  Size size;
  DataSet data;
  int thread;
};

// Makes arrays when they are first asked for. Thread-safe.
class ArrayStore {
 public:
  explicit ArrayStore(size_t dram_mib) : dram_elements_(dram_mib << 18) {}

  size_t Elements(Size size) const;
  Arrays Get(Size size, DataSet data, int thread);

  // Returns the values of the arrays encoded in the format: what a decoder reads.
  std::span<const uint16_t> Encoded(const Arrays& arrays, const Format& format);

 private:
  using Key = std::tuple<Size, int, std::string>;  // thread; what the bytes hold

  struct Free {
    void operator()(std::byte* memory) const;
  };

  // Returns the bytes of a key, made by `fill` when new.
  template <class T, class Fill>
  std::span<T> Find(Size size, int thread, const std::string& what, const Fill& fill);

  size_t dram_elements_;
  std::recursive_mutex mutex_;
  std::map<Key, std::unique_ptr<std::byte, Free>> memory_;
};

}  // namespace dlsim::bench
