// SPDX-License-Identifier: Apache-2.0
#include "gpu/check/report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "dlsim/error.h"

namespace dlsim::gpu_check {
namespace {

constexpr const char* kDataSets[2] = {"normal", "grad"};

// The groups of results in the order in which they ran.
std::vector<std::string> GroupsOf(const std::vector<CheckResult>& results) {
  std::vector<std::string> groups;
  for (const CheckResult& result : results) {
    if (std::ranges::find(groups, result.group) == groups.end()) groups.push_back(result.group);
  }
  return groups;
}

void PrintGroup(const std::string& group, const std::vector<CheckResult>& results) {
  size_t checks = 0, equal = 0;
  uint64_t compared = 0;
  for (const CheckResult& result : results) {
    if (result.group != group) continue;
    ++checks;
    equal += result.problem.empty();
    compared += result.compared;
  }
  std::printf("%-9s %4zu of %4zu equal  %.4g compared  %s\n", group.c_str(), equal, checks,
              static_cast<double>(compared), equal == checks ? "ok" : "FAILED");
}

void PrintRow(const TimedRow& row) {
  std::printf("%-34s", row.name.c_str());
  for (const double gbs : row.gbs) {
    gbs > 0 ? std::printf(" %8.0f", gbs) : std::printf(" %8s", "-");
  }
  for (size_t data = 0; data < 2; ++data) {
    const bool known = row.gbs[data] > 0 && row.of_limit[data] > 0;
    known ? std::printf(" %7.3f", row.of_limit[data]) : std::printf(" %7s", "-");
  }
  if (row.target > 0) {
    const bool met = row.of_limit[0] >= row.target && row.of_limit[1] >= row.target;
    std::printf("  %s %.2f %s", row.limit.c_str(), row.target, met ? "met" : "MISSED");
  }
  std::printf("\n");
}

// Text in quotes: device names and messages are printable ASCII but for quotes and backslashes.
std::string JsonText(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

std::string JsonRow(const TimedRow& row, size_t data) {
  char numbers[160];
  std::snprintf(numbers, sizeof numbers,
                "\"bytes_per_element\": %g, \"gb_per_s\": %.6g, \"gelem_per_s\": %.6g, "
                "\"of_limit\": %.6g, \"target\": %g}",
                row.bytes, row.gbs[data], row.bytes > 0 ? row.gbs[data] / row.bytes : 0,
                row.of_limit[data], row.target);
  return "{\"name\": " + JsonText(row.name) + ", \"data\": " + JsonText(kDataSets[data]) +
         ", \"limit\": " + JsonText(row.limit) + ", " + numbers;
}

}  // namespace

void Report::Add(CheckResult result) {
  if (!result.problem.empty()) {
    ++failures_;
    std::printf("DIFFERS: %s %s: %s\n", result.group.c_str(), result.name.c_str(),
                result.problem.c_str());
    std::fflush(stdout);
  }
  results_.push_back(std::move(result));
}

void Report::Print() const {
  std::printf("\n");
  for (const std::string& group : GroupsOf(results_)) PrintGroup(group, results_);
  if (!rows_.empty()) {
    std::printf("\n%-34s %8s %8s %7s %7s  target\n", "median GB/s, share of limit", kDataSets[0],
                kDataSets[1], kDataSets[0], kDataSets[1]);
    for (const TimedRow& row : rows_) PrintRow(row);
  }
  for (const std::string& note : notes_) std::printf("%s\n", note.c_str());
  std::printf("verdict: %s\n", passed() ? "all equal" : "FAILED, see DIFFERS above");
}

void Report::WriteJson(const std::string& path, const std::string& device) const {
  std::ofstream out(path);
  out << "{\n  \"schema\": \"dlsim.gpu-check/1\",\n  \"device\": " << JsonText(device)
      << ",\n  \"passed\": " << (passed() ? "true" : "false") << ",\n  \"checks\": [";
  const char* separator = "\n    ";
  for (const CheckResult& result : results_) {
    out << separator << "{\"group\": " << JsonText(result.group)
        << ", \"name\": " << JsonText(result.name) << ", \"compared\": " << result.compared
        << ", \"problem\": " << JsonText(result.problem) << '}';
    separator = ",\n    ";
  }
  out << "\n  ],\n  \"times\": [";
  separator = "\n    ";
  for (const TimedRow& row : rows_) {
    for (size_t data = 0; data < 2; ++data) {
      if (row.gbs[data] <= 0) continue;
      out << separator << JsonRow(row, data);
      separator = ",\n    ";
    }
  }
  out << "\n  ],\n  \"notes\": [";
  separator = "\n    ";
  for (const std::string& note : notes_) {
    out << separator << JsonText(note);
    separator = ",\n    ";
  }
  out << "\n  ]\n}\n";
  out.close();
  if (!out) throw InputError(Printable(path), "cannot write");
}

}  // namespace dlsim::gpu_check
