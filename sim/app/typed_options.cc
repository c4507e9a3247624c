// SPDX-License-Identifier: Apache-2.0
#include "sim/app/typed_options.h"

#include <charconv>

#include "dlsim/error.h"
#include "sim/app/help_format.h"
#include "sim/base/number.h"
#include "src/base/set_threads.h"

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

uint64_t ParsePositive(const std::string& text, const std::string& option) {
  const int64_t value = ParseInteger(text, option);
  if (value < 1) throw UsageError(option, "too small", "1 or more", Quoted(text));
  return static_cast<uint64_t>(value);
}

constexpr uint64_t kMostThreads = 4096;

}  // namespace

void AddCount(CLI::App& command, const std::string& option, uint64_t& target,
              const std::string& help) {
  const auto assign = [option, &target](const std::string& text) {
    target = ParseCount(text, option);
  };
  command.add_option_function<std::string>(option, assign, help)->option_text("N");
}

void AddPositive(CLI::App& command, const std::string& option, std::optional<uint64_t>& target,
                 const std::string& help) {
  const auto assign = [option, &target](const std::string& text) {
    target = ParsePositive(text, option);
  };
  command.add_option_function<std::string>(option, assign, help)->option_text("N");
}

void AddThreadsOption(CLI::App& command) {
  StartGroup(command, kComputationGroup);
  const auto assign = [](const std::string& text) {
    const uint64_t count = ParsePositive(text, "--threads");
    if (count > kMostThreads) {
      throw UsageError("--threads", "too large", "1 to " + std::to_string(kMostThreads),
                       Quoted(text));
    }
    SetWantedThreads(static_cast<int>(count));
  };
  command
      .add_option_function<std::string>(
          "--threads", assign,
          "Threads that compute, at most (default: $OMP_NUM_THREADS, else one per processor); the "
          "results are the same for any number")
      ->option_text("N");
}

}  // namespace dlsim::sim
