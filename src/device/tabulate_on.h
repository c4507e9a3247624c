// SPDX-License-Identifier: Apache-2.0
// Tabulates the tensors of a step on a device.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dlsim/step_tables.h"
#include "src/device/compute_device.h"
#include "src/measure/step_blocks.h"

namespace dlsim {

struct DeviceTables {
  PartTables parts;               // [part][tensor]
  std::vector<TensorTable> sums;  // [tensor], if wanted: of the float32 sum over the parts
};

// What the host looks at as it hands values to the device: those of a part from element `begin` of
// a tensor on. Called on all threads; not for tensors that lie on the device.
using OnValues =
    std::function<void(size_t tensor, size_t part, uint64_t begin, std::span<const float> values)>;

// Tabulates the tensors of one pass: as many parts as PartNumbers has, each value times `mantissa`.
// Tables have no channels. Tensors that lie on the device have no sums.
DeviceTables TabulateOn(ComputeDevice& device, const std::vector<TensorSources>& tensors,
                        size_t parts, bool wants_sums, float mantissa, const StepOptions& options,
                        const OnValues& on_values = {});

}  // namespace dlsim
