// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels.h"

#include <benchmark/benchmark.h>

#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "bench/questions.h"
#include "dlsim/convert.h"
#include "dlsim/histogram.h"
#include "dlsim/ladder.h"
#include "dlsim/measure.h"
#include "dlsim/scaled_codec.h"
#include "dlsim/scaled_format.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::bench {
namespace {

RangeKernel BindEncode(const Arrays& arrays, const Conversion& conversion) {
  return [=](size_t begin, size_t count) {
    EncodeArray({.conversion = conversion, .first_index = begin},
                arrays.values.subspan(begin, count), arrays.codes.subspan(begin, count));
  };
}

RangeKernel BindDecode(ArrayStore& store, const Arrays& arrays, const Format& format) {
  const std::span<const uint16_t> codes = store.Encoded(arrays, format);
  return [=](size_t begin, size_t count) {
    DecodeArray(format, codes.subspan(begin, count), arrays.floats.subspan(begin, count));
  };
}

RangeKernel BindMeasure(const Arrays& arrays, const Measurement& question) {
  return [=](size_t begin, size_t count) {
    benchmark::DoNotOptimize(Measure(arrays.values.subspan(begin, count), question));
  };
}

// Counts between edges, a tensor at a time, as profiling does.
RangeKernel BindHistogram(const Arrays& arrays, std::shared_ptr<const HistogramEdges> edges) {
  return [=, edges = std::move(edges)](size_t begin, size_t count) {
    HistogramCounter counter(*edges);
    counter.Add(arrays.values.subspan(begin, count));
    benchmark::DoNotOptimize(TakeSums(counter));
  };
}

// As many edges as the thresholds of a sweep over scales that are no powers of two: in 100 binades,
// without a pattern that repeats.
std::vector<uint32_t> IrregularEdges() {
  std::mt19937 generator(1000);
  std::vector<uint32_t> edges(1000);
  for (uint32_t& edge : edges)
    edge = (50u << 23) + static_cast<uint32_t>(generator() % (100u << 23));
  return edges;
}

Kernel MakeKernel(std::string_view name, std::string_view format, std::string_view mode,
                  Traffic traffic) {
  Kernel kernel;
  kernel.kernel = name;
  kernel.format = format;
  kernel.mode = mode;
  kernel.traffic = traffic;
  return kernel;
}

void AddFormat(std::string_view name, std::vector<Kernel>& kernels) {
  const Format format = ParseFormat(name).format;
  for (const auto& [rounding, mode] : EnumNames(Rounding{})) {
    const Conversion conversion = {format, rounding};
    Kernel encode = MakeKernel("Encode", name, mode, kEncodeTraffic);
    encode.bind = [=](ArrayStore&, const Arrays& arrays) { return BindEncode(arrays, conversion); };
    kernels.push_back(encode);
    Kernel measure = MakeKernel("Measure", name, mode, kMeasureTraffic);
    measure.bind = [=](ArrayStore&, const Arrays& arrays) {
      return BindMeasure(arrays, {.conversion = conversion});
    };
    kernels.push_back(measure);
  }
  Kernel decode = MakeKernel("Decode", name, "-", kDecodeTraffic);
  decode.bind = [=](ArrayStore& store, const Arrays& arrays) {
    return BindDecode(store, arrays, format);
  };
  kernels.push_back(decode);
}

// As a matrix with rows as short as those of small models where there are few elements.
MatrixView MatrixOf(std::span<const float> values) {
  const uint64_t columns = values.size() < 65536 ? 128 : 1024;
  if (values.size() % columns != 0) return {values, 1, values.size()};
  return {values, values.size() / columns, columns};
}

// Encodes, measures and decodes with blocks along an axis; outputs are used again.
void AddScaledFormat(const ScaledFormat& format, BlockAxis axis, std::vector<Kernel>& kernels) {
  const std::string mode = axis == BlockAxis::kRow ? "row" : "column";
  Kernel encode = MakeKernel("Encode", format.name, mode, kEncodeBytesTraffic);
  encode.bind = [=](ArrayStore&, const Arrays& arrays) -> RangeKernel {
    return [=, codes = std::make_shared<ScaledCodes>()](size_t begin, size_t count) {
      EncodeScaledInto(format, format.forward, MatrixOf(arrays.values.subspan(begin, count)), axis,
                       std::nullopt, *codes);
    };
  };
  kernels.push_back(encode);
  Kernel measure = MakeKernel("Measure", format.name, mode, kMeasureTraffic);
  measure.sharing = Sharing::kByCaller;
  measure.bind = [=](ArrayStore&, const Arrays& arrays) -> RangeKernel {
    return [=](size_t begin, size_t count) {
      benchmark::DoNotOptimize(MeasureScaled(format, format.forward,
                                             MatrixOf(arrays.values.subspan(begin, count)), axis,
                                             MatrixChannels::kColumns));
    };
  };
  kernels.push_back(measure);
  Kernel decode = MakeKernel("Decode", format.name, mode, kDecodeBytesTraffic);
  decode.bind = [=](ArrayStore&, const Arrays& arrays) -> RangeKernel {
    const MatrixView matrix = MatrixOf(arrays.values);
    const auto codes =
        std::make_shared<const ScaledCodes>(EncodeScaled(format, format.forward, matrix, axis));
    return [=](size_t, size_t) {
      DecodeScaled(format, format.forward, *codes, matrix.rows, matrix.columns, axis,
                   arrays.floats);
    };
  };
  kernels.push_back(decode);
}

void AddScaledFormats(std::vector<Kernel>& kernels) {
  for (const std::string_view name : {"fp8-current", "mxfp8", "nvfp4"}) {
    const ScaledFormat format = ParseScaledFormat(name).format;
    AddScaledFormat(format, BlockAxis::kRow, kernels);
    if (format.sharing == dlsim::Sharing::kTensor) continue;
    AddScaledFormat(format, BlockAxis::kColumn, kernels);
  }
}

}  // namespace

std::vector<Kernel> DlsimKernels(const std::vector<std::string>& targets) {
  std::vector<Kernel> kernels;
  for (const std::string_view format : kDefaultFormats) AddFormat(format, kernels);
  AddScaledFormats(kernels);
  const auto add_histogram = [&](const char* name, const HistogramEdges& edges) {
    const auto shared = std::make_shared<const HistogramEdges>(edges);
    Kernel histogram = MakeKernel("Histogram", name, "-", kMeasureTraffic);
    histogram.sharing = Sharing::kByCaller;
    histogram.bind = [=](ArrayStore&, const Arrays& arrays) {
      return BindHistogram(arrays, shared);
    };
    kernels.push_back(histogram);
  };
  add_histogram("ladder", EdgesOf(DefaultLadder()));
  add_histogram("irregular", HistogramEdges(IrregularEdges()));
  std::vector<Kernel> on_targets;
  for (const std::string& target : targets) {
    for (Kernel kernel : kernels) {
      kernel.target = target;
      on_targets.push_back(kernel);
    }
  }
  return on_targets;
}

}  // namespace dlsim::bench
