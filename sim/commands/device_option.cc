// SPDX-License-Identifier: Apache-2.0
#include "sim/commands/device_option.h"

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "dlsim/error.h"
#include "dlsim/gpu/devices.h"

namespace dlsim {
namespace {

constexpr std::string_view kOption = "--device";
constexpr std::string_view kCudaPrefix = "cuda:";

Error BadDevice(const std::string& text) {
  return UsageError(kOption, "unknown device", "auto, cpu, cuda or cuda:N", Quoted(text));
}

// Returns the first device that opens; null if there is none.
std::unique_ptr<ComputeDevice> OpenAnyDevice() {
  for (const gpu::DeviceInfo& device : gpu::Devices().devices) {
    try {
      return gpu::OpenDevice(device.index);
    } catch (const Error&) {  // in use by another process alone, or too old
    }
  }
  return nullptr;
}

}  // namespace

std::string DeviceChoice::text() const {
  switch (kind) {
    case Kind::kAuto:
      return "auto";
    case Kind::kCpu:
      return "cpu";
    case Kind::kCuda:
      break;
  }
  return std::string(kCudaPrefix) + std::to_string(index);
}

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

void AddDeviceOption(CLI::App& command, DeviceChoice& choice, const std::string& automatic) {
  const auto assign = [&choice](const std::string& text) { choice = ParseDevice(text); };
  command
      .add_option_function<std::string>(std::string(kOption), assign,
                                        "Where to compute, with the same results: cpu, cuda or "
                                        "cuda:N, or auto (default): " +
                                            automatic + ", else the CPU")
      ->option_text("auto|cpu|cuda[:N]");
}

std::unique_ptr<ComputeDevice> OpenDevice(const DeviceChoice& choice, uint64_t input_bytes) {
  switch (choice.kind) {
    case DeviceChoice::Kind::kCpu:
      return nullptr;
    case DeviceChoice::Kind::kCuda:
      return gpu::OpenDevice(choice.index);
    case DeviceChoice::Kind::kAuto:
      break;
  }
  return input_bytes < kAutoDeviceBytes ? nullptr : OpenAnyDevice();
}

uint64_t BytesOfFile(const std::string& path) {
  std::error_code failed;
  const uintmax_t bytes = std::filesystem::file_size(path, failed);
  return failed ? 0 : bytes;
}

void NoteDevice(const char* command, const ComputeDevice* device) {
  if (device == nullptr) return;
  std::fprintf(stderr, "dlsim %s: note: computes on %s\n", command,
               Printable(device->name()).c_str());
}

}  // namespace dlsim
