// SPDX-License-Identifier: Apache-2.0
#include "sim/app/option_rows.h"

#include <CLI/CLI.hpp>
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

OptionRow Offer(CLI::Option* option, std::vector<std::string> offered) {
  return OptionRow(offered.empty() ? *option : *OfferValues(option, std::move(offered)));
}

}  // namespace

OptionRow& OptionRow::Required() {
  option_.required();
  return *this;
}

OptionRow& OptionRow::Excludes(const std::string& name) {
  option_.excludes(name);
  return *this;
}

OptionRow& OptionRow::TakeAll() {
  option_.expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
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

void OptionRows::Group(const char* group) { command_.option_defaults()->group(group); }

OptionRows OptionRows::OneOf(const std::string& group) {
  CLI::Option_group* const options = command_.add_option_group(group);
  options->require_option(1);
  return OptionRows(*options);
}

OptionRow OptionRows::Named(const std::string& name) {
  return OptionRow(*command_.get_option(name));
}

template <TextField T>
OptionRow OptionRows::Argument(const std::string& name, T& field, const std::string& help,
                               std::vector<std::string> offered) {
  return Offer(command_.add_option(name, field, help), std::move(offered));
}

template <TextField T>
OptionRow OptionRows::Text(const std::string& name, T& field, const char* value,
                           const std::string& help, std::vector<std::string> offered) {
  CLI::Option* const option = command_.add_option(name, field, help);
  return Offer(option->option_text(value)->allow_extra_args(false), std::move(offered));
}

template OptionRow OptionRows::Argument(const std::string&, std::string&, const std::string&,
                                        std::vector<std::string>);
template OptionRow OptionRows::Argument(const std::string&, std::optional<std::string>&,
                                        const std::string&, std::vector<std::string>);
template OptionRow OptionRows::Argument(const std::string&, std::vector<std::string>&,
                                        const std::string&, std::vector<std::string>);
template OptionRow OptionRows::Text(const std::string&, std::string&, const char*,
                                    const std::string&, std::vector<std::string>);
template OptionRow OptionRows::Text(const std::string&, std::optional<std::string>&, const char*,
                                    const std::string&, std::vector<std::string>);
template OptionRow OptionRows::Text(const std::string&, std::vector<std::string>&, const char*,
                                    const std::string&, std::vector<std::string>);

OptionRow OptionRows::operator()(const std::string& name, bool& field, const std::string& help) {
  return OptionRow(*command_.add_flag(name, field, help));
}

OptionRow OptionRows::OptionalValue(const std::string& name_and_value, std::string& field,
                                    const char* value, const std::string& help) {
  return OptionRow(*command_.add_flag(name_and_value, field, help)->option_text(value));
}

OptionRow OptionRows::operator()(const std::string& name, uint64_t& field,
                                 const std::string& help) {
  return (*this)(name, field, "N", help + " (default " + std::to_string(field) + ")");
}

OptionRow OptionRows::Read(const std::string& name, const Reader& read, const char* value,
                           const std::string& help, std::vector<std::string> offered) {
  CLI::Option* const option = command_.add_option_function<std::string>(name, read, help);
  return Offer(option->option_text(value), std::move(offered));
}

OptionRow OptionRows::ReadEach(const std::string& name, const Reader& read, const char* value,
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

}  // namespace dlsim::sim
