// SPDX-License-Identifier: Apache-2.0
// Which benchmarks are meant: by a pattern and by the size in their names.
#pragma once

#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim {

class KernelSelection {
 public:
  // `filter` is a POSIX extended regular expression that a name contains, or, as for Google
  // Benchmark, after a leading '-', one that it does not contain; `sizes` are names such as
  // "L1,L2", all if empty. Throws UsageError for a malformed pattern.
  explicit KernelSelection(const std::string& filter, const std::string& sizes = "");

  bool Contains(const std::string& name) const;

 private:
  bool is_negated_;
  std::regex filter_;
  std::vector<std::string> sizes_;
};

// Returns "L2" of "Encode/cb16/rne/AVX2/L2/grad/threads:1"; empty if there is none.
std::string SizeOf(std::string_view name);

// Returns the texts between commas.
std::vector<std::string> SplitAtCommas(std::string_view text);

// Returns a pattern that matches exactly these names, as a whole.
std::string ExactPattern(const std::vector<std::string>& names);

// Returns a pattern that matches all names of these sizes.
std::string SizePattern(std::string_view sizes);

}  // namespace dlsim
