// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/encode_sweep.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "dlsim/gpu/convert.h"
#include "gpu/check/checks.h"
#include "gpu/check/cpu_sweep.h"
#include "gpu/check/device_arrays.h"
#include "gpu/check/formats.h"
#include "gpu/check/input_order.h"

namespace dlsim::gpu_check {
namespace {

constexpr uint64_t kMostPart = uint64_t{1} << 28;  // inputs on the device at once
constexpr RandomStream kRandom = {0x243F6A8885A308D3, 7};

// Runs of neighbours keep warps uniform, single inputs mix them: kernels may tell them apart.
uint32_t RunBitsOf(const Conversion& conversion) {
  return conversion.overflow == Overflow::kInfinity ? 8 : 0;
}

// How many inputs the host repeats: its share of the time limits this, not the device's.
uint64_t HostInputs(const Options& options, bool tuned, const Conversion& conversion) {
  constexpr uint64_t kSample = uint64_t{1} << 26;
  if (options.effort == Effort::kFull) return options.inputs;
  if (conversion.overflow != Overflow::kInfinity || conversion.subnormals != Subnormals::kKeep) {
    return 0;
  }
  return tuned ? options.inputs : std::min(options.inputs, kSample);
}

CheckResult HostResult(const std::string& name, const ArrayConversion& how, uint32_t run_bits,
                       uint64_t inputs, uint64_t device_hash) {
  const uint64_t hash = HashOfSweep(how, run_bits, inputs);
  char problem[80] = "";
  if (hash != device_hash) {
    std::snprintf(problem, sizeof problem, "hash of all codes: got %016llx, expected %016llx",
                  static_cast<unsigned long long>(device_hash),
                  static_cast<unsigned long long>(hash));
  }
  return {"encode", name + ", host's hash", inputs, problem};
}

}  // namespace

EncodeSweep::EncodeSweep(uint64_t most_inputs)
    : values_(std::min(most_inputs, kMostPart)), codes_(std::min(most_inputs, kMostPart)) {}

EncodeSweep::Result EncodeSweep::Run(const ArrayConversion& how, uint32_t run_bits,
                                     uint64_t inputs) {
  Result result;
  for (uint64_t first = 0; first < inputs; first += values_.size()) {
    const uint64_t count = std::min<uint64_t>(values_.size(), inputs - first);
    FillSweep(first, count, run_bits, values_.data(), stream_.get());
    ArrayConversion part = how;
    part.first_index = first;
    gpu::DeviceTensor tensor;
    tensor.values = values_.data();
    tensor.elements = count;
    tensor.codes = codes_.data();
    tensor.random_stream = how.random.stream;
    gpu::Encode(part, tensor, stream_.get());
    const Comparison comparison =
        CompareOnDevice(part, values_.data(), codes_.data(), count, stream_.get());
    result.hash += comparison.hash;
    if (comparison.mismatches > 0 && result.problem.empty()) {
      result.problem = Describe(part, comparison);
    }
  }
  return result;
}

std::string EncodeSweep::Describe(const ArrayConversion& how, const Comparison& comparison) const {
  const uint64_t i = comparison.first_mismatch;
  const float value = ToHost(values_.data() + i, 1, stream_.get())[0];
  const size_t bytes = gpu::CodeBytes(how.conversion.format);
  const auto* codes = reinterpret_cast<const std::byte*>(codes_.data());
  uint32_t code = 0;
  std::memcpy(&code, ToHost(codes + i * bytes, bytes, stream_.get()).data(), bytes);
  ArrayConversion of_element = how;
  of_element.first_index += i;
  const uint32_t expected = EncodeReference(of_element, {&value, 1})[0];
  char text[160];
  std::snprintf(text, sizeof text, "%llu differ; input 0x%08x at %llu: got 0x%x, expected 0x%x",
                comparison.mismatches, std::bit_cast<uint32_t>(value),
                static_cast<unsigned long long>(how.first_index + i), code, expected);
  return text;
}

Comparison CompareOnDevice(const ArrayConversion& how, const float* values, const void* codes,
                           uint64_t count, gpu::Stream stream) {
  const Comparison none;
  const auto on_device = ToDevice(std::span<const Comparison>(&none, 1), stream);
  CompareCodes(how, values, codes, count, on_device.data(), stream);
  return ToHost(on_device.data(), 1, stream)[0];
}

void SweepEncode(const Options& options, Report& report) {
  EncodeSweep sweep(options.inputs);
  const std::vector<NamedFormat> formats = CheckedFormats();
  for (size_t f = 0; f < formats.size(); ++f) {
    for (const Conversion& conversion : ConversionsTo(formats[f].format)) {
      const std::string name = NameOf(formats[f].name, conversion);
      const ArrayConversion how = {conversion, 1.0f, kRandom, 0};
      const uint32_t run_bits = RunBitsOf(conversion);
      const EncodeSweep::Result all = sweep.Run(how, run_bits, options.inputs);
      report.Add({"encode", name, options.inputs, all.problem});
      const uint64_t on_host = HostInputs(options, f < kTunedFormats, conversion);
      if (on_host == 0) continue;
      const uint64_t hash =
          on_host == options.inputs ? all.hash : sweep.Run(how, run_bits, on_host).hash;
      report.Add(HostResult(name, how, run_bits, on_host, hash));
    }
    std::printf("encode: %s done\n", formats[f].name.c_str());
    std::fflush(stdout);
  }
}

}  // namespace dlsim::gpu_check
