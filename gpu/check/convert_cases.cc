// SPDX-License-Identifier: Apache-2.0
// Conversions of small arrays: odd sizes and alignments, scales, element types, all codes.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "dlsim/gpu/convert.h"
#include "gpu/check/checks.h"
#include "gpu/check/data_sets.h"
#include "gpu/check/device_arrays.h"
#include "gpu/check/encode_sweep.h"
#include "gpu/check/formats.h"

namespace dlsim::gpu_check {
namespace {

constexpr size_t kGuard = 16;  // elements around an output that must stay as they are
constexpr uint16_t kGuardWord = 0xA5C3;

std::vector<uint32_t> Widen(const std::vector<std::byte>& bytes, size_t code_bytes) {
  std::vector<uint32_t> codes(bytes.size() / code_bytes);
  for (size_t i = 0; i < codes.size(); ++i) {
    std::memcpy(&codes[i], bytes.data() + i * code_bytes, code_bytes);
  }
  return codes;
}

std::string DifferenceAt(size_t i, uint32_t got, uint32_t expected) {
  char text[100];
  std::snprintf(text, sizeof text, "element %zu: got 0x%x, expected 0x%x", i, got, expected);
  return text;
}

// Encodes into guarded memory that begins `offset` elements after an alignment of 16 bytes.
std::string EncodeOne(const ArrayConversion& how, const HostTensor& tensor, size_t offset,
                      gpu::Stream stream) {
  const DeviceTensors on_device = ToDevice({&tensor, 1}, offset, stream);
  const size_t code_bytes = gpu::CodeBytes(how.conversion.format);
  const size_t count = tensor.elements(), begin = kGuard + offset;
  std::vector<uint16_t> guard((begin + count + kGuard) * code_bytes / 2, kGuardWord);
  const auto memory = ToDevice(std::span<const uint16_t>(guard), stream);
  gpu::DeviceTensor to_encode = on_device.tensors[0];
  to_encode.codes = reinterpret_cast<std::byte*>(memory.data()) + begin * code_bytes;
  gpu::Encode(how, to_encode, stream);
  const auto* bytes = reinterpret_cast<const std::byte*>(memory.data());
  const auto got = Widen(ToHost(bytes, memory.size_bytes(), stream), code_bytes);
  uint32_t guard_code = kGuardWord;
  if (code_bytes == 4) guard_code |= guard_code << 16;
  std::vector<uint32_t> expected(got.size(), guard_code);
  std::ranges::copy(EncodeReference(how, ValuesOf(tensor)),
                    expected.begin() + static_cast<ptrdiff_t>(begin));
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) return DifferenceAt(i - begin, got[i], expected[i]);
  }
  return "";
}

// Bit patterns of all kinds and binades, in the order of a shuffled deck.
std::vector<float> MixedValues(size_t count) {
  std::vector<float> values = DrawValues(DataSet::kGrad, count, count);
  for (size_t i = 0; i < count; i += 3) {
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(i + 1) * 0x9E3779B1u);
  }
  return values;
}

void EncodeSizes(const NamedFormat& format, gpu::Stream stream, Report& report) {
  for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
    CheckResult result = {"encode", format.name + " " + RoundingName(rounding) + ", odd sizes", 0,
                          ""};
    const ArrayConversion how = {{format.format, rounding}, 1.0f, {5, 3}, 64};
    for (size_t size = 0; size <= 70 && result.problem.empty(); ++size) {
      HostTensor tensor = TensorOf("mixed", MixedValues(size));
      tensor.random_stream = how.random.stream;
      result.problem = EncodeOne(how, tensor, size % 8, stream);
      result.compared += size;
    }
    report.Add(result);
  }
}

void EncodeTypes(const Options& options, const NamedFormat& format, gpu::Stream stream,
                 Report& report) {
  for (const HostTensor& tensor : CheckedTensors(std::min<uint64_t>(options.elements, 5000))) {
    for (const float scale : {1.0f, 32768.0f, 0.1f}) {
      const ArrayConversion how = {
          {format.format, Rounding::kNearestEven}, scale, {5, tensor.random_stream}, 0};
      char number[24];
      std::snprintf(number, sizeof number, " * %g", double{scale});
      report.Add({"encode", format.name + " rne of " + tensor.name + number, tensor.elements(),
                  EncodeOne(how, tensor, 0, stream)});
    }
  }
}

// All codes of a format as they may lie in memory: with other bits above those of the code.
std::vector<uint32_t> AllCodes(const Format& format) {
  const int bits = CodeBits(format);
  const size_t count = size_t{1} << std::max(bits, 16);
  std::vector<uint32_t> codes(count);
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint32_t>(i);
    if (bits > 16 && i % 2 == 1) codes[i] |= 0xFFFFFFFFu << bits;
  }
  return codes;
}

// Decodes `codes` from memory that begins `offset` elements after an alignment of 16 bytes.
std::string DecodeOne(const Format& format, std::span<const uint32_t> codes, size_t offset,
                      gpu::Stream stream) {
  const size_t code_bytes = gpu::CodeBytes(format);
  std::vector<std::byte> bytes((offset + codes.size()) * code_bytes);
  for (size_t i = 0; i < codes.size(); ++i) {
    std::memcpy(bytes.data() + (offset + i) * code_bytes, &codes[i], code_bytes);
  }
  const auto from = ToDevice(std::span<const std::byte>(bytes), stream);
  const std::vector<float> guard(offset + codes.size() + kGuard, -123.0f);
  const auto to = ToDevice(std::span<const float>(guard), stream);
  gpu::Decode(format, from.data() + offset * code_bytes, to.data() + offset, codes.size(), stream);
  const std::vector<float> got = ToHost(to.data(), to.size(), stream);
  const CodecSpec spec = MakeCodecSpec({format});
  for (size_t i = 0; i < got.size(); ++i) {
    const bool decoded = i >= offset && i < offset + codes.size();
    const uint32_t expected =
        decoded ? Decode(spec, codes[i - offset]) : std::bit_cast<uint32_t>(guard[i]);
    const uint32_t bits = std::bit_cast<uint32_t>(got[i]);
    if (bits != expected) return DifferenceAt(i - offset, bits, expected);
  }
  return "";
}

}  // namespace

void CheckEncode(const Options& options, Report& report) {
  const gpu::OwnedStream stream;
  for (const NamedFormat& format : CheckedFormats()) EncodeSizes(format, stream.get(), report);
  for (const char* name : {"fp16", "cb16", "tf32"}) {
    EncodeTypes(options, ParseFormat(name), stream.get(), report);
  }
  CheckLargeTensor(options, report);
  SweepEncode(options, report);
}

void CheckDecode(const Options&, Report& report) {
  const gpu::OwnedStream stream;
  for (const NamedFormat& format : CheckedFormats()) {
    const std::vector<uint32_t> codes = AllCodes(format.format);
    report.Add({"decode", format.name + ", all codes", codes.size(),
                DecodeOne(format.format, codes, 0, stream.get())});
    CheckResult sizes = {"decode", format.name + ", odd sizes", 0, ""};
    for (size_t size = 0; size <= 70 && sizes.problem.empty(); ++size) {
      const auto some = std::span(codes).last(size + 40).first(size);
      sizes.problem = DecodeOne(format.format, some, size % 8, stream.get());
      sizes.compared += size;
    }
    report.Add(sizes);
  }
}

}  // namespace dlsim::gpu_check
