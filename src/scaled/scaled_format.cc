// SPDX-License-Identifier: Apache-2.0
#include "dlsim/scaled_format.h"

#include <charconv>
#include <cstddef>
#include <system_error>

#include "dlsim/error.h"

namespace dlsim {
namespace {

struct Element {
  std::string_view name;
  Format format;
};
constexpr std::array<Element, 5> kElements = {
    {{"e4m3", kE4m3}, {"e5m2", kE5m2}, {"e2m3", kE2m3}, {"e3m2", kE3m2}, {"e2m1", kE2m1}}};

const ScaledFormat* FindRow(std::string_view name) {
  for (const ScaledFormat& row : kScaledFormats) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::string_view NameIn(std::string_view text) { return text.substr(0, text.find(':')); }

// Reads the options of one format; `place` is for messages.
class OptionReader {
 public:
  OptionReader(std::string_view place, ScaledFormat& format) : place_(place), format_(format) {}

  void Set(std::string_view option) {
    const size_t equals = option.find('=');
    key_ = option.substr(0, equals);
    value_ = equals == option.npos ? std::string_view() : option.substr(equals + 1);
    if (key_ == "forward") {
      format_.forward = TakeElement();
    } else if (key_ == "backward") {
      format_.backward = TakeElement();
    } else if (key_ == "rule" && format_.scale == ScaleType::kE8m0) {
      format_.rule = TakeName<ScaleRule>();
    } else if (key_ == "block" && format_.sharing == Sharing::kBlock) {
      format_.block = static_cast<uint32_t>(TakeNumber(2, 4096));
    } else if (key_ == "pow2" && format_.scale == ScaleType::kFloat32) {
      format_.power_of_two = TakeNumber(0, 1) == 1;
    } else if (key_ == "margin" && format_.scale == ScaleType::kFloat32) {
      format_.margin = TakeNumber(-64, 64);
    } else if (key_ == "history" && format_.delayed) {
      format_.delayed->history = static_cast<uint32_t>(TakeNumber(1, 65536));
    } else if (key_ == "decides" && format_.delayed) {
      format_.delayed->decides = TakeName<FromHistory>();
    } else {
      throw UsageError(place_, std::string(format_.name) + " has no such option", KnownOptions(),
                       Quoted(key_));
    }
  }

 private:
  std::string KnownOptions() const {
    std::string known = "forward, backward";
    if (format_.scale == ScaleType::kE8m0) known += ", rule";
    if (format_.sharing == Sharing::kBlock) known += ", block";
    if (format_.scale == ScaleType::kFloat32) known += ", pow2, margin";
    if (format_.delayed) known += ", history, decides";
    return known;
  }

  [[noreturn]] void Refuse(const std::string& expected) const {
    throw UsageError(place_, std::string(format_.name) + ": bad " + std::string(key_), expected,
                     Quoted(value_));
  }

  Format TakeElement() const {
    std::string known;
    for (const Element& element : kElements) {
      if (element.name == value_) return element.format;
      known.append(known.empty() ? "" : ", ").append(element.name);
    }
    Refuse(known);
  }

  template <NamedEnum E>
  E TakeName() const {
    if (const std::optional<E> value = ValueNamed<E>(value_)) return *value;
    std::string known;
    for (const std::string_view name : NamesOf<E>()) {
      known.append(known.empty() ? "" : ", ").append(name);
    }
    Refuse(known);
  }

  int TakeNumber(int low, int high) const {
    int number = 0;
    const char* const end = value_.data() + value_.size();
    const auto [stop, error] = std::from_chars(value_.data(), end, number);
    if (error != std::errc() || stop != end || number < low || number > high) {
      Refuse(std::to_string(low) + " to " + std::to_string(high));
    }
    return number;
  }

  std::string_view place_;
  ScaledFormat& format_;
  std::string_view key_, value_;
};

}  // namespace

std::string ElementName(const Format& element) {
  return "e" + std::to_string(element.exponent_bits) + "m" + std::to_string(element.mantissa_bits);
}

bool NamesScaledFormat(std::string_view text) { return FindRow(NameIn(text)) != nullptr; }

NamedScaledFormat ParseScaledFormat(std::string_view text, std::string_view place) {
  const ScaledFormat* row = FindRow(NameIn(text));
  if (row == nullptr) {
    std::string known;
    for (const ScaledFormat& each : kScaledFormats) {
      known.append(known.empty() ? "" : ", ").append(each.name);
    }
    throw UsageError(place, "unknown name", known, Quoted(text));
  }
  NamedScaledFormat named = {std::string(text), *row};
  OptionReader reader(place, named.format);
  std::string_view rest = text.substr(row->name.size());
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const size_t end = rest.find(',');
    reader.Set(rest.substr(0, end));
    rest = end == rest.npos ? std::string_view() : rest.substr(end);
  }
  return named;
}

std::vector<NamedScaledFormat> TakeScaledFormats(std::vector<std::string>& formats,
                                                 std::string_view place) {
  std::vector<NamedScaledFormat> scaled;
  for (const std::string& format : formats) {
    if (NamesScaledFormat(format)) scaled.push_back(ParseScaledFormat(format, place));
  }
  std::erase_if(formats, NamesScaledFormat);
  return scaled;
}

}  // namespace dlsim
