// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/host_tensor.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "counting_plan.h"
#include "histogram_sums.h"
#include "measure_chunk.h"
#include "parallel.h"

namespace dlsim::gpu_check {
namespace {

float LoadElement(const HostTensor& tensor, size_t i) {
  const std::byte* from = tensor.bytes.data() + i * DTypeSize(tensor.dtype);
  if (tensor.dtype == DType::kF64) {
    double value = 0;
    std::memcpy(&value, from, sizeof value);
    return static_cast<float>(value);
  }
  if (tensor.dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  uint16_t code = 0;
  std::memcpy(&code, from, sizeof code);
  const CodecSpec spec = MakeCodecSpec({tensor.dtype == DType::kF16 ? kFp16 : kBf16});
  return std::bit_cast<float>(Decode(spec, code));
}

std::string Text(const char* what, double got, double expected) {
  char text[120];
  std::snprintf(text, sizeof text, "%s: got %.17g, expected %.17g", what, got, expected);
  return text;
}

std::string Text(const char* what, uint64_t got, uint64_t expected) {
  return std::string(what) + ": got " + std::to_string(got) + ", expected " +
         std::to_string(expected);
}

TensorStats MeasureBlock(std::span<const float> block, uint64_t first_index,
                         const Measurement& question) {
  TensorStats stats;
  for (size_t i = 0; i < block.size(); i += kChunkElements) {
    const auto chunk = block.subspan(i, std::min(kChunkElements, block.size() - i));
    stats.Merge(MeasureChunkReference(chunk, first_index + i, question));
  }
  return stats;
}

}  // namespace

HostTensor TensorOf(std::string name, std::span<const float> values) {
  HostTensor tensor = {std::move(name), DType::kF32, {}, 1.0f, 0};
  const std::span<const std::byte> bytes = std::as_bytes(values);
  tensor.bytes.assign(bytes.begin(), bytes.end());
  return tensor;
}

std::vector<float> ValuesOf(const HostTensor& tensor) {
  std::vector<float> values(tensor.elements());
  const float inverse = 1.0f / tensor.grad_scale;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadElement(tensor, i);
    if (tensor.grad_scale != 1.0f) values[i] *= inverse;
  }
  return values;
}

std::vector<uint32_t> EncodeReference(const ArrayConversion& how, std::span<const float> values) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  const Rounding rounding = how.conversion.rounding;
  std::vector<uint32_t> codes(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const float scaled = how.scale == 1.0f ? values[i] : values[i] * how.scale;
    const uint32_t random =
        rounding == Rounding::kStochastic ? RandomBits(how.random, how.first_index + i) : 0;
    codes[i] = Encode(spec, rounding, std::bit_cast<uint32_t>(scaled), random).code;
  }
  return codes;
}

TensorStats MeasureReference(std::span<const float> values, const Measurement& question) {
  std::vector<TensorStats> blocks((values.size() + kBlockElements - 1) / kBlockElements);
  ParallelForBlocks(values.size(), [&](size_t begin, size_t length) {
    blocks[begin / kBlockElements] = MeasureBlock(values.subspan(begin, length), begin, question);
  });
  TensorStats stats;
  for (const TensorStats& block : blocks) stats.Merge(block);
  return stats;
}

HistogramSums CountReference(std::span<const float> values, const HistogramEdges& edges) {
  constexpr size_t kPart = size_t{1} << 22;  // tables are large: worth it for many values only
  std::vector<HistogramSums> parts((values.size() + kPart - 1) / kPart);
  ParallelFor(parts.size(), [&](size_t part) {
    const auto of_part =
        values.subspan(part * kPart, std::min(kPart, values.size() - part * kPart));
    auto tables = PlanOf(edges).TakeTables();
    tables->elements = of_part.size();
    for (const float value : of_part) {
      CountValue(PlanOf(edges), std::bit_cast<uint32_t>(value), *tables);
    }
    parts[part] = TakeWideSums(PlanOf(edges), *tables);
    PlanOf(edges).ReturnTables(std::move(tables));
  });
  HistogramSums sums;
  for (const HistogramSums& part : parts) sums.Merge(part);
  return sums;
}

std::string Difference(const TensorStats& got, const TensorStats& expected) {
  struct Counter {
    const char* name;
    uint64_t TensorStats::*member;
  };
  constexpr Counter kCounters[] = {{"elements", &TensorStats::elements},
                                   {"zeros", &TensorStats::zeros},
                                   {"nan", &TensorStats::nan},
                                   {"inf", &TensorStats::inf},
                                   {"underflow", &TensorStats::underflow},
                                   {"subnormal", &TensorStats::subnormal},
                                   {"overflow", &TensorStats::overflow},
                                   {"nonfinite_outputs", &TensorStats::nonfinite_outputs}};
  for (const auto& [name, member] : kCounters) {
    if (got.*member != expected.*member) return Text(name, got.*member, expected.*member);
  }
  struct Sum {
    const char* name;
    double TensorStats::*member;
  };
  constexpr Sum kSums[] = {{"sum_of_squares", &TensorStats::sum_of_squares},
                           {"underflow_sum_of_squares", &TensorStats::underflow_sum_of_squares},
                           {"quantized_sum_of_squares", &TensorStats::quantized_sum_of_squares}};
  for (const auto& [name, member] : kSums) {
    if (std::bit_cast<uint64_t>(got.*member) != std::bit_cast<uint64_t>(expected.*member)) {
      return Text(name, got.*member, expected.*member);
    }
  }
  if (std::bit_cast<uint32_t>(got.absmax) == std::bit_cast<uint32_t>(expected.absmax)) return "";
  return Text("absmax", double{got.absmax}, double{expected.absmax});
}

std::string Difference(const HistogramSums& got, const HistogramSums& expected) {
  if (got.elements != expected.elements) return Text("elements", got.elements, expected.elements);
  if (got.zeros != expected.zeros) return Text("zeros", got.zeros, expected.zeros);
  if (got.nan != expected.nan) return Text("nan", got.nan, expected.nan);
  if (got.inf != expected.inf) return Text("inf", got.inf, expected.inf);
  for (size_t s = 0; s < got.signs.size(); ++s) {
    const auto& a = got.signs[s];
    const auto& b = expected.signs[s];
    if (a.largest != b.largest) return Text("largest", uint64_t{a.largest}, uint64_t{b.largest});
    if (a.bins.size() != b.bins.size()) return Text("bins", a.bins.size(), b.bins.size());
    for (size_t i = 0; i < a.bins.size(); ++i) {
      if (a.bins[i].bin != b.bins[i].bin) {
        return Text("bin number", uint64_t{a.bins[i].bin}, uint64_t{b.bins[i].bin});
      }
      if (a.bins[i].count != b.bins[i].count) {
        return Text("count", a.bins[i].count, b.bins[i].count);
      }
      if (a.bins[i].significands != b.bins[i].significands) {
        return Text("significands", a.bins[i].significands, b.bins[i].significands);
      }
      if (a.bins[i].squares != b.bins[i].squares) return "squares of a bin";
    }
  }
  return "";
}

}  // namespace dlsim::gpu_check
