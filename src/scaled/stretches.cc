// SPDX-License-Identifier: Apache-2.0
#include "src/scaled/stretches.h"

#include <string>

#include "dlsim/error.h"

namespace dlsim {
namespace {

void CheckShape(const MatrixView& matrix) {
  const uint64_t elements = matrix.rows * matrix.columns;
  if (matrix.values.size() == elements) return;
  throw UsageError("matrix", "size and shape differ", std::to_string(elements),
                   std::to_string(matrix.values.size()));
}

}  // namespace

float LargestMagnitude(std::span<const float> values) {
  uint32_t largest = 0;
  RaiseForGroups(values.data(), values.size(), values.size(), &largest);
  return std::bit_cast<float>(largest);
}

ScaleFinder::ScaleFinder(const ScaledFormat& format, const Format& element,
                         const MatrixView& matrix, const Bands& bands, std::optional<float> given)
    : matrix_(matrix),
      bands_(bands),
      scales_(format, element,
              format.scale == ScaleType::kFp8 ? LargestMagnitude(matrix.values) : 0) {
  CheckShape(matrix);
  if (given) given_ = Float32Scale(*given);
  if (!given && format.sharing == Sharing::kTensor) {
    given_ = scales_.Of(LargestMagnitude(matrix.values));
  }
}

void ScaleFinder::Find(uint64_t band, OfBand& found) const {
  found.scales.resize(bands_.groups());
  if (given_) {
    std::ranges::fill(found.scales, *given_);
  } else {
    FindLargest(band, found.largest);
    scales_.OfEach(found.largest, found.scales);
  }
}

void ScaleFinder::FindLargest(uint64_t band, std::vector<uint32_t>& largest) const {
  largest.assign(bands_.groups(), 0);
  for (uint64_t row = bands_.begin(band); row < bands_.end(band); ++row) {
    const float* const values = matrix_.values.data() + row * matrix_.columns;
    if (bands_.width() == 1) {
      RaiseEach(values, matrix_.columns, largest.data());
    } else {
      RaiseForGroups(values, matrix_.columns, bands_.width(), largest.data());
    }
  }
}

}  // namespace dlsim
