// SPDX-License-Identifier: Apache-2.0
// Counts arrays in device memory between the edges of a histogram: what a profile keeps. All is
// integer arithmetic, so that the result is that of HistogramCounter, bit for bit.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "dlsim/gpu/stream.h"
#include "dlsim/gpu/tensor_list.h"
#include "dlsim/histogram.h"

namespace dlsim {
struct HistogramSums;
}

namespace dlsim::gpu {

// Edges and tables in device memory. Made once; Count neither allocates nor waits.
class Counter {
 public:
  // Both must live as long as this. Throws Error if there is too little memory.
  Counter(const HistogramEdges& edges, const TensorList& tensors);
  Counter(Counter&&) noexcept;
  Counter& operator=(Counter&&) noexcept;
  ~Counter();

  // Launches the counting of all tensors on the stream; adds to what was counted before.
  void Count(Stream stream);

  // Waits for the stream, returns what was counted, one result per tensor, and begins anew.
  std::vector<HistogramSums> Take(Stream stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dlsim::gpu
