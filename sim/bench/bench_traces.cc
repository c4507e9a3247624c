// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/bench_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <random>
#include <string_view>

#include "dlsim/error.h"
#include "sim/base/json_value.h"
#include "sim/base/output_file.h"

namespace dlsim::sim {
namespace {

constexpr uint64_t kLargeSteps = 4;
constexpr uint64_t kLargeTensors = 2;
// The matrices and vectors of a layer: 62,464 bytes.
constexpr uint64_t kLayer[] = {96 * 96, 96, 96 * 64, 64, 96};
constexpr uint64_t kLayers = 13;

std::vector<uint64_t> TensorSizes(TraceShape shape, uint64_t mib) {
  if (shape == TraceShape::kLarge) {
    const uint64_t elements = (mib << 18) / kLargeSteps / kLargeTensors;
    return std::vector<uint64_t>(kLargeTensors, elements);
  }
  std::vector<uint64_t> sizes;
  for (uint64_t i = 0; i < kLayers; ++i)
    sizes.insert(sizes.end(), std::begin(kLayer), std::end(kLayer));
  return sizes;
}

std::vector<float> MakeValues() {
  constexpr size_t kCount = size_t{1} << 20;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-48, -9);
  std::vector<float> values(kCount);
  for (float& value : values) value = std::ldexp(normal(random), exponent(random));
  return values;
}

// Endless: the values again and again.
class ValueStream {
 public:
  void Write(uint64_t count, OutputFile& out) {
    while (count > 0) {
      const size_t piece = std::min<uint64_t>(count, values_.size() - next_);
      const auto* const bytes = reinterpret_cast<const char*>(values_.data() + next_);
      out.Write({bytes, piece * sizeof(float)});
      count -= piece;
      next_ = (next_ + piece) % values_.size();
    }
  }

 private:
  const std::vector<float> values_ = MakeValues();
  size_t next_ = 0;
};

std::string SafetensorsPrefix(const std::vector<uint64_t>& sizes) {
  Json header;
  uint64_t begin = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint64_t end = begin + sizes[i] * sizeof(float);
    header[fmt::format("layer.{}.weight", i)] = {
        {"dtype", "F32"}, {"shape", {sizes[i]}}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = DumpJson(header);
  text.append((8 - text.size() % 8) % 8, ' ');  // data is aligned, as by other writers
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix.push_back(static_cast<char>(text.size() >> (8 * i) & 0xFF));
  return prefix + text;
}

}  // namespace

BenchTrace WriteBenchTrace(const std::string& directory, TraceShape shape, uint64_t mib) {
  BenchTrace trace;
  trace.directory = directory;
  std::error_code error;
  std::filesystem::create_directory(directory, error);
  if (error) throw InputError(Printable(directory), "cannot be made (" + error.message() + ")");
  const std::vector<uint64_t> sizes = TensorSizes(shape, mib);
  const std::string prefix = SafetensorsPrefix(sizes);
  uint64_t step_bytes = prefix.size();
  for (const uint64_t size : sizes) step_bytes += size * sizeof(float);
  const uint64_t steps =
      shape == TraceShape::kLarge ? kLargeSteps : std::max<uint64_t>(1, (mib << 20) / step_bytes);
  ValueStream values;
  for (uint64_t step = 0; step < steps; ++step) {
    trace.files.push_back(fmt::format("{}/step-{:06}.safetensors", directory, step));
    OutputFile out(trace.files.back());
    out.Write(prefix);
    for (const uint64_t size : sizes) values.Write(size, out);
    out.Commit();
    trace.bytes += step_bytes;
  }
  return trace;
}

}  // namespace dlsim::sim
