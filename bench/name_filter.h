// SPDX-License-Identifier: Apache-2.0
// Which benchmarks are meant, and lists of options.
#pragma once

#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim::bench {

// Selects names as Google Benchmark does: those that contain the POSIX extended regular expression,
// or, after a leading '-', those that do not.
class NameFilter {
 public:
  // Throws UsageError, which names the option `place`, for a malformed pattern.
  explicit NameFilter(std::string_view place = "", const std::string& pattern = "");

  bool Matches(const std::string& name) const;

 private:
  bool is_negated_;
  std::regex regex_;
};

// Returns the texts between commas.
std::vector<std::string> SplitAtCommas(std::string_view text);

// Returns the numbers of threads of --threads, such as "1,2"; throws UsageError for what is no
// number from 1 to `most`, or there twice.
std::vector<int> ParseThreadCounts(const std::string& text, int most);

}  // namespace dlsim::bench
