// SPDX-License-Identifier: Apache-2.0
// Collects what was compared and timed, and prints it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dlsim::gpu_check {

// One comparison with the reference.
struct CheckResult {
  std::string group;
  std::string name;
  uint64_t compared = 0;  // elements, results or cases
  std::string problem;    // the first difference; empty = all equal
};

// One line of the table of timings; the two data sets are "normal" and "grad".
struct TimedRow {
  std::string name;
  std::string limit;   // the row to compare with: "copy", "read"; empty = none
  double target = 0;   // of the limit; 0 = none
  double bytes = 0;    // moved per element
  double gbs[2] = {};  // median over the rounds; 0 = not timed
  double of_limit[2] = {};
};

class Report {
 public:
  // Prints a difference at once.
  void Add(CheckResult result);
  void AddNote(std::string note) { notes_.push_back(std::move(note)); }
  void SetTimes(std::vector<TimedRow> rows) { rows_ = std::move(rows); }

  // Prints the verdict, short enough for the last lines of a log.
  void Print() const;

  // Writes all as JSON. Throws Error if the file cannot be written.
  void WriteJson(const std::string& path, const std::string& device) const;

  bool passed() const { return failures_ == 0; }

 private:
  std::vector<CheckResult> results_;
  std::vector<std::string> notes_;
  std::vector<TimedRow> rows_;
  uint64_t failures_ = 0;
};

}  // namespace dlsim::gpu_check
