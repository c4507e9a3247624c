// SPDX-License-Identifier: Apache-2.0
#include "sim/base/device_choice.h"

#include <charconv>
#include <string_view>
#include <system_error>

#include "dlsim/error.h"

namespace dlsim::sim {
namespace {

constexpr std::string_view kOption = "--device";
constexpr std::string_view kCudaPrefix = "cuda:";

Error BadDevice(const std::string& text) {
  return UsageError(kOption, "unknown device", "auto, cpu, cuda or cuda:N", Quoted(text));
}

}  // namespace

DeviceChoice ParseDevice(const std::string& text) {
  using Kind = DeviceChoice::Kind;
  if (text == "auto") return {Kind::kAuto};
  if (text == "cpu") return {Kind::kCpu};
  if (text == "cuda") return {Kind::kCuda};
  if (!text.starts_with(kCudaPrefix)) throw BadDevice(text);
  DeviceChoice choice = {Kind::kCuda};
  const char* const begin = text.data() + kCudaPrefix.size();
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(begin, end, choice.index);
  if (result.ec != std::errc() || result.ptr != end || *begin == '-') throw BadDevice(text);
  return choice;
}

}  // namespace dlsim::sim
