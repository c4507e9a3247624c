// SPDX-License-Identifier: Apache-2.0
// The conversions that are checked, with names to print.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dlsim/codec.h"
#include "dlsim/format.h"
#include "gpu/check/options.h"

namespace dlsim::gpu_check {

// The formats with kernels of their own, all others of the table, and some by their widths: the
// narrowest, one of 16 bits that is in no table, and one of more than 16.
std::vector<NamedFormat> CheckedFormats();

// fp16, bf16 and cb16: the first of CheckedFormats.
inline constexpr size_t kTunedFormats = 3;

// Every rounding mode with every rule for overflow and subnormals.
std::vector<Conversion> ConversionsTo(const Format& format);

// "fp16 rne", with "saturate" and "flush" if it does so.
std::string NameOf(const std::string& format, const Conversion& conversion);

}  // namespace dlsim::gpu_check
