// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "dlsim/convert.h"
#include "dlsim/format.h"
#include "dlsim/measure.h"
#include "dlsim/scaled_codec.h"
#include "dlsim/scaled_format.h"
#include "dlsim/table.h"

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
         return [=, matrix = MatrixOf(arrays.Values(data))] {
           benchmark::DoNotOptimize(EncodeScaled(format, format.forward, matrix, axis));
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

// A tensor at a time, as profiling does, and a question to its table, which hardly depends on its
// size: the bytes of both are the tensor's.
void AddTable(std::vector<Kernel>& kernels) {
  kernels.push_back({NameOf("Tabulate", "-", "-"), 4, [](Arrays& arrays, DataSet data) -> Call {
                       return [values = arrays.Values(data),
                               tabulator = std::make_shared<Tabulator>()] {
                         tabulator->Add(values);
                         benchmark::DoNotOptimize(tabulator->Take());
                       };
                     }});
  for (const std::string_view name : kDefaultFormats) {
    const Conversion conversion = {.format = ParseFormat(name).format};
    kernels.push_back({NameOf("Ask", name, "rne"), 4, [=](Arrays& arrays, DataSet data) -> Call {
                         return [=, table = Tabulate(arrays.Values(data))] {
                           benchmark::DoNotOptimize(Ask(table, conversion, 1024.0f));
                         };
                       }});
  }
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
  AddTable(kernels);
  return kernels;
}

}  // namespace dlsim::bench
