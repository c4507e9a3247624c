// SPDX-License-Identifier: Apache-2.0
// The bucket of TensorFlow's histogram that the logarithm of a magnitude falls into.
#pragma once

#include <cstddef>

namespace dlsim {

// Returns the index into TensorflowBucketLimits() of log2(magnitude + 2^-50); `magnitude` is
// finite.
size_t TensorflowBucket(float magnitude);

}  // namespace dlsim
