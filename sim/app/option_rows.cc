// SPDX-License-Identifier: Apache-2.0
#include "sim/app/option_rows.h"

#include <charconv>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "src/base/set_threads.h"

namespace dlsim::sim {
namespace {

constexpr uint64_t kMostThreads = 4096;
constexpr uint64_t kMebibyte = uint64_t{1} << 20, kMostMebibytes = uint64_t{1} << 30;

uint64_t ParsePositive(const std::string& option, const std::string& text) {
  const int64_t value = ParseInteger(text, option);
  if (value < 1) throw UsageError(option, "too small", "1 or more", Quoted(text));
  return static_cast<uint64_t>(value);
}

}  // namespace

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

CLI::Option* OptionRows::operator()(const std::string& name, uint64_t& field,
                                    const std::string& help) {
  return (*this)(name, field, "N", help + " (default " + std::to_string(field) + ")");
}

CLI::Option* OptionRows::Read(const std::string& name, const Reader& read, const char* value,
                              const std::string& help, std::vector<std::string> offered) {
  CLI::Option* const option = command_.add_option_function<std::string>(name, read, help);
  return Offer(option->option_text(value), std::move(offered));
}

CLI::Option* OptionRows::ReadEach(const std::string& name, const Reader& read, const char* value,
                                  const std::string& help, std::vector<std::string> offered) {
  const auto read_all = [read](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) read(text);
  };
  CLI::Option* const option =
      command_.add_option_function<std::vector<std::string>>(name, read_all, help);
  return Offer(option->option_text(value)->allow_extra_args(false), std::move(offered));
}

void OptionRows::Threads() {
  Group(kComputationGroup);
  const auto read = [](const std::string& text) {
    const uint64_t count = ParsePositive("--threads", text);
    if (count > kMostThreads) {
      throw UsageError("--threads", "too large", "1 to " + std::to_string(kMostThreads),
                       Quoted(text));
    }
    SetWantedThreads(static_cast<int>(count));
  };
  Read("--threads", read, "N",
       "Maximum number of threads (default: $OMP_NUM_THREADS, else one per processor); the "
       "results do not depend on it");
}

void OptionRows::Memory(uint64_t& bytes) {
  const auto read = [&bytes](const std::string& text) {
    const uint64_t mebibytes = ParsePositive("--memory", text);
    if (mebibytes > kMostMebibytes) {
      throw UsageError("--memory", "too large", "1 to " + std::to_string(kMostMebibytes) + " MiB",
                       Quoted(text));
    }
    bytes = mebibytes * kMebibyte;
  };
  Read("--memory", read, "MIB",
       "Memory in MiB for steps that are measured ahead (default " +
           std::to_string(bytes / kMebibyte) + "); the results do not depend on it");
}

CLI::Option* OptionRows::Offer(CLI::Option* option, std::vector<std::string> offered) {
  return offered.empty() ? option : OfferValues(option, std::move(offered));
}

}  // namespace dlsim::sim
