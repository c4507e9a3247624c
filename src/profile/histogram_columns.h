// SPDX-License-Identifier: Apache-2.0
// Histograms as bytes: what compresses in columns for zstd, what does not as plain bits.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dlsim/histogram.h"
#include "src/profile/bits.h"
#include "src/profile/bytes.h"

namespace dlsim {

// Appends histograms to the two streams.
void PutHistograms(std::span<const Histogram* const> histograms, const HistogramEdges& edges,
                   std::string& columns, BitWriter& bits);

// Takes `count` histograms. Throws InputError unless they can be those of some values.
std::vector<Histogram> TakeHistograms(size_t count, const HistogramEdges& edges,
                                      ByteReader& columns, BitReader& bits);

// The most bytes that the columns of `count` histograms take; saturates.
uint64_t MaxColumnBytes(uint64_t count, const HistogramEdges& edges);

}  // namespace dlsim
