// SPDX-License-Identifier: Apache-2.0
// The kernels of updates: whole vectors, for each of Highway's targets, and the same text with one
// lane, which gives the same bits (but for the sign and payload of NaN).
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/updates/update_factors.h"

namespace dlsim::sim {

// The elements of a part of a tensor. An optimizer reads gradients and weights, reads and writes
// the moments that it has, and writes what the weights become and `steps`: what it adds to them,
// less a factor (WantedChange).
struct UpdateArrays {
  const float* gradients = nullptr;
  const float* before = nullptr;
  float* after = nullptr;
  float* steps = nullptr;
  float* first = nullptr;
  float* second = nullptr;
  float* max_second = nullptr;
  size_t count = 0;
};

// Updates elements; each operation is rounded to `format`.
void UpdateElements(const UpdateFactors& factors, const StoredFormat& format,
                    const UpdateArrays& arrays);
void UpdateElementsReference(const UpdateFactors& factors, const StoredFormat& format,
                             const UpdateArrays& arrays);

// Writes to `steps` what Adafactor would, and nothing else.
void FindAdafactorUpdates(const AdafactorFactors& factors, const StoredFormat& format,
                          const UpdateArrays& arrays);

// What became of the changes that the optimizer computed for single weights.
struct UpdateCounts {
  uint64_t updates = 0;  // finite and not zero
  uint64_t lost = 0;     // of them, those that left the weight as it was
  // Of them, those that changed it by less than half, or by more than 1.5 times.
  uint64_t altered = 0;

  UpdateCounts& operator+=(const UpdateCounts& other) {
    updates += other.updates;
    lost += other.lost;
    altered += other.altered;
    return *this;
  }
  friend bool operator==(const UpdateCounts&, const UpdateCounts&) = default;
};

// How far weights moved: and what rounding took from them, if that is kept, before and after.
struct MovedWeights {
  const float* before = nullptr;
  const float* after = nullptr;
  const float* owed = nullptr;  // null if it is not kept
  const float* owing = nullptr;
  const float* steps = nullptr;  // as in UpdateArrays
  size_t count = 0;
};

UpdateCounts CountUpdates(const WantedChange& wanted, const MovedWeights& moved);
UpdateCounts CountUpdatesReference(const WantedChange& wanted, const MovedWeights& moved);

}  // namespace dlsim::sim
