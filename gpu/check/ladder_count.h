// SPDX-License-Identifier: Apache-2.0
// Counts lists of tensors between the edges of the default ladder.
#pragma once

#include "dlsim/gpu/tensor_list.h"
#include "dlsim/ladder.h"
#include "gpu/count/count_kernels.h"

namespace dlsim::gpu_check {

class LadderCount {
 public:
  LadderCount() : LadderCount(EdgesOf(DefaultLadder())) {}

  gpu::CountMemory TablesFor(const gpu::TensorList& list) const {
    return gpu::CountMemory(list.tensor_count(), 2 * edges_.view().bin_count);
  }

  // Adds to what the tables hold.
  void Launch(const gpu::TensorList& list, const gpu::CountMemory& tables,
              gpu::Stream stream) const {
    gpu::LaunchCount(list.pieces(), nullptr, list.piece_count(), edges_.view(), tables.view(),
                     stream);
  }

 private:
  explicit LadderCount(const HistogramEdges& edges) : edges_(edges) {}

  gpu::CountEdges edges_;
};

}  // namespace dlsim::gpu_check
