// SPDX-License-Identifier: Apache-2.0
// Counts pieces on the device and brings the bins that are not empty to the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "dlsim/gpu/stream.h"
#include "dlsim/histogram.h"
#include "gpu/base/piece.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {

// On the current device. Made once for the edges; Launch neither allocates nor waits.
class WaveCounter {
 public:
  // `edges` must live as long as this. Throws Error if there is too little memory.
  WaveCounter(const HistogramEdges& edges, size_t most_pieces);
  WaveCounter(WaveCounter&&) noexcept;
  WaveCounter& operator=(WaveCounter&&) noexcept;
  ~WaveCounter();

  // Launches the counting of at most `most_pieces` pieces, which are there on the device and on the
  // host alike; those of one Piece::tensor are neighbors. The host's may go when it returns.
  void Launch(const Piece* on_device, std::span<const Piece> on_host, Stream stream);

  // Once the stream has done what Launch began: adds what was counted to sums[piece.tensor].
  void Collect(std::span<HistogramSums> sums);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dlsim::gpu
