// SPDX-License-Identifier: Apache-2.0
#include "src/trace/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kVersionEnd = 8;            // magic and two version bytes
constexpr uint64_t kMaxHeaderBytes = 1 << 16;  // numpy's own reader stops at 10,000

struct TypeRow {
  std::string_view descr;
  uint64_t bytes;
  std::optional<DType> dtype;  // of numbers
};
constexpr TypeRow kTypes[] = {{"<f2", 2, DType::kF16}, {"<f4", 4, DType::kF32},
                              {"<f8", 8, DType::kF64}, {"<u2", 2, {}},
                              {"<u4", 4, {}},          {"|V2", 2, {}}};

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

// Parses the small part of Python that numpy writes, and the padding after it.
class DictParser {
 public:
  DictParser(const std::string& place, std::string_view text) : place_(place), text_(text) {}

  NpyHeader Parse() {
    NpyHeader dict;
    std::set<std::string> keys;
    Expect('{');
    while (!Accept('}')) {
      const std::string key = String();
      if (!keys.insert(key).second) throw InputError(place_, "duplicate key " + Quoted(key));
      Expect(':');
      Value(key, dict);
      if (Accept(',')) continue;
      Expect('}');
      break;
    }
    for (const char* key : {"descr", "fortran_order", "shape"}) {
      if (!keys.contains(key))
        throw InputError(place_, std::string("no ") + key + " in its header");
    }
    CheckPadding();
    return dict;
  }

 private:
  void Value(const std::string& key, NpyHeader& dict) {
    if (key == "descr") {
      dict.descr = Descr();
    } else if (key == "fortran_order") {
      dict.fortran_order = Bool();
    } else if (key == "shape") {
      dict.shape = Shape();
    } else {
      throw InputError(place_, "unknown key in its header", "descr, fortran_order and shape",
                       Quoted(key));
    }
  }

  std::string Descr() {
    SkipSpaces();
    if (!text_.substr(position_).starts_with('[')) return String();
    const size_t begin = position_;
    position_ = text_.find(']', begin);
    if (position_ == text_.npos) {
      position_ = begin;
      Fail("a list that ends");
    }
    return std::string(text_.substr(begin, ++position_ - begin));
  }

  std::string String() {
    SkipSpaces();
    const char quote = position_ < text_.size() ? text_[position_] : '\0';
    if (quote != '\'' && quote != '"') Fail("a string");
    const size_t end = text_.find(quote, position_ + 1);
    if (end == text_.npos) Fail("a string that ends");
    const std::string_view body = text_.substr(position_ + 1, end - position_ - 1);
    if (body.find('\\') != body.npos) Fail("a string without escapes");
    position_ = end + 1;
    return std::string(body);
  }

  bool Bool() {
    SkipSpaces();
    const bool value = text_.substr(position_).starts_with("True");
    if (!value && !text_.substr(position_).starts_with("False")) Fail("True or False");
    position_ += value ? 4 : 5;
    return value;
  }

  std::vector<uint64_t> Shape() {
    std::vector<uint64_t> shape;
    Expect('(');
    while (!Accept(')')) {
      shape.push_back(Integer());
      if (shape.size() > kMaxRank) {
        throw InputError(place_, "too many dimensions", "at most " + std::to_string(kMaxRank));
      }
      if (Accept(',')) continue;
      if (shape.size() == 1) Fail("',' after the only dimension");  // Python's (3) is a number
      Expect(')');
      break;
    }
    return shape;
  }

  uint64_t Integer() {
    SkipSpaces();
    uint64_t value = 0;
    const char* begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || (*begin == '0' && end - begin > 1)) {
      Fail("a dimension from 0 to 2^64-1");
    }
    position_ += static_cast<size_t>(end - begin);
    return value;
  }

  void CheckPadding() {
    SkipSpaces();
    if (position_ + 1 != text_.size() || text_[position_] != '\n') {
      Fail("spaces and one newline after the header");
    }
  }

  void SkipSpaces() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }

  bool Accept(char wanted) {
    SkipSpaces();
    if (position_ == text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }

  void Expect(char wanted) {
    if (!Accept(wanted)) Fail(std::string("'") + wanted + "'");
  }

  [[noreturn]] void Fail(std::string_view expected) const {
    const std::string_view rest = text_.substr(position_, 16);
    throw InputError(place_, "bad header at byte " + std::to_string(position_) + " of its text",
                     expected, rest.empty() ? "its end" : Quoted(rest));
  }

  const std::string& place_;
  std::string_view text_;
  size_t position_ = 0;
};

// The elements must fill the file exactly: nothing is missing and nothing hides behind them.
void CheckSize(const ByteSource& source, uint64_t item_bytes, NpyHeader& header) {
  const std::optional<uint64_t> elements = ElementCount(header.shape, item_bytes);
  if (!elements) {
    throw InputError(source.place, "shape " + ShapeText(header.shape) + " is too large");
  }
  header.item_bytes = item_bytes;
  header.elements = *elements;
  const uint64_t data_bytes = source.size - header.data_start;
  if (*elements * item_bytes != data_bytes) {
    throw InputError(source.place, "wrong size",
                     std::to_string(*elements * item_bytes) + " bytes of data for " +
                         Printable(header.descr) + " " + ShapeText(header.shape),
                     std::to_string(data_bytes));
  }
}

void RefuseStructure(const ByteSource& source, const NpyHeader& header) {
  if (!header.descr.starts_with('[')) return;
  throw InputError(source.place, "unsupported dtype: a structure of several fields");
}

}  // namespace

NpyHeader ReadNpyText(const ByteSource& source) {
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
  NpyHeader header = DictParser(source.place, text).Parse();
  header.data_start = start + length;
  return header;
}

bool HoldsFloats(const ByteSource& source) {
  const NpyHeader header = ReadNpyText(source);
  RefuseStructure(source, header);
  return header.descr == "<f2" || header.descr == "<f4" || header.descr == "<f8" ||
         header.descr.ends_with("V2");
}

NpyHeader ReadNpyHeader(const ByteSource& source, std::string_view expected) {
  NpyHeader header = ReadNpyText(source);
  RefuseStructure(source, header);
  if (header.descr == "<V2") header.descr = "|V2";
  const auto row = std::ranges::find(kTypes, header.descr, &TypeRow::descr);
  if (row == std::end(kTypes)) {
    const bool big = header.descr.starts_with('>');
    throw InputError(source.place, big ? "unsupported dtype (big-endian)" : "unsupported dtype",
                     expected, Quoted(header.descr));
  }
  CheckSize(source, row->bytes, header);
  return header;
}

DType TraceDType(const std::string& place, std::string_view descr, std::optional<DType> void2,
                 std::string_view expected) {
  const auto row = std::ranges::find(kTypes, descr, &TypeRow::descr);
  if (row != std::end(kTypes) && row->dtype) return *row->dtype;
  if (descr != "|V2") throw InputError(place, "unsupported dtype", expected, Quoted(descr));
  if (void2 && DTypeSize(*void2) == 2) return *void2;
  throw InputError(
      place, "dtype V2 does not say which number format; if it is bfloat16, pass --npy-void bf16");
}

std::string ReadNpyList(const ByteSource& source, std::string_view descr, size_t element_bytes) {
  // Nothing that is read so is larger: damage cannot ask for more memory than there is.
  constexpr uint64_t kMostBytes = uint64_t{1} << 32;
  if (source.size > kMostBytes) {
    throw InputError(source.place, "too large", "at most " + std::to_string(kMostBytes) + " bytes",
                     std::to_string(source.size));
  }
  NpyHeader header = ReadNpyText(source);
  if (header.descr != descr || header.fortran_order || header.shape.size() != 1) {
    throw InputError(source.place, "has another type or shape",
                     Printable(descr) + " in one dimension",
                     Printable(header.descr) + " " + ShapeText(header.shape));
  }
  CheckSize(source, element_bytes, header);
  std::string data(source.size - header.data_start, '\0');
  source.read(header.data_start, std::as_writable_bytes(std::span(data)));
  return data;
}

std::string MakeNpyHeader(std::string_view descr, std::span<const uint64_t> shape,
                          bool fortran_order) {
  const std::string_view quote = descr.starts_with('[') ? "" : "'";
  std::string dict = "{'descr': ";
  dict.append(quote).append(descr).append(quote).append(", 'fortran_order': ");
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
