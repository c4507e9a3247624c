// SPDX-License-Identifier: Apache-2.0
// The settings of a profile as JSON, which says by itself what they mean.
#pragma once

#include <string>
#include <string_view>

#include "dlsim/profile.h"

namespace dlsim {

// Throws InputError of `place` for text that is not UTF-8.
std::string SettingsText(const std::string& place, const ProfileSettings& settings);

// Throws InputError unless the text is what SettingsText returns for some settings.
ProfileSettings ParseSettings(const std::string& place, const std::string& text);

// Throws InputError naming the first difference between two texts of settings.
void RequireSameSettings(const std::string& expected_place, const std::string& expected,
                         const std::string& place, const std::string& text);

}  // namespace dlsim
