// SPDX-License-Identifier: Apache-2.0
// Builds a SafetensorsHeader from JSON events and refuses whatever the format does not allow.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_set>
#include <vector>

#include "src/trace/safetensors.h"
#include "src/trace/strict_json.h"

namespace dlsim {

// The types that are read, for errors.
inline constexpr std::string_view kReadableDTypes = "F32, F64, F16 or BF16";

// The events of nlohmann's SAX interface; each throws InputError at the first defect.
class SafetensorsSax : public StrictSax {
 public:
  SafetensorsSax(const std::string& place, SafetensorsHeader& header)
      : StrictSax(place), header_(header) {}

  bool null();
  bool boolean(bool value);
  bool number_integer(int64_t value);
  bool number_unsigned(uint64_t value);
  bool number_float(double value, const std::string& text);
  bool string(std::string& value);
  bool start_object(size_t size);
  bool key(std::string& name);
  bool end_object();
  bool start_array(size_t size);
  bool end_array();

 private:
  enum class Where { kStart, kTop, kMetadata, kTensor };
  enum class Field { kNone, kDType, kShape, kOffsets };

  void StartTensor();
  void FinishTensor();
  void StartField(const std::string& name);
  std::string Here() const;
  std::string FieldName() const;
  [[noreturn]] void WrongValue(const std::string& got) const;

  SafetensorsHeader& header_;
  Where where_ = Where::kStart;
  Field field_ = Field::kNone;
  bool in_array_ = false;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::string key_;  // the last key of the top level or of the metadata
  std::unordered_set<std::string> names_;
  std::vector<uint64_t> offsets_;
};

}  // namespace dlsim
