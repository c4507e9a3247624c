// SPDX-License-Identifier: Apache-2.0
// What is asked of a chunk's results follows from magnitudes: it is what the results themselves
// say.
#include "src/measure/chunk_detail.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/formats_under_test.h"
#include "tests/support/gradient_like.h"
#include "tests/support/same_measurement.h"

namespace dlsim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

GradientDetail ByResults(const DetailQuestion& detail, const Measurement& question,
                         std::span<const float> values) {
  std::vector<float> unscaled(values.size()), scaled(values.size());
  MeasureAndAccumulateChunk(values, 0, question, {unscaled, scaled});
  return DetailOf(detail, unscaled, scaled);
}

TEST(ChunkDetail, IsThatOfTheResults) {
  const std::vector<DetailQuestion> details = {
      {.sums = false},
      {.edge = 8188, .sums = false},
      {.edge = 0x1p-20f, .limit = 0.5f, .sums = false},
      {.edge = 0, .limit = 0, .limit_domain = ClipDomain::kScaled, .sums = false},
      {.edge = -1, .limit = 3.0f, .limit_domain = ClipDomain::kScaled, .sums = false},
      {.edge = 1.0f, .limit = kInfinity}};
  for (const bool with_nonfinite : {false, true}) {
    const std::vector<float> values = GradientLike(1500, with_nonfinite);
    for (const NamedFormat& format : FormatsUnderTest()) {
      for (int mode = 0; mode < 6; ++mode) {
        for (const float scale : {1.0f, -0x1p-9f, 3.0f, 0x1p14f, 0.0f, 1e-42f, 2e15f}) {
          const Measurement question = {
              {format.format, static_cast<Rounding>(mode)}, scale, {7, 8}};
          ChunkMeasurer chunk(values, 0);
          const TensorStats stats = chunk.Measure(ChunkQuestion(question));
          for (size_t d = 0; d < details.size(); ++d) {
            SCOPED_TRACE(format.name + " mode " + std::to_string(mode) + " scale " +
                         std::to_string(scale) + " detail " + std::to_string(d));
            ChunkDetail detail(details[d], question);
            ExpectSameBits(detail.Find(values, 0, chunk.inputs(), stats),
                           ByResults(details[d], question, values));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dlsim
