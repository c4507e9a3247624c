// SPDX-License-Identifier: Apache-2.0
#include "dlsim/scaled_codec.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/error.h"
#include "src/base/float_environment.h"
#include "src/base/parallel.h"
#include "src/scaled/element_kernels.h"
#include "src/scaled/stretches.h"

namespace dlsim {
namespace {

// Calls body(first band, last band) for parts of a matrix on several threads.
template <class Body>
void ForParts(const Bands& bands, const Body& body) {
  const uint64_t elements = std::max<uint64_t>(1, bands.rows() * bands.columns());
  const uint64_t parts = (elements + kBlockElements - 1) / kBlockElements;
  const uint64_t each = std::max<uint64_t>(1, bands.count() / parts);
  ParallelFor((bands.count() + each - 1) / each,
              [&](size_t part) { body(part * each, std::min(bands.count(), (part + 1) * each)); });
}

}  // namespace

ScaledCodes EncodeScaled(const ScaledFormat& format, const Format& element,
                         const MatrixView& matrix, BlockAxis axis, std::optional<float> scale) {
  ScaledCodes result;
  EncodeScaledInto(format, element, matrix, axis, scale, result);
  return result;
}

void EncodeScaledInto(const ScaledFormat& format, const Format& element, const MatrixView& matrix,
                      BlockAxis axis, std::optional<float> scale, ScaledCodes& result) {
  const DefaultFloatEnvironment environment;
  const Bands bands(format, matrix.rows, matrix.columns, axis);
  const ScaleFinder finder(format, element, matrix, bands, scale);
  const CodecSpec spec = MakeElementSpec(element);
  result.codes.resize(matrix.values.size());
  result.scales.resize(bands.all_groups());
  result.tensor_scale = finder.tensor_scale();
  if (finder.given()) std::ranges::fill(result.scales, finder.given()->code);
  ForParts(bands, [&](uint64_t first, uint64_t last) {
    ScaleFinder::OfBand found;
    const auto set = [&](uint64_t band, Factors& factors) {
      finder.Find(band, found);
      factors.Set(found.scales);
      if (finder.given()) return;
      std::ranges::transform(found.scales, result.scales.data() + bands.first_group(band),
                             &GroupScale::code);
    };
    ForEachStretch(bands, first, last, set, [&](const Stretch& stretch) {
      EncodeElements(spec, stretch, matrix.values.data() + stretch.first,
                     result.codes.data() + stretch.first);
    });
  });
}

void DecodeScaled(const ScaledFormat& format, const Format& element, const ScaledCodes& codes,
                  uint64_t rows, uint64_t columns, BlockAxis axis, std::span<float> values) {
  const DefaultFloatEnvironment environment;
  const Bands bands(format, rows, columns, axis);
  const uint64_t elements = rows * columns, groups = bands.all_groups();
  if (codes.codes.size() != elements || values.size() != elements ||
      codes.scales.size() != groups) {
    throw UsageError(
        "codes", "size and shape differ",
        std::to_string(elements) + " codes and values, " + std::to_string(groups) + " scales",
        std::to_string(codes.codes.size()) + ", " + std::to_string(values.size()) + ", " +
            std::to_string(codes.scales.size()));
  }
  GroupScales scales(format, element, 0);
  scales.set_tensor_scale(codes.tensor_scale);
  const CodecSpec spec = MakeElementSpec(element);
  ForParts(bands, [&](uint64_t first, uint64_t last) {
    std::vector<GroupScale> of_band(bands.groups());
    const auto set = [&](uint64_t band, Factors& factors) {
      scales.OfCodes(std::span(codes.scales).subspan(bands.first_group(band), bands.groups()),
                     of_band);
      factors.Set(of_band);
    };
    ForEachStretch(bands, first, last, set, [&](const Stretch& stretch) {
      DecodeElements(spec, stretch, codes.codes.data() + stretch.first,
                     values.data() + stretch.first);
    });
  });
}

}  // namespace dlsim
