// SPDX-License-Identifier: Apache-2.0
#include "sim/app/typed_options.h"

#include <charconv>

#include "dlsim/error.h"
#include "sim/base/number.h"

namespace dlsim::sim {
namespace {

// All of 64 bits, which ParseInteger does not have.
uint64_t ParseCount(const std::string& text, const std::string& option) {
  uint64_t count = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, count);
  if (result.ptr == end && result.ec == std::errc()) return count;
  const int64_t value = ParseInteger(text, option);
  if (value < 0) throw UsageError(option, "negative number", "0 or more", Quoted(text));
  return static_cast<uint64_t>(value);
}

}  // namespace

void AddCount(CLI::App& command, const std::string& option, uint64_t& target,
              const std::string& help) {
  const auto assign = [option, &target](const std::string& text) {
    target = ParseCount(text, option);
  };
  command.add_option_function<std::string>(option, assign, help)->option_text("N");
}

}  // namespace dlsim::sim
