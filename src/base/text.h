// SPDX-License-Identifier: Apache-2.0
// Text for people: what names from files must not do to a terminal, a table or a page, with the one
// list of characters that are written as escapes; and "did you mean".
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace dlsim {

// Returns the length of the valid UTF-8 sequence at the start of `text`, or 0.
size_t Utf8Length(std::string_view text);

// True for a valid sequence that would move the cursor, break the line, reorder the text around it
// or not be seen: C0 and C1 controls, separators, bidirectional and zero-width characters.
bool IsHidden(std::string_view sequence);

// Returns the text with hidden characters, malformed bytes and the characters `also` as \xNN, and
// with "..." for what comes after about `most` bytes.
std::string EscapeHidden(std::string_view text, std::string_view also = {},
                         size_t most = std::string_view::npos);

// True if the texts are equal but for the case of their letters.
bool EqualsIgnoringCase(std::string_view a, std::string_view b);

// Returns the candidate with the smallest edit distance to `name`, in which case does not count,
// the first of equals; empty if none is near.
std::string_view NearestName(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace dlsim
