// SPDX-License-Identifier: Apache-2.0
#include "src/trace/npy_dict.h"

#include <charconv>
#include <set>

#include "dlsim/error.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

class DictParser {
 public:
  DictParser(const std::string& place, std::string_view text) : place_(place), text_(text) {}

  NpyDict Parse() {
    NpyDict dict;
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
  void Value(const std::string& key, NpyDict& dict) {
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
    if (position_ < text_.size() && text_[position_] == '[') {
      throw InputError(place_, "unsupported dtype: a structure of several fields");
    }
    return String();
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

}  // namespace

NpyDict ParseNpyDict(const std::string& place, std::string_view text) {
  return DictParser(place, text).Parse();
}

}  // namespace dlsim
