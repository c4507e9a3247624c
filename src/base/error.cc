// SPDX-License-Identifier: Apache-2.0
#include "dlsim/error.h"

#include <cstddef>

#include "src/base/text.h"

namespace dlsim {
namespace {

constexpr size_t kMaxPrintedBytes = 256;

std::string Compose(std::string_view place, std::string_view problem, std::string_view expected,
                    std::string_view got) {
  std::string line;
  if (!place.empty()) line.append(place).append(": ");
  line.append(problem);
  if (!expected.empty()) line.append(", expected ").append(expected);
  if (!got.empty()) line.append(", got ").append(got);
  return line;
}

}  // namespace

Error::Error(ErrorKind kind, std::string_view place, std::string_view problem,
             std::string_view expected, std::string_view got)
    : std::runtime_error(Compose(place, problem, expected, got)), kind_(kind) {}

Error InputError(std::string_view place, std::string_view problem, std::string_view expected,
                 std::string_view got) {
  return Error(ErrorKind::kInput, place, problem, expected, got);
}

Error UsageError(std::string_view place, std::string_view problem, std::string_view expected,
                 std::string_view got) {
  return Error(ErrorKind::kUsage, place, problem, expected, got);
}

std::string Printable(std::string_view text) { return EscapeHidden(text, "'\"", kMaxPrintedBytes); }

std::string Quoted(std::string_view text) { return "'" + Printable(text) + "'"; }

}  // namespace dlsim
