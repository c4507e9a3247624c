// SPDX-License-Identifier: Apache-2.0
// Launches the kernel that tabulates pieces of tensors on the current device.
#pragma once

#include <cstdint>

#include "dlsim/gpu/tensor_list.h"
#include "gpu/base/device_code.h"
#include "src/table/tabulate.h"

namespace dlsim::gpu {

// Adds pieces to tables[Piece::tensor]; both are on the device, and tables are 0 before the first
// call. Pieces of a table follow each other, best sorted by type. `scale` multiplies each value in
// float32 after Piece::inverse_grad_scale, unless it is 1.
void LaunchTabulate(const Piece* pieces, uint32_t piece_count, float scale, TableSums* tables,
                    Stream stream);

}  // namespace dlsim::gpu
