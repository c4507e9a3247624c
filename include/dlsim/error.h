// SPDX-License-Identifier: Apache-2.0
// The one exception type for mistakes of the user or of the input; it prints as one line.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace dlsim {

// The kinds of failure; the value is the exit code of the dlsim command.
enum class ErrorKind {
  kCheckFailed = 1,
  kUsage = 2,
  kInput = 3,
  kIncomparable = 4,
  kInternal = 70,
};

// `place: problem, expected ..., got ...`; expected and got are left out when empty.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view place, std::string_view problem,
        std::string_view expected = {}, std::string_view got = {});

  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Returns an Error of bad or unsupported input (exit code 3).
Error InputError(std::string_view place, std::string_view problem, std::string_view expected = {},
                 std::string_view got = {});

// Returns an Error of wrong usage (exit code 2).
Error UsageError(std::string_view place, std::string_view problem, std::string_view expected = {},
                 std::string_view got = {});

// Returns `text` safe to print on one line: control characters of C0 and C1, line separators,
// bidirectional and zero-width characters, quotes and bytes that are not valid UTF-8 are written as
// \xHH, and more than 256 bytes are cut with an ellipsis.
std::string Printable(std::string_view text);

// Returns Printable(text) in single quotes.
std::string Quoted(std::string_view text);

}  // namespace dlsim
