// SPDX-License-Identifier: Apache-2.0
#include "sim/app/convert_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/measure.h"
#include "sim/base/output_file.h"
#include "src/base/side_task.h"
#include "src/device/compute_device.h"
#include "src/measure/load_floats.h"
#include "src/trace/npy.h"
#include "src/trace/read_only_file.h"

namespace dlsim::sim {
namespace {

// Elements converted at once: enough blocks for many threads, a few MiB of memory. A device copies
// while it converts, which needs more of them.
constexpr uint64_t kPieceElements = uint64_t{1} << 20;
constexpr uint64_t kDevicePieceElements = uint64_t{1} << 24;

template <class T>
std::string_view AsText(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// Calls convert(first element, bytes of the piece) for the pieces of the array. The next piece is
// read meanwhile.
template <class Convert>
void ForEachPiece(const ByteSource& source, const NpyHeader& header, uint64_t piece_elements,
                  const Convert& convert) {
  const size_t size = NpyTypeSize(header.type);
  std::vector<std::byte> bytes, next;
  const auto read_next = [&](uint64_t first) {
    const uint64_t count = std::min(piece_elements, header.elements - first);
    next.resize(static_cast<size_t>(count) * size);
    source.read(header.data_start + first * size, next);
  };
  if (header.elements > 0) read_next(0);
  for (uint64_t first = 0; first < header.elements; first += piece_elements) {
    std::swap(bytes, next);
    std::future<void> reading;  // its destructor waits, so that errors leave no reader behind
    if (header.elements - first > piece_elements) {
      reading = StartAsync([&, first] { read_next(first + piece_elements); });
    }
    convert(first, std::span<const std::byte>(bytes));
    if (reading.valid()) reading.get();
  }
}

// Fills `values` from the bytes of as many elements.
void LoadPiece(DType dtype, std::span<const std::byte> bytes, std::span<float> values) {
  for (size_t begin = 0; begin < values.size(); begin += kChunkElements) {
    const size_t count = std::min(kChunkElements, values.size() - begin);
    LoadFloats(dtype, bytes.data() + begin * DTypeSize(dtype), 1.0f, values.subspan(begin, count));
  }
}

uint64_t PieceElements(const ComputeDevice* device) {
  return device == nullptr ? kPieceElements : kDevicePieceElements;
}

template <class Code>
void EncodePieces(const ByteSource& source, const NpyHeader& header, DType dtype,
                  ArrayConversion how, ComputeDevice* device, OutputFile& out) {
  std::vector<float> values;
  std::vector<Code> codes;
  const auto encode = [&](uint64_t first, std::span<const std::byte> bytes) {
    codes.resize(bytes.size() / DTypeSize(dtype));
    how.first_index = first;
    if (device != nullptr) {
      device->Encode(how, dtype, bytes, codes);
    } else {
      values.resize(codes.size());
      LoadPiece(dtype, bytes, values);
      EncodeArray(how, values, std::span<Code>(codes));
    }
    out.Write(AsText(std::span<const Code>(codes)));
  };
  ForEachPiece(source, header, PieceElements(device), encode);
}

template <class Code>
void DecodePieces(const ByteSource& source, const NpyHeader& header, const Format& format,
                  float scale, ComputeDevice* device, OutputFile& out) {
  const float inverse = 1.0f / scale;
  std::vector<Code> codes;
  std::vector<float> values;
  const auto decode = [&](uint64_t, std::span<const std::byte> bytes) {
    codes.resize(bytes.size() / sizeof(Code));
    values.resize(codes.size());
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(codes)).begin());
    if (device != nullptr) {
      device->Decode(format, std::span<const Code>(codes), values);
    } else {
      DecodeArray(format, std::span<const Code>(codes), values);
    }
    if (scale != 1.0f) {
      for (float& value : values) value *= inverse;
    }
    out.Write(AsText(std::span<const float>(values)));
  };
  ForEachPiece(source, header, PieceElements(device), decode);
}

}  // namespace

void EncodeNpyFile(const std::string& input, const std::string& output, const ArrayConversion& how,
                   std::optional<DType> void2, ComputeDevice* device) {
  const ByteSource source = FileSource(ReadOnlyFile::Open(input));
  const NpyHeader header = ReadNpyHeader(source, kFloatNpyTypes);
  const DType dtype = TraceDType(source.place, header.type, void2, kFloatNpyTypes);
  const bool wide = CodeBits(how.conversion.format) > 16;
  OutputFile out(output);
  out.Write(
      MakeNpyHeader(wide ? NpyType::kU32 : NpyType::kU16, header.shape, header.fortran_order));
  if (wide) {
    EncodePieces<uint32_t>(source, header, dtype, how, device, out);
  } else {
    EncodePieces<uint16_t>(source, header, dtype, how, device, out);
  }
  out.Commit();
}

void DecodeNpyFile(const std::string& input, const std::string& output, const NamedFormat& format,
                   float scale, ComputeDevice* device) {
  const ByteSource source = FileSource(ReadOnlyFile::Open(input));
  const NpyHeader header = ReadNpyHeader(source);
  const bool wide = CodeBits(format.format) > 16;
  const NpyType expected = wide ? NpyType::kU32 : NpyType::kU16;
  if (header.type != expected) {
    throw InputError(source.place, "no codes of " + format.name, NpyTypeName(expected),
                     NpyTypeName(header.type));
  }
  OutputFile out(output);
  out.Write(MakeNpyHeader(NpyType::kF32, header.shape, header.fortran_order));
  if (wide) {
    DecodePieces<uint32_t>(source, header, format.format, scale, device, out);
  } else {
    DecodePieces<uint16_t>(source, header, format.format, scale, device, out);
  }
  out.Commit();
}

}  // namespace dlsim::sim
