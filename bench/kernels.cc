// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/convert.h"
#include "dlsim/histogram.h"
#include "dlsim/ladder.h"
#include "dlsim/measure.h"
#include "dlsim/scaled_codec.h"
#include "dlsim/scaled_format.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::bench {
namespace {

using Call = std::function<void()>;

std::string NameOf(std::string_view kernel, std::string_view format, std::string_view mode) {
  return std::string(kernel) + "/" + std::string(format) + "/" + std::string(mode);
}

void AddFormat(std::string_view name, std::vector<Kernel>& kernels) {
  const Format format = ParseFormat(name).format;
  for (const auto& [rounding, mode] : EnumNames(Rounding{})) {
    const Conversion conversion = {format, rounding};
    kernels.push_back({NameOf("Encode", name, mode), 6, [=](Arrays& arrays, DataSet data) -> Call {
                         return [=, values = arrays.Values(data), codes = arrays.Codes()] {
                           EncodeArray({.conversion = conversion}, values, codes);
                         };
                       }});
    kernels.push_back({NameOf("Measure", name, mode), 4, [=](Arrays& arrays, DataSet data) -> Call {
                         return [=, values = arrays.Values(data)] {
                           benchmark::DoNotOptimize(Measure(values, {.conversion = conversion}));
                         };
                       }});
  }
  kernels.push_back({NameOf("Decode", name, "-"), 6, [=](Arrays& arrays, DataSet data) -> Call {
                       const std::span<uint16_t> codes = arrays.Codes();
                       EncodeArray({.conversion = {format}}, arrays.Values(data), codes);
                       return [=, values = arrays.Floats()] {
                         DecodeArray(format, std::span<const uint16_t>(codes), values);
                       };
                     }});
}

// As a matrix with rows as short as those of small models where there are few elements.
MatrixView MatrixOf(std::span<const float> values) {
  const uint64_t columns = values.size() < 65536 ? 128 : 1024;
  return {values, values.size() / columns, columns};
}

// Blocks lie along an axis; the bytes are those of 8-bit codes.
void AddScaledFormat(const ScaledFormat& format, BlockAxis axis, std::vector<Kernel>& kernels) {
  const std::string_view mode = axis == BlockAxis::kRow ? "row" : "column";
  kernels.push_back(
      {NameOf("Encode", format.name, mode), 5, [=](Arrays& arrays, DataSet data) -> Call {
         return
             [=, matrix = MatrixOf(arrays.Values(data)), codes = std::make_shared<ScaledCodes>()] {
               EncodeScaledInto(format, format.forward, matrix, axis, std::nullopt, *codes);
             };
       }});
  kernels.push_back(
      {NameOf("Measure", format.name, mode), 4, [=](Arrays& arrays, DataSet data) -> Call {
         return [=, matrix = MatrixOf(arrays.Values(data))] {
           benchmark::DoNotOptimize(
               MeasureScaled(format, format.forward, matrix, axis, MatrixChannels::kColumns));
         };
       }});
  kernels.push_back(
      {NameOf("Decode", format.name, mode), 5, [=](Arrays& arrays, DataSet data) -> Call {
         const MatrixView matrix = MatrixOf(arrays.Values(data));
         const auto codes = std::make_shared<const ScaledCodes>(
             EncodeScaled(format, format.forward, matrix, axis));
         return [=, values = arrays.Floats()] {
           DecodeScaled(format, format.forward, *codes, matrix.rows, matrix.columns, axis, values);
         };
       }});
}

// Counts between edges, a tensor at a time, as profiling does.
void AddHistogram(std::string_view name, HistogramEdges edges, std::vector<Kernel>& kernels) {
  const auto shared = std::make_shared<const HistogramEdges>(std::move(edges));
  kernels.push_back({NameOf("Histogram", name, "-"), 4, [=](Arrays& arrays, DataSet data) -> Call {
                       return [=, values = arrays.Values(data)] {
                         HistogramCounter counter(*shared);
                         counter.Add(values);
                         benchmark::DoNotOptimize(TakeSums(counter));
                       };
                     }});
}

// As many edges as the thresholds of a sweep over scales that are no powers of two: in 100 binades,
// without a pattern that repeats.
HistogramEdges IrregularEdges() {
  std::mt19937 generator(1000);
  std::vector<uint32_t> edges(1000);
  for (uint32_t& edge : edges) {
    edge = (50u << 23) + static_cast<uint32_t>(generator() % (100u << 23));
  }
  return HistogramEdges(edges);
}

}  // namespace

std::vector<Kernel> DlsimKernels() {
  std::vector<Kernel> kernels;
  for (const std::string_view format : kDefaultFormats) AddFormat(format, kernels);
  for (const std::string_view name : {"fp8-current", "mxfp8", "nvfp4"}) {
    const ScaledFormat format = ParseScaledFormat(name).format;
    AddScaledFormat(format, BlockAxis::kRow, kernels);
    if (format.sharing != Sharing::kTensor) AddScaledFormat(format, BlockAxis::kColumn, kernels);
  }
  AddHistogram("ladder", EdgesOf(DefaultLadder()), kernels);
  AddHistogram("irregular", IrregularEdges(), kernels);
  return kernels;
}

}  // namespace dlsim::bench
