// SPDX-License-Identifier: Apache-2.0
#include "sim/base/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "sim/base/quantity.h"
#include "src/base/text.h"

namespace dlsim::sim {
namespace {

// What is below stands in JSON as itself or as an escape already.
bool MayBeHidden(char letter) { return static_cast<uint8_t>(letter) >= 0x7F; }

uint32_t CodePoint(std::string_view sequence) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(sequence[i]));
  };
  if (sequence.size() == 1) return byte(0);
  uint32_t point = byte(0) & (0x7Fu >> sequence.size());
  for (size_t i = 1; i < sequence.size(); ++i) point = point << 6 | (byte(i) & 0x3F);
  return point;
}

// Writes hidden characters as \uXXXX, which means the same text. Only strings hold them.
std::string EscapeInJson(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view sequence = text.substr(0, std::max<size_t>(Utf8Length(text), 1));
    text.remove_prefix(sequence.size());
    if (!MayBeHidden(sequence[0]) || !IsHidden(sequence)) {
      out.append(sequence);
      continue;
    }
    const uint32_t point = CodePoint(sequence);
    if (point < 0x10000) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", point);
    } else {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}\\u{:04x}",
                     0xD800 + ((point - 0x10000) >> 10), 0xDC00 + (point & 0x3FF));
    }
  }
  return out;
}

class JsonSink final : public RowSink {
 public:
  explicit JsonSink(OutputFile* file) : file_(file) {}

  std::string TakeText() { return std::exchange(text_, {}); }

  void Take(const Place& place, const Cell& cell, bool missing) override {
    if (!Begin(place, false, missing)) return;
    if (missing) {
      text_ += "null";
    } else {
      std::visit([&](const auto& value) { Put(value); }, cell);
    }
  }

  bool Open(const Place& place, bool is_object, bool none, const void*) override {
    if (!Begin(place, is_object, none)) return false;
    text_ += none ? "null" : is_object ? "{" : "[";
    if (!none) on_lines_.push_back((place.how & kOnLines) == kOnLines);
    return !none;
  }

  void Close(bool is_object) override {
    text_ += is_object ? '}' : ']';
    on_lines_.pop_back();
  }

 private:
  // Ends what is before a member or item; returns whether it is written.
  bool Begin(const Place& place, bool is_object, bool none) {
    if (none && (place.how & kLeftOutIfEmpty) != 0) return false;
    if (text_.empty()) return true;
    const bool in_list = place.name == nullptr;
    const bool on_line = in_list ? is_object && on_lines_.back() : (place.how & kOnLine) != 0;
    const char last = text_.back();
    if (last != '{' && last != '[') text_ += ',';
    if (on_line && last != '{') EndLine();
    if (in_list) return true;
    Put(std::string_view(place.name));
    text_ += ':';
    return true;
  }

  void EndLine() {
    constexpr size_t kWritten = 1 << 16;
    text_ += '\n';
    if (file_ != nullptr && text_.size() > kWritten) file_->Write(TakeText());
  }

  void Put(bool flag) { text_ += flag ? "true" : "false"; }
  void Put(int64_t number) { fmt::format_to(std::back_inserter(text_), "{}", number); }
  void Put(uint64_t number) { fmt::format_to(std::back_inserter(text_), "{}", number); }
  void Put(float number) { Put(double{number}); }

  // As nlohmann does, which writes what others have made. JSON has no infinite numbers.
  void Put(double number) {
    if (std::isfinite(number)) {
      char digits[64];
      text_.append(digits, nlohmann::detail::to_chars(digits, std::end(digits), number));
    } else {
      text_ += std::isnan(number) ? "\"nan\"" : number < 0 ? "\"-inf\"" : "\"inf\"";
    }
  }

  void Put(std::string_view text) {
    const auto plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
    if (std::ranges::all_of(text, plain)) {
      text_.append("\"").append(text).append("\"");
    } else {
      // Bytes that are not UTF-8 are replaced, hidden characters escaped.
      const auto replace = nlohmann::json::error_handler_t::replace;
      const std::string json = nlohmann::json(text).dump(-1, ' ', false, replace);
      text_ += std::ranges::any_of(json, MayBeHidden) ? EscapeInJson(json) : json;
    }
  }

  std::string text_;
  std::vector<bool> on_lines_;  // of the objects and lists that are open
  OutputFile* file_;
};

class TextSink final : public RowSink {
 public:
  void Take(const Place& place, const Cell& cell, bool missing) override {
    if (missing && (place.how & kLeftOutIfEmpty) != 0) return;
    json_.Take(depth_ == 0 ? Place() : place, cell, missing);
    if (depth_ == 0) texts.emplace_back(place.name, json_.TakeText());
  }
  bool Open(const Place& place, bool is_object, bool missing, const void*) override {
    if (missing) {
      Take(place, {}, true);
      return false;
    }
    if (depth_++ == 0) name_ = place.name;
    return json_.Open(depth_ == 1 ? Place() : place, is_object, missing, nullptr);
  }
  void Close(bool is_object) override {
    json_.Close(is_object);
    if (--depth_ == 0) texts.emplace_back(name_, json_.TakeText());
  }

  std::vector<std::pair<std::string, std::string>> texts;

 private:
  JsonSink json_ = JsonSink(nullptr);
  int depth_ = 0;
  const char* name_ = nullptr;  // of the row that is open
};

class CsvSink final : public RowSink {
 public:
  explicit CsvSink(bool names) : names_(names) {}

  void Take(const Place& place, const Cell& cell, bool missing) override {
    if (!std::exchange(first_, false)) line += ',';
    if (names_) {
      line += place.name;
    } else if (!missing) {
      std::visit([&](const auto& value) { Put(value); }, cell);
    }
  }
  bool Open(const Place&, bool, bool, const void*) override { return false; }
  void Close(bool) override {}

  std::string line;

 private:
  void Put(std::string_view text) { line += CsvField(std::string(text)); }
  void Put(bool flag) { line += flag ? '1' : '0'; }
  template <class Number>
  void Put(Number number) {
    if constexpr (std::floating_point<Number>) number = WithoutNanSign(number);
    fmt::format_to(std::back_inserter(line), "{}", number);
  }

  bool names_, first_ = true;
};

class FigureSink final : public RowSink {
 public:
  void Take(const Place& place, const Cell& cell, bool missing) override {
    if (missing && (place.how & kLeftOutIfEmpty) != 0) return;
    std::visit(
        [&]<class Held>(const Held& value) {
          if constexpr (std::is_arithmetic_v<Held> && !std::same_as<Held, bool>) {
            const auto number = static_cast<double>(value);
            figures.push_back(
                {prefix_ + place.name, missing ? std::nullopt : std::optional(number)});
          }
        },
        cell);
  }

  bool Open(const Place& place, bool is_object, bool, const void*) override {
    if (!is_object) return false;
    if (place.name == nullptr) return true;
    prefix_ += std::string(place.name) + ".";
    return true;
  }

  void Close(bool) override {
    if (prefix_.empty()) return;
    prefix_.pop_back();
    prefix_.erase(prefix_.rfind('.') + 1);  // npos + 1 is 0
  }

  std::vector<Figure> figures;

 private:
  std::string prefix_;
};

class KeySink final : public RowSink {
 public:
  KeySink(std::string path, std::vector<KeyTable>& tables)
      : path_(std::move(path)), tables_(tables) {}

  void TellKeys(const TellRows& tell, const void* type) { TellMissing(tell, type); }

  void Take(const Place& place, const Cell&, bool) override { Add(place); }

  bool Open(const Place& place, bool is_object, bool, const void* type) override {
    Add(place);
    const bool known = type != nullptr && std::ranges::count(tables_, type, &KeyTable::type) > 0;
    if (known) return false;
    paths_.push_back({path_, open_});
    if (place.name != nullptr) path_ += (path_.empty() ? "" : ".") + std::string(place.name);
    if (!is_object) {
      path_ += "[]";
    } else {
      open_ = tables_.size();
      tables_.push_back({path_, type});
    }
    return true;
  }

  void Close(bool) override {
    std::tie(path_, open_) = paths_.back();
    paths_.pop_back();
  }

 private:
  void Add(const Place& place) {
    if (place.name != nullptr) tables_[open_].keys.push_back({place.name, place.meaning});
  }

  std::string path_;
  size_t open_ = 0;                                    // the table of the object that is open
  std::vector<std::pair<std::string, size_t>> paths_;  // of what is around it
  std::vector<KeyTable>& tables_;
};

// True for what a spreadsheet would take for a formula: `-1e5` is a number.
bool LooksLikeFormula(const std::string& text) {
  if (text.find_first_of("=+-@") != 0) return false;
  const char* const end = text.data() + text.size();
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error != std::errc() || rest != end;
}

}  // namespace

std::string CsvField(const std::string& text) {
  std::string shown = EscapeHidden(text);
  if (LooksLikeFormula(shown)) shown.insert(shown.begin(), '\'');
  if (shown.find_first_of(",\"") == std::string::npos) return shown;
  std::string quoted = "\"";
  for (const char c : shown) {
    if (c == '"') quoted.push_back('"');
    quoted.push_back(c);
  }
  return quoted + '"';
}

std::string JsonTold(const TellRows& tell) {
  JsonSink sink(nullptr);
  tell(sink);
  return sink.TakeText();
}

bool WriteJson(const TellRows& tell, OutputFile& out) {
  if (out.GiveRows(tell)) return true;
  JsonSink sink(&out);
  sink.Object(nullptr, "", tell);
  out.Write(sink.TakeText() + "\n");
  return false;
}

std::string CsvNames(const TellRows& tell) {
  CsvSink sink(true);
  tell(sink);
  return std::move(sink.line);
}

std::string CsvValues(const TellRows& tell) {
  CsvSink sink(false);
  tell(sink);
  return std::move(sink.line);
}

std::vector<std::pair<std::string, std::string>> TextsOf(const TellRows& tell) {
  TextSink sink;
  tell(sink);
  return std::move(sink.texts);
}

std::vector<Figure> FiguresOf(const TellRows& tell) {
  FigureSink sink;
  tell(sink);
  return std::move(sink.figures);
}

void AddKeys(const std::string& path, const TellRows& tell, std::vector<KeyTable>& tables,
             const void* type) {
  KeySink sink(path, tables);
  sink.TellKeys(tell, type);
}

}  // namespace dlsim::sim
