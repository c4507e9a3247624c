// SPDX-License-Identifier: Apache-2.0
// What the tensors of a recorded step lose in formats with scales of their own.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/scaled_codec.h"
#include "dlsim/scaled_format.h"
#include "dlsim/trace.h"

namespace dlsim {

// Returns the elements of a tensor.
inline const Format& ElementOf(const ScaledFormat& format, Role role) {
  return IsForward(role) ? format.forward : format.backward;
}

// The scale of a tensor in the i-th format; nothing where it follows from the values.
using ScaleOfTensor = std::function<std::optional<float>(size_t format, const std::string& tensor)>;

// Returns [format][tensor], in the order of ProfileStep::tensors, measured on all threads. Tensors
// are matrices: activations of their last axis, parameters of their first. Micro-steps are
// converted one by one. Throws Error if reading fails, or if a tensor lies on a device.
std::vector<std::vector<ScaledLoss>> MeasureScaledStep(const TraceStep& step,
                                                       std::span<const NamedScaledFormat> formats,
                                                       const ScaleOfTensor& scale = {});

}  // namespace dlsim
