// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, checked as strictly as the format is specified.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "src/trace/byte_source.h"

namespace dlsim {

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::string unsupported;  // the name of another type, whose tensor may only be left out
  std::vector<uint64_t> shape;
  uint64_t elements = 1;
  uint64_t begin = 0;  // first byte and one past the last, from the start of the data section
  uint64_t end = 0;
};

struct SafetensorsHeader {
  uint64_t data_start = 0;  // offset of the data section in the file
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsTensor> tensors;  // in the order of their data
};

// Reads the header only. The tensors are known to tile the rest of the file exactly. Throws
// InputError.
SafetensorsHeader ReadSafetensorsHeader(const ByteSource& source);

}  // namespace dlsim
