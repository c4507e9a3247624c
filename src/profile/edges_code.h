// SPDX-License-Identifier: Apache-2.0
// The edges of histograms as bytes.
#pragma once

#include <string>
#include <string_view>

#include "dlsim/histogram.h"

namespace dlsim {

std::string EncodeEdges(const HistogramEdges& edges);

// Throws InputError for bytes that no edges have.
HistogramEdges DecodeEdges(const std::string& place, std::string_view payload);

}  // namespace dlsim
