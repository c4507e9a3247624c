// SPDX-License-Identifier: Apache-2.0
#include "sim/app/option_rows.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "dlsim/scaled_format.h"
#include "dlsim/sim/policies.h"
#include "sim/base/parse.h"
#include "src/base/threads.h"

namespace dlsim::sim {
namespace {

constexpr uint64_t kMostThreads = 4096;
constexpr uint64_t kMebibyte = uint64_t{1} << 20, kMostMebibytes = uint64_t{1} << 30;

// Reads 1 up to `most`, if any, in some `unit`.
uint64_t ParsePositive(const std::string& option, const std::string& text,
                       std::optional<uint64_t> most = {}, const char* unit = "") {
  const int64_t value = ParseInteger(text, option);
  if (value < 1) throw UsageError(option, "too small", "1 or more", Quoted(text));
  if (most && static_cast<uint64_t>(value) > *most) {
    throw UsageError(option, "too large", "1 to " + std::to_string(*most) + unit, Quoted(text));
  }
  return static_cast<uint64_t>(value);
}

}  // namespace

void OptionRow::Read(const std::string& text) {
  given.push_back(takes == Takes::kMaybeOne && text.empty() ? value_if_none : text);
  read(given.back());
}

// All of 64 bits, which ParseInteger does not have.
void ReadValue(const std::string& option, const std::string& text, uint64_t& value) {
  const char* const end = text.data() + text.size();
  uint64_t count = 0;
  const std::from_chars_result result = std::from_chars(text.data(), end, count);
  if (result.ptr != end || result.ec != std::errc()) {
    const int64_t integer = ParseInteger(text, option);
    if (integer < 0) throw UsageError(option, "negative number", "0 or more", Quoted(text));
    count = static_cast<uint64_t>(integer);
  }
  value = count;
}

void ReadValue(const std::string& option, const std::string& text, std::optional<uint64_t>& value) {
  value = ParsePositive(option, text);
}

void ReadValue(const std::string& option, const std::string& text, std::optional<int64_t>& value) {
  if (!text.empty()) value = ParseInteger(text, option);
}

void ReadValue(const std::string& option, const std::string& text, std::optional<double>& value) {
  if (!text.empty()) value = ParseNumber(text, option);
}

void ReadValue(const std::string&, const std::string& text, std::optional<std::string>& value) {
  if (!text.empty()) value = text;
}

template <class Rows>
std::vector<std::string> NamesIn(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> FormatNames() { return NamesIn(kFormats); }

std::vector<std::string> FormatNamesAndScaled() {
  std::vector<std::string> names = FormatNames();
  std::ranges::move(ScaledFormatNames(), std::back_inserter(names));
  return names;
}

std::vector<std::string> ScaledFormatNames() { return NamesIn(kScaledFormats); }

std::vector<std::string> PolicyNames() { return NamesIn(Policies()); }

std::vector<std::string> PolicyNamesAndAll() {
  std::vector<std::string> names = PolicyNames();
  names.emplace_back("all");
  return names;
}

std::vector<std::string> ParameterNames() {
  std::set<std::string> keys;
  for (const PolicyInfo& policy : Policies()) {
    for (const ParameterInfo& parameter : policy.parameters) {
      keys.insert(std::string(parameter.name) + "=");
    }
  }
  return {keys.begin(), keys.end()};
}

OptionRow& OptionRows::Named(std::string_view name) {
  return *std::ranges::find(rows_, name, &OptionRow::name);
}

OptionRow& OptionRows::operator()(const std::string& name, bool& field, const std::string& help) {
  const auto read = [&field](const std::string& text) { field = text != "false"; };
  return Read(name, read, "", help, {}, Takes::kNothing);
}

OptionRow& OptionRows::operator()(const std::string& name, uint64_t& field,
                                  const std::string& help) {
  return (*this)(name, field, "N", help + " (default " + std::to_string(field) + ")");
}

OptionRow& OptionRows::Read(const std::string& name, Reader read, const char* value,
                            const std::string& help, Names names, Takes takes) {
  return rows_.emplace_back(OptionRow{.name = name,
                                      .value = value,
                                      .help = help,
                                      .takes = takes,
                                      .read = std::move(read),
                                      .names = std::move(names),
                                      .group = group_});
}

OptionRow& OptionRows::Output(const std::string& name, std::optional<std::string>& field,
                              const std::string& help) {
  OptionRow& row = (*this)(name, field, "FILE", help + "; - is standard output");
  row.is_output = true;
  return row;
}

void OptionRows::Threads() {
  Group(kComputationGroup);
  const auto read = [](const std::string& text) {
    SetWantedThreads(static_cast<int>(ParsePositive("--threads", text, kMostThreads)));
  };
  Read("--threads", read, "N",
       "Maximum number of threads (default: $OMP_NUM_THREADS, else one per processor); the "
       "results do not depend on it");
}

void OptionRows::Memory(uint64_t& bytes) {
  const auto read = [&bytes](const std::string& text) {
    bytes = ParsePositive("--memory", text, kMostMebibytes, " MiB") * kMebibyte;
  };
  Read("--memory", read, "MIB",
       "Memory in MiB for steps that are measured ahead (default " +
           std::to_string(bytes / kMebibyte) + "); the results do not depend on it");
}

}  // namespace dlsim::sim
