// SPDX-License-Identifier: Apache-2.0
#include "src/trace/safetensors.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/strict_json.h"
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

// Builds a header from the events of nlohmann's SAX interface, and refuses whatever the format does
// not allow: throws InputError at the first defect.
class HeaderSax : public StrictSax {
 public:
  HeaderSax(const std::string& place, std::map<std::string, std::string>& metadata,
            std::vector<SafetensorsTensor>& tensors)
      : StrictSax(place), metadata_(metadata), tensors_(tensors) {}

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

  std::map<std::string, std::string>& metadata_;
  std::vector<SafetensorsTensor>& tensors_;
  Where where_ = Where::kStart;
  Field field_ = Field::kNone;
  bool in_array_ = false;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::string key_;  // the last key of the top level or of the metadata
  std::unordered_set<std::string> names_;
  // Of the tensor at hand.
  TensorInfo info_;
  std::string_view unsupported_;
  std::vector<uint64_t> offsets_;
};

std::string HeaderSax::Here() const {
  if (where_ == Where::kTensor) return TensorPlace(place_, info_.name);
  return place_;
}

std::string HeaderSax::FieldName() const {
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

void HeaderSax::WrongValue(const std::string& got) const {
  std::string_view expected = "an object";
  if (where_ == Where::kMetadata) expected = "a string";
  if (where_ == Where::kTensor) {
    expected = field_ == Field::kDType ? "a string"
               : in_array_             ? "an integer from 0 to 2^48"
                                       : "an array of integers";
  }
  throw InputError(Here(), FieldName() + " has a wrong value", expected, got);
}

bool HeaderSax::null() { WrongValue("null"); }

bool HeaderSax::boolean(bool value) { WrongValue(value ? "true" : "false"); }

bool HeaderSax::number_integer(int64_t value) { WrongValue(std::to_string(value)); }

bool HeaderSax::number_float(double, const std::string& text) { WrongValue(Printable(text)); }

bool HeaderSax::number_unsigned(uint64_t value) {
  if (!in_array_ || value > kMaxInteger) WrongValue(std::to_string(value));
  if (field_ == Field::kOffsets) {
    if (offsets_.size() == 2) throw InputError(Here(), "data_offsets has more than 2 numbers");
    offsets_.push_back(value);
    return true;
  }
  if (info_.shape.size() == kMaxRank) {
    throw InputError(Here(), "too many dimensions", "at most " + std::to_string(kMaxRank));
  }
  info_.shape.push_back(value);
  return true;
}

bool HeaderSax::string(std::string& value) {
  if (where_ == Where::kMetadata) {
    if (!metadata_.emplace(key_, value).second) {
      throw InputError(place_, "duplicate metadata key '" + Printable(key_) + "'");
    }
    return true;
  }
  if (where_ != Where::kTensor || field_ != Field::kDType) WrongValue("a string");
  const std::optional<DType> dtype = ValueNamed<DType>(value);
  const auto unsupported = std::ranges::find(kUnsupported, value);
  if (!dtype && unsupported == kUnsupported.end()) {
    throw InputError(Here(), "unknown dtype", kReadableDTypes, Quoted(value));
  }
  info_.dtype = dtype.value_or(DType::kF32);
  if (!dtype) unsupported_ = *unsupported;
  return true;
}

bool HeaderSax::start_object(size_t) {
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

void HeaderSax::StartTensor() {
  if (tensors_.size() == kMaxTensors) {
    throw InputError(place_, "too many tensors", "at most " + std::to_string(kMaxTensors));
  }
  info_ = {.name = key_, .role = RoleOfName(key_), .shape = {}};
  unsupported_ = {};
  where_ = Where::kTensor;
  field_ = Field::kNone;
  has_dtype_ = has_shape_ = has_offsets_ = false;
  offsets_.clear();
}

bool HeaderSax::key(std::string& name) {
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

void HeaderSax::StartField(const std::string& name) {
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

bool HeaderSax::start_array(size_t) {
  if (where_ != Where::kTensor || field_ == Field::kDType || in_array_) WrongValue("an array");
  in_array_ = true;
  return true;
}

bool HeaderSax::end_array() {
  in_array_ = false;
  return true;
}

bool HeaderSax::end_object() {
  if (where_ == Where::kTensor) FinishTensor();
  where_ = Where::kTop;
  return true;
}

void HeaderSax::FinishTensor() {
  const char* missing = !has_dtype_     ? "dtype"
                        : !has_shape_   ? "shape"
                        : !has_offsets_ ? "data_offsets"
                                        : nullptr;
  if (missing != nullptr) throw InputError(Here(), std::string("field '") + missing + "' missing");
  if (offsets_.size() != 2) {
    throw InputError(Here(), "data_offsets has too few numbers", "2",
                     std::to_string(offsets_.size()));
  }
  const uint64_t begin = offsets_[0], end = offsets_[1], item_bytes = DTypeSize(info_.dtype);
  const std::optional<uint64_t> elements = ElementCount(info_.shape, item_bytes);
  if (!unsupported_.empty()) {
    if (begin > end) throw InputError(Here(), "data_offsets do not ascend");
  } else if (!elements) {
    throw InputError(Here(), "shape " + ShapeText(info_.shape) + " is too large");
  } else if (begin > end || end - begin != *elements * item_bytes) {
    throw InputError(Here(), "data_offsets do not fit the shape",
                     std::to_string(*elements * item_bytes) + " bytes for " +
                         std::string(NameOf(info_.dtype)) + " " + ShapeText(info_.shape),
                     ShapeText(offsets_));
  }
  tensors_.push_back({std::exchange(info_, {}), unsupported_, elements.value_or(1), begin, end});
}

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // as in the reference implementation

uint64_t ReadLength(const ByteSource& source) {
  if (source.size < kLengthBytes) {
    throw InputError(source.place, "is not a safetensors file", "at least 8 bytes",
                     std::to_string(source.size));
  }
  std::array<std::byte, kLengthBytes> bytes;
  source.read(0, bytes);
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | std::to_integer<uint64_t>(bytes[i]);
  }
  // Compared this way around because 8 + length may wrap.
  const uint64_t available = source.size - kLengthBytes;
  if (length > available) {
    throw InputError(source.place, "header reaches beyond the file",
                     "at most " + std::to_string(available) + " bytes", std::to_string(length));
  }
  if (length > kMaxSafetensorsHeader) {
    throw InputError(source.place, "header too long",
                     "at most " + std::to_string(kMaxSafetensorsHeader) + " bytes",
                     std::to_string(length));
  }
  return length;
}

// Refuses holes, which could hide other data, and overlaps, which could blow up a small file.
void CheckTiling(const ByteSource& source, const SafetensorsHeader& header) {
  uint64_t position = 0;
  for (const SafetensorsTensor& tensor : *header.tensors) {
    if (tensor.begin != position) {
      throw InputError(TensorPlace(source.place, tensor.info->name),
                       tensor.begin > position ? "hole before the data" : "data overlaps",
                       "data from offset " + std::to_string(position),
                       std::to_string(tensor.begin));
    }
    position = tensor.end;
  }
  const uint64_t data_bytes = source.size - header.data_start;
  if (position == data_bytes) return;
  throw InputError(source.place,
                   position > data_bytes ? "data is cut off" : "bytes after the last tensor",
                   std::to_string(position) + " bytes of data", std::to_string(data_bytes));
}

// Returns where the metadata ends that a header begins with; 0 if it begins otherwise.
size_t EndOfMetadata(std::string_view json) {
  constexpr std::string_view kBegin = R"({"__metadata__":{)";
  if (!json.starts_with(kBegin)) return 0;
  bool quoted = false;
  for (size_t i = kBegin.size(); i < json.size(); ++i) {
    if (json[i] == '}' && !quoted) return i + 1;
    if (json[i] == '"') quoted = !quoted;
    if (json[i] == '\\') ++i;
  }
  return 0;
}

}  // namespace

SafetensorsHeader ReadSafetensorsHeader(const ByteSource& source, LatestHeader* latest) {
  std::string json(ReadLength(source), '\0');
  source.read(kLengthBytes, std::as_writable_bytes(std::span(json)));
  if (json.empty() || json[0] != '{') {
    throw InputError(source.place, "header does not begin with '{'", {},
                     json.empty() ? "an empty header" : Quoted(json.substr(0, 1)));
  }
  const uint64_t data_start = kLengthBytes + json.size();
  // Where the rest is that of the header before, what comes first is all that is left to parse.
  const size_t end = EndOfMetadata(json);
  SafetensorsHeader header;
  if (latest != nullptr) header = latest->Find(std::string_view(json).substr(end));
  header.data_start = data_start;
  const bool known = header.tensors != nullptr;
  if (known) json.replace(end, json.npos, end == 0 ? "{}" : "}");
  std::vector<SafetensorsTensor> tensors;
  HeaderSax sax(source.place, header.metadata, tensors);
  ParseJson(source.place, json, sax);
  if (!known) {
    const auto place = [](const SafetensorsTensor& tensor) {
      return std::pair(tensor.begin, tensor.end);
    };
    if (!std::ranges::is_sorted(tensors, {}, place)) std::ranges::stable_sort(tensors, {}, place);
    header.tensors = std::make_shared<const std::vector<SafetensorsTensor>>(std::move(tensors));
  }
  CheckTiling(source, header);
  if (latest == nullptr || known) return header;
  json.erase(0, end);
  SafetensorsHeader rest = header;
  if (end > 0) rest.metadata.clear();
  latest->Keep(std::move(json), std::move(rest));
  return header;
}

SafetensorsHeader LatestHeader::Find(std::string_view json) const {
  const std::lock_guard lock(mutex_);
  return json == json_ ? header_ : SafetensorsHeader();
}

void LatestHeader::Keep(std::string json, SafetensorsHeader header) {
  const std::lock_guard lock(mutex_);
  json_ = std::move(json);
  header_ = std::move(header);
}

}  // namespace dlsim
