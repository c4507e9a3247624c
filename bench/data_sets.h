// SPDX-License-Identifier: Apache-2.0
// The arrays that benchmarks convert: sizes, data sets, and memory that is filled once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace dlsim::bench {

// N(0,1), and N(0,1) * 2^U{-36..3}, a third of which is subnormal or zero in fp16.
enum class DataSet : uint8_t { kNormal, kGrad };

inline constexpr DataSet kDataSets[] = {DataSet::kNormal, DataSet::kGrad};

constexpr std::string_view DataSetName(DataSet data) {
  return data == DataSet::kNormal ? "normal" : "grad";
}

// The arrays of one thread, all of one length; one that no kernel asks for takes no memory.
class Arrays {
 public:
  Arrays(size_t elements, int thread) : elements_(elements), thread_(thread) {}

  std::span<const float> Values(DataSet data);
  std::span<uint16_t> Codes();
  std::span<float> Floats();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  size_t elements_;
  int thread_;
  Memory values_[2], codes_, floats_;
};

// Returns the arrays of a thread, the same ones each time. Thread-safe.
Arrays& ArraysOf(size_t elements, int thread);

}  // namespace dlsim::bench
