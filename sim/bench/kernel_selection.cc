// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/kernel_selection.h"

#include <algorithm>
#include <cstddef>

#include "dlsim/error.h"
#include "sim/base/number.h"

namespace dlsim::sim {
namespace {

constexpr size_t kSizePart = 4;  // Kernel/format/mode/target/size

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == text.npos) return parts;
    begin = end + 1;
  }
}

}  // namespace

std::vector<std::string> SplitAtCommas(std::string_view text) { return Split(text, ','); }

NameFilter::NameFilter(std::string_view place, const std::string& pattern)
    : is_negated_(pattern.starts_with('-')) {
  try {
    regex_ = std::regex(pattern.substr(is_negated_ ? 1 : 0), std::regex::extended);
  } catch (const std::regex_error&) {
    throw UsageError(place, "malformed pattern", "a POSIX extended regular expression",
                     Quoted(pattern));
  }
}

bool NameFilter::Matches(const std::string& name) const {
  return std::regex_search(name, regex_) != is_negated_;
}

KernelSelection::KernelSelection(const std::string& filter, const std::string& sizes)
    : filter_("--filter", filter) {
  if (!sizes.empty()) sizes_ = SplitAtCommas(sizes);
}

bool KernelSelection::Contains(const std::string& name) const {
  if (!sizes_.empty() && std::ranges::find(sizes_, SizeOf(name)) == sizes_.end()) return false;
  return filter_.Matches(name);
}

std::string SizeOf(std::string_view name) {
  const std::vector<std::string> parts = Split(name, '/');
  return parts.size() > kSizePart ? parts[kSizePart] : "";
}

std::string SizePattern(std::string_view sizes) {
  std::string alternatives(sizes);
  std::ranges::replace(alternatives, ',', '|');
  return "^([^/]*/){" + std::to_string(kSizePart) + "}(" + alternatives + ")/";
}

std::vector<int> ParseThreadCounts(const std::string& text, int most) {
  std::vector<int> threads;
  for (const std::string& part : SplitAtCommas(text)) {
    const int64_t count = ParseInteger(part, "--threads");
    if (count < 1 || count > most) {
      throw UsageError("--threads", "out of range", "1 to " + std::to_string(most), part);
    }
    threads.push_back(static_cast<int>(count));
    if (std::ranges::count(threads, threads.back()) > 1) {
      throw UsageError("--threads", "given twice", "different numbers", part);
    }
  }
  return threads;
}

std::string ExactPattern(const std::vector<std::string>& names) {
  std::string pattern;
  for (const std::string& name : names) {
    pattern += pattern.empty() ? "^(" : "|";
    for (const char letter : name) {
      if (std::string_view(".^$*+?()[]{}|\\").find(letter) != std::string_view::npos) {
        pattern += '\\';
      }
      pattern += letter;
    }
  }
  return pattern + ")$";
}

}  // namespace dlsim::sim
