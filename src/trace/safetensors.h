// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, checked as strictly as the format is specified.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/trace.h"
#include "src/base/file.h"

namespace dlsim {

// The types that are read, for errors.
inline constexpr std::string_view kReadableDTypes = "F32, F64, F16 or BF16";

struct SafetensorsTensor {
  TensorRef info;
  std::string_view unsupported;  // the name of another type, whose tensor may only be left out
  uint64_t elements = 1;
  uint64_t begin = 0;  // first byte and one past the last, from the start of the data section
  uint64_t end = 0;
};

struct SafetensorsHeader {
  uint64_t data_start = 0;  // offset of the data section in the file
  std::map<std::string, std::string> metadata;
  // In the order of their data.
  std::shared_ptr<const std::vector<SafetensorsTensor>> tensors;
};

// What was parsed last, but for metadata at the beginning: the headers of steps mostly differ in
// that alone. Thread-safe.
struct LatestHeader {
  std::mutex mutex;
  std::string json;
  SafetensorsHeader header;
};

// Reads the header only. The tensors are known to tile the rest of the file exactly. Throws
// InputError.
SafetensorsHeader ReadSafetensorsHeader(const ByteSource& source, LatestHeader* latest = nullptr);

}  // namespace dlsim
