// SPDX-License-Identifier: Apache-2.0
#include "src/trace/safetensors_sax.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "dlsim/error.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

// The format's JSON schema limits integers to 48 bits.
constexpr uint64_t kMaxInteger = uint64_t{1} << 48;

// What else the format defines, and dlsim does not read.
constexpr std::array<std::string_view, 18> kUnsupported = {
    "BOOL",    "F4",      "F6_E2M3", "F6_E3M2",     "U8",          "I8",
    "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",
    "U16",     "I32",     "U32",     "C64",         "I64",         "U64"};

bool IsUnsupported(const std::string& name) {
  return std::find(kUnsupported.begin(), kUnsupported.end(), name) != kUnsupported.end();
}

}  // namespace

std::string SafetensorsSax::Here() const {
  if (where_ == Where::kTensor) return TensorPlace(place_, header_.tensors.back().name);
  return place_;
}

std::string SafetensorsSax::FieldName() const {
  switch (where_) {
    case Where::kStart:
      return "header";
    case Where::kTop:
      return Quoted(key_);
    case Where::kMetadata:
      return "metadata '" + Printable(key_) + "'";
    case Where::kTensor:
      break;
  }
  return field_ == Field::kDType ? "dtype" : field_ == Field::kShape ? "shape" : "data_offsets";
}

void SafetensorsSax::WrongValue(const std::string& got) const {
  std::string_view expected = "an object";
  if (where_ == Where::kMetadata) expected = "a string";
  if (where_ == Where::kTensor) {
    expected = field_ == Field::kDType ? "a string"
               : in_array_             ? "an integer from 0 to 2^48"
                                       : "an array of integers";
  }
  throw InputError(Here(), FieldName() + " has a wrong value", expected, got);
}

bool SafetensorsSax::null() { WrongValue("null"); }

bool SafetensorsSax::boolean(bool value) { WrongValue(value ? "true" : "false"); }

bool SafetensorsSax::number_integer(int64_t value) { WrongValue(std::to_string(value)); }

bool SafetensorsSax::number_float(double, const std::string& text) { WrongValue(Printable(text)); }

bool SafetensorsSax::number_unsigned(uint64_t value) {
  if (!in_array_ || value > kMaxInteger) WrongValue(std::to_string(value));
  if (field_ == Field::kOffsets) {
    if (offsets_.size() == 2) throw InputError(Here(), "data_offsets has more than 2 numbers");
    offsets_.push_back(value);
    return true;
  }
  std::vector<uint64_t>& shape = header_.tensors.back().shape;
  if (shape.size() == kMaxRank) {
    throw InputError(Here(), "too many dimensions", "at most " + std::to_string(kMaxRank));
  }
  shape.push_back(value);
  return true;
}

bool SafetensorsSax::string(std::string& value) {
  if (where_ == Where::kMetadata) {
    if (!header_.metadata.emplace(key_, value).second) {
      throw InputError(place_, "duplicate metadata key '" + Printable(key_) + "'");
    }
    return true;
  }
  if (where_ != Where::kTensor || field_ != Field::kDType) WrongValue("a string");
  const std::optional<DType> dtype = ValueNamed<DType>(value);
  if (!dtype && !IsUnsupported(value)) {
    throw InputError(Here(), "unknown dtype", kReadableDTypes, Quoted(value));
  }
  header_.tensors.back().dtype = dtype.value_or(DType::kF32);
  if (!dtype) header_.tensors.back().unsupported = value;
  return true;
}

bool SafetensorsSax::start_object(size_t) {
  if (where_ == Where::kStart) {
    where_ = Where::kTop;
    return true;
  }
  if (where_ != Where::kTop) WrongValue("an object");
  if (key_ == "__metadata__") {
    where_ = Where::kMetadata;
    return true;
  }
  StartTensor();
  return true;
}

void SafetensorsSax::StartTensor() {
  if (header_.tensors.size() == kMaxTensors) {
    throw InputError(place_, "too many tensors", "at most " + std::to_string(kMaxTensors));
  }
  header_.tensors.emplace_back().name = key_;
  where_ = Where::kTensor;
  field_ = Field::kNone;
  has_dtype_ = has_shape_ = has_offsets_ = false;
  offsets_.clear();
}

bool SafetensorsSax::key(std::string& name) {
  if (where_ == Where::kTensor) {
    StartField(name);
    return true;
  }
  key_ = name;
  if (where_ == Where::kMetadata) return true;
  if (name == "__metadata__") {
    if (has_metadata_) throw InputError(place_, "duplicate key '__metadata__'");
    has_metadata_ = true;
    return true;
  }
  if (name.size() > kMaxNameBytes) {
    throw InputError(TensorPlace(place_, name), "name too long",
                     "at most " + std::to_string(kMaxNameBytes) + " bytes",
                     std::to_string(name.size()));
  }
  if (!names_.insert(name).second) throw InputError(TensorPlace(place_, name), "duplicate name");
  return true;
}

void SafetensorsSax::StartField(const std::string& name) {
  bool* seen = nullptr;
  if (name == "dtype") {
    field_ = Field::kDType;
    seen = &has_dtype_;
  } else if (name == "shape") {
    field_ = Field::kShape;
    seen = &has_shape_;
  } else if (name == "data_offsets") {
    field_ = Field::kOffsets;
    seen = &has_offsets_;
  } else {
    throw InputError(Here(), "unknown field", "dtype, shape or data_offsets", Quoted(name));
  }
  if (*seen) throw InputError(Here(), "duplicate field '" + name + "'");
  *seen = true;
}

bool SafetensorsSax::start_array(size_t) {
  if (where_ != Where::kTensor || field_ == Field::kDType || in_array_) WrongValue("an array");
  in_array_ = true;
  return true;
}

bool SafetensorsSax::end_array() {
  in_array_ = false;
  return true;
}

bool SafetensorsSax::end_object() {
  if (where_ == Where::kTensor) FinishTensor();
  where_ = Where::kTop;
  return true;
}

void SafetensorsSax::FinishTensor() {
  const char* missing = !has_dtype_     ? "dtype"
                        : !has_shape_   ? "shape"
                        : !has_offsets_ ? "data_offsets"
                                        : nullptr;
  if (missing != nullptr) throw InputError(Here(), std::string("field '") + missing + "' missing");
  if (offsets_.size() != 2) {
    throw InputError(Here(), "data_offsets has too few numbers", "2",
                     std::to_string(offsets_.size()));
  }
  SafetensorsTensor& tensor = header_.tensors.back();
  tensor.begin = offsets_[0];
  tensor.end = offsets_[1];
  if (!tensor.unsupported.empty()) {
    if (tensor.begin > tensor.end) throw InputError(Here(), "data_offsets do not ascend");
    return;
  }
  const uint64_t item_bytes = DTypeSize(tensor.dtype);
  const std::optional<uint64_t> elements = ElementCount(tensor.shape, item_bytes);
  if (!elements) {
    throw InputError(Here(), "shape " + ShapeText(tensor.shape) + " is too large");
  }
  tensor.elements = *elements;
  if (tensor.begin > tensor.end || tensor.end - tensor.begin != *elements * item_bytes) {
    throw InputError(Here(), "data_offsets do not fit the shape",
                     std::to_string(*elements * item_bytes) + " bytes for " +
                         std::string(NameOf(tensor.dtype)) + " " + ShapeText(tensor.shape),
                     ShapeText(offsets_));
  }
}

}  // namespace dlsim
