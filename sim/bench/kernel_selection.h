// SPDX-License-Identifier: Apache-2.0
// Which benchmarks are meant: by a pattern and by the size in their names.
#pragma once

#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim::sim {

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

class KernelSelection {
 public:
  // `filter` is that of NameFilter, given by --filter; `sizes` are names such as "L1,L2", all if
  // empty.
  explicit KernelSelection(const std::string& filter, const std::string& sizes = "");

  bool Contains(const std::string& name) const;

 private:
  NameFilter filter_;
  std::vector<std::string> sizes_;
};

// Returns "L2" of "Encode/cb16/rne/AVX2/L2/grad/threads:1"; empty if there is none.
std::string SizeOf(std::string_view name);

// The most threads that a benchmark takes.
inline constexpr int kMaxThreads = 1024;

// Returns the texts between commas.
std::vector<std::string> SplitAtCommas(std::string_view text);

// Returns the numbers of threads of --threads, such as "1,2"; throws UsageError for what is no
// number from 1 to `most`, or there twice.
std::vector<int> ParseThreadCounts(const std::string& text, int most);

// Returns a pattern that matches exactly these names, as a whole.
std::string ExactPattern(const std::vector<std::string>& names);

// Returns a pattern that matches all names of these sizes.
std::string SizePattern(std::string_view sizes);

}  // namespace dlsim::sim
