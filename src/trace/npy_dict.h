// SPDX-License-Identifier: Apache-2.0
// The Python dictionary in a .npy header: the small part of the language that numpy writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim {

struct NpyDict {
  std::string descr;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

// Parses the dictionary and the padding after it. Throws InputError.
NpyDict ParseNpyDict(const std::string& place, std::string_view text);

}  // namespace dlsim
