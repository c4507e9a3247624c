// SPDX-License-Identifier: Apache-2.0
#include "src/trace/npy.h"

#include <array>
#include <string_view>

#include "dlsim/error.h"
#include "src/trace/npy_dict.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kVersionEnd = 8;            // magic and two version bytes
constexpr uint64_t kMaxHeaderBytes = 1 << 16;  // numpy's own reader stops at 10,000

struct TypeRow {
  NpyType type;
  const char* name;
  size_t bytes;
};
constexpr std::array<TypeRow, 6> kTypes = {{{NpyType::kF16, "<f2", 2},
                                            {NpyType::kF32, "<f4", 4},
                                            {NpyType::kF64, "<f8", 8},
                                            {NpyType::kU16, "<u2", 2},
                                            {NpyType::kU32, "<u4", 4},
                                            {NpyType::kVoid2, "|V2", 2}}};

const TypeRow& Row(NpyType type) { return kTypes[static_cast<size_t>(type)]; }

NpyType ParseType(const std::string& place, std::string_view descr, std::string_view expected) {
  for (const TypeRow& row : kTypes) {
    if (descr == row.name) return row.type;
  }
  if (descr == "<V2") return NpyType::kVoid2;
  throw InputError(place,
                   descr.starts_with('>') ? "unsupported dtype (big-endian)" : "unsupported dtype",
                   expected, Quoted(descr));
}

// Returns where the header's text lies: its offset and length.
std::pair<uint64_t, uint64_t> ReadPrefix(const ByteSource& source) {
  std::array<std::byte, 12> bytes{};
  if (source.size < kVersionEnd + 2) {
    throw InputError(source.place, "is not a .npy file", "at least 10 bytes",
                     std::to_string(source.size));
  }
  source.read(0, std::span(bytes).first(kVersionEnd));
  for (size_t i = 0; i < kMagic.size(); ++i) {
    if (static_cast<char>(bytes[i]) != kMagic[i]) {
      throw InputError(source.place, "is not a .npy file: wrong magic bytes");
    }
  }
  const int major = std::to_integer<int>(bytes[6]);
  const int minor = std::to_integer<int>(bytes[7]);
  if (major < 1 || major > 3 || minor != 0) {
    throw InputError(source.place, "unsupported .npy version", "1.0, 2.0 or 3.0",
                     std::to_string(major) + "." + std::to_string(minor));
  }
  const uint64_t length_bytes = major == 1 ? 2 : 4;
  if (source.size < kVersionEnd + length_bytes) {
    throw InputError(source.place, "is cut in its header");
  }
  source.read(kVersionEnd, std::span(bytes).subspan(kVersionEnd, length_bytes));
  uint64_t length = 0;
  for (size_t i = length_bytes; i-- > 0;) {
    length = length << 8 | std::to_integer<uint64_t>(bytes[kVersionEnd + i]);
  }
  return {kVersionEnd + length_bytes, length};
}

// The elements must fill the file exactly: nothing is missing and nothing hides behind them.
void CheckSize(const ByteSource& source, NpyHeader& header) {
  const uint64_t item_bytes = NpyTypeSize(header.type);
  const std::optional<uint64_t> elements = ElementCount(header.shape, item_bytes);
  if (!elements) {
    throw InputError(source.place, "shape " + ShapeText(header.shape) + " is too large");
  }
  header.elements = *elements;
  const uint64_t data_bytes = source.size - header.data_start;
  if (*elements * item_bytes != data_bytes) {
    throw InputError(source.place, "wrong size",
                     std::to_string(*elements * item_bytes) + " bytes of data for " +
                         NpyTypeName(header.type) + " " + ShapeText(header.shape),
                     std::to_string(data_bytes));
  }
}

}  // namespace

size_t NpyTypeSize(NpyType type) { return Row(type).bytes; }

const char* NpyTypeName(NpyType type) { return Row(type).name; }

namespace {

// The dictionary of a header, and where the elements begin.
struct HeaderText {
  NpyDict dict;
  uint64_t data_start = 0;
};

HeaderText ReadText(const ByteSource& source) {
  const auto [start, length] = ReadPrefix(source);
  if (length > source.size - start) {
    throw InputError(source.place, "header reaches beyond the file",
                     "at most " + std::to_string(source.size - start) + " bytes",
                     std::to_string(length));
  }
  if (length > kMaxHeaderBytes) {
    throw InputError(source.place, "header too long",
                     "at most " + std::to_string(kMaxHeaderBytes) + " bytes",
                     std::to_string(length));
  }
  std::string text(length, '\0');
  source.read(start, std::as_writable_bytes(std::span(text)));
  return {ParseNpyDict(source.place, text), start + length};
}

}  // namespace

bool HoldsFloats(const ByteSource& source) {
  const std::string descr = ReadText(source).dict.descr;
  return descr == "<f2" || descr == "<f4" || descr == "<f8" || descr.ends_with("V2");
}

NpyHeader ReadNpyHeader(const ByteSource& source, std::string_view expected) {
  const auto [dict, data_start] = ReadText(source);
  NpyHeader header;
  header.type = ParseType(source.place, dict.descr, expected);
  header.fortran_order = dict.fortran_order;
  header.shape = dict.shape;
  header.data_start = data_start;
  CheckSize(source, header);
  return header;
}

DType TraceDType(const std::string& place, NpyType type, std::optional<DType> void2,
                 std::string_view expected) {
  switch (type) {
    case NpyType::kF16:
      return DType::kF16;
    case NpyType::kF32:
      return DType::kF32;
    case NpyType::kF64:
      return DType::kF64;
    case NpyType::kVoid2:
      if (void2 && DTypeSize(*void2) == 2) return *void2;
      throw InputError(
          place,
          "dtype V2 does not say which number format; if it is bfloat16, pass --npy-void bf16");
    case NpyType::kU16:
    case NpyType::kU32:
      break;
  }
  throw InputError(place, "unsupported dtype", expected, Quoted(NpyTypeName(type)));
}

std::string MakeNpyHeader(NpyType type, std::span<const uint64_t> shape, bool fortran_order) {
  std::string dict = "{'descr': '";
  dict.append(NpyTypeName(type)).append("', 'fortran_order': ");
  dict.append(fortran_order ? "True" : "False").append(", 'shape': (");
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) dict.append(" ");
    dict.append(std::to_string(shape[i])).append(i == 0 || i + 1 < shape.size() ? "," : "");
  }
  dict.append("), }");
  // Version 1.0 counts the header in 16 bits, version 2.0 in 32.
  const bool is_long = kVersionEnd + 2 + dict.size() + 64 > 0xFFFF;
  const size_t prefix = kVersionEnd + (is_long ? 4 : 2);
  const size_t total = (prefix + dict.size() + 1 + 63) / 64 * 64;
  dict.append(total - prefix - dict.size() - 1, ' ').push_back('\n');
  std::string header(kMagic);
  header.push_back(is_long ? '\2' : '\1');
  header.push_back('\0');
  for (size_t i = 0; i < prefix - kVersionEnd; ++i) {
    header.push_back(static_cast<char>(dict.size() >> (8 * i) & 0xFF));
  }
  return header + dict;
}

}  // namespace dlsim
