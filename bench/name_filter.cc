// SPDX-License-Identifier: Apache-2.0
#include "bench/name_filter.h"

#include <algorithm>
#include <cstdint>

#include "dlsim/error.h"
#include "sim/base/number.h"

namespace dlsim::bench {

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

std::vector<std::string> SplitAtCommas(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(',', begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == text.npos) return parts;
    begin = end + 1;
  }
}

std::vector<int> ParseThreadCounts(const std::string& text, int most) {
  std::vector<int> threads;
  for (const std::string& part : SplitAtCommas(text)) {
    const int64_t count = sim::ParseInteger(part, "--threads");
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

}  // namespace dlsim::bench
