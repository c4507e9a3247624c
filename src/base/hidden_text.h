// SPDX-License-Identifier: Apache-2.0
// What names from files must not do to a terminal, a table or a page: the one list of characters
// that are written as escapes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dlsim {

// Returns the length of the valid UTF-8 sequence at the start of `text`, or 0.
size_t Utf8Length(std::string_view text);

// True for a valid sequence that would move the cursor, break the line, reorder the text around it
// or not be seen: C0 and C1 controls, separators, bidirectional and zero-width characters.
bool IsHidden(std::string_view sequence);

// Appends each byte as \xNN.
void AppendBytesEscaped(std::string_view bytes, std::string& out);

// Returns the text with hidden characters and malformed bytes as \xNN.
std::string EscapeHidden(std::string_view text);

}  // namespace dlsim
