// SPDX-License-Identifier: Apache-2.0
#include "src/trace/safetensors.h"

#include <algorithm>
#include <array>
#include <span>

#include "dlsim/error.h"
#include "src/trace/safetensors_sax.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // as in the reference implementation

uint64_t ReadLength(const ByteSource& source) {
  if (source.size < kLengthBytes) {
    throw InputError(source.place, "is not a safetensors file", "at least 8 bytes",
                     std::to_string(source.size));
  }
  std::array<std::byte, kLengthBytes> bytes;
  source.read(0, bytes);
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | std::to_integer<uint64_t>(bytes[i]);
  }
  // Compared this way around because 8 + length may wrap.
  const uint64_t available = source.size - kLengthBytes;
  if (length > available) {
    throw InputError(source.place, "header reaches beyond the file",
                     "at most " + std::to_string(available) + " bytes", std::to_string(length));
  }
  if (length > kMaxSafetensorsHeader) {
    throw InputError(source.place, "header too long",
                     "at most " + std::to_string(kMaxSafetensorsHeader) + " bytes",
                     std::to_string(length));
  }
  return length;
}

// Refuses holes, which could hide other data, and overlaps, which could blow up a small file.
void CheckTiling(const ByteSource& source, const SafetensorsHeader& header) {
  uint64_t position = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.begin != position) {
      throw InputError(TensorPlace(source.place, tensor.name),
                       tensor.begin > position ? "hole before the data" : "data overlaps",
                       "data from offset " + std::to_string(position),
                       std::to_string(tensor.begin));
    }
    position = tensor.end;
  }
  const uint64_t data_bytes = source.size - header.data_start;
  if (position == data_bytes) return;
  throw InputError(source.place,
                   position > data_bytes ? "data is cut off" : "bytes after the last tensor",
                   std::to_string(position) + " bytes of data", std::to_string(data_bytes));
}

}  // namespace

SafetensorsHeader ReadSafetensorsHeader(const ByteSource& source) {
  std::string json(ReadLength(source), '\0');
  source.read(kLengthBytes, std::as_writable_bytes(std::span(json)));
  if (json.empty() || json[0] != '{') {
    throw InputError(source.place, "header does not begin with '{'", {},
                     json.empty() ? "an empty header" : Quoted(json.substr(0, 1)));
  }
  SafetensorsHeader header;
  header.data_start = kLengthBytes + json.size();
  SafetensorsSax sax(source.place, header);
  ParseJson(source.place, json, sax);
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  CheckTiling(source, header);
  return header;
}

}  // namespace dlsim
