// SPDX-License-Identifier: Apache-2.0
// Builds small safetensors files out of values.
#pragma once

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/trace_test_util.h"

namespace dlsim {

struct BuiltTensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};

inline std::string FloatBytes(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += LittleEndian(std::bit_cast<uint32_t>(value), 4);
  return bytes;
}

inline BuiltTensor FloatTensor(const std::string& name, const std::vector<float>& values) {
  return {name, "F32", {values.size()}, FloatBytes(values)};
}

// Returns the bytes of a safetensors file with these tensors in this order.
inline std::string BuildSafetensors(const std::vector<BuiltTensor>& tensors,
                                    const nlohmann::ordered_json& metadata = {}) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string data;
  for (const BuiltTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return SafetensorsBytes(header.dump(), data);
}

}  // namespace dlsim
