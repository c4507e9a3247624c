// SPDX-License-Identifier: Apache-2.0
// Pieces of a log's line: without terminal codes, and the numbers after given words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/explain/scale_path.h"

namespace dlsim::sim {

// Returns the text without ANSI escape sequences: `text` itself, or `plain`, which then has it.
std::string_view StripTerminalCodes(std::string_view text, std::string& plain);

// Returns the number at the start of `text`, which may be "nan" or "inf", and the values that are
// printed so: half a unit of its last digit to both sides if it has a fraction or an exponent. Of
// those a power of two is taken for the number, as scales are; so is a float32 that NumPy prints.
std::optional<PrintedNumber> ReadPrinted(std::string_view text);

// Returns the same of "65,536", in groups of three; nothing for "64k", "2^16" and "2**16".
std::optional<PrintedNumber> ReadWhole(std::string_view text);

// Takes a power of two for a number that is its float32 in the fewest digits that give it back:
// NumPy prints 2^28 as 268435460.0.
void AddFloat32(PrintedNumber& number);

// Returns the number that follows the first whole-word `name`, after blanks, a colon or equals
// sign, quotes and an opening bracket; nothing if there is none.
std::optional<PrintedNumber> NumberAfter(std::string_view text, std::string_view name);
std::optional<int64_t> IntegerAfter(std::string_view text, std::string_view name);

bool Has(std::string_view text, std::string_view words);

// Returns what follows the first `words`; nothing if they are not there.
std::optional<std::string_view> TextAfter(std::string_view text, std::string_view words);

// Returns the number of a step in an epoch, counted from 0; nothing beyond all numbers of steps.
std::optional<int64_t> NumberOfStep(int64_t epoch, int64_t steps_per_epoch, int64_t step);

// Returns the widened number of a print that cuts fractions off, as Python's int() does.
PrintedNumber Truncated(PrintedNumber number);

}  // namespace dlsim::sim
