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

// Reads a header from the events of nlohmann's parser, and refuses whatever the format does not
// allow: throws InputError at the first defect.
class HeaderReader {
 public:
  HeaderReader(const std::string& place, Metadata& metadata,
               std::vector<SafetensorsTensor>& tensors)
      : place_(place), metadata_(metadata), tensors_(tensors) {}

  // Takes an event within `depth` objects and arrays. Returns whether the parser, too, keeps what
  // it is of: only what has begun.
  bool Take(int depth, JsonEvent event, const nlohmann::json& parsed) {
    if (event == JsonEvent::key) {
      TakeKey(depth, parsed.get_ref<const std::string&>());
    } else if (event == JsonEvent::object_end) {
      if (depth == 1 && !is_metadata_) FinishTensor();
    } else if (event != JsonEvent::array_end) {
      CheckKind(depth, event, parsed);
      if (event == JsonEvent::value) TakeValue(parsed);
    }
    return event != JsonEvent::value && event != JsonEvent::object_end;
  }

 private:
  std::string Here() const { return is_metadata_ ? place_ : TensorPlace(place_, key_); }

  void TakeKey(int depth, const std::string& key) {
    if (depth == 2) return TakeField(key);
    key_ = key;
    is_metadata_ = key == "__metadata__";
    fields_.clear();
    if (is_metadata_) {
      if (has_metadata_) throw InputError(place_, "duplicate key '__metadata__'");
      has_metadata_ = true;
      return;
    }
    if (key.size() > kMaxNameBytes) {
      throw InputError(Here(), "name too long",
                       "at most " + std::to_string(kMaxNameBytes) + " bytes",
                       std::to_string(key.size()));
    }
    if (names_.contains(key)) throw InputError(Here(), "duplicate name");
    if (tensors_.size() == kMaxTensors) {
      throw InputError(place_, "too many tensors", "at most " + std::to_string(kMaxTensors));
    }
    info_ = {.name = key, .role = RoleOfName(key), .shape = {}};
    unsupported_ = {};
    offsets_.clear();
  }

  void TakeField(const std::string& field) {
    const bool is_known = field == "dtype" || field == "shape" || field == "data_offsets";
    if (!is_metadata_ && !is_known) {
      throw InputError(Here(), "unknown field", "dtype, shape or data_offsets", Quoted(field));
    }
    field_ = field;
    const bool is_new = is_metadata_ ? !metadata_.contains(field) : !Has(field);
    if (!is_metadata_) fields_.push_back(field);
    if (is_new) return;
    throw InputError(Here(),
                     std::string(is_metadata_ ? "duplicate metadata key '" : "duplicate field '") +
                         Printable(field) + "'");
  }

  bool Has(std::string_view field) const { return std::ranges::count(fields_, field) > 0; }

  // Members of the header are objects, and theirs are strings but for two lists of integers.
  void CheckKind(int depth, JsonEvent event, const nlohmann::json& parsed) const {
    const bool is_list = depth == 2 && !is_metadata_ && field_ != "dtype";
    const bool is_number = parsed.is_number_unsigned() && parsed.get<uint64_t>() <= kMaxInteger;
    const bool is_good = depth < 2    ? event == JsonEvent::object_start
                         : is_list    ? event == JsonEvent::array_start
                         : depth == 2 ? event == JsonEvent::value && parsed.is_string()
                                      : event == JsonEvent::value && is_number;
    if (is_good) return;
    const std::string what = depth < 2      ? Quoted(key_)
                             : is_metadata_ ? "metadata '" + Printable(field_) + "'"
                                            : field_;
    throw InputError(depth < 2 ? place_ : Here(), what + " has a wrong value",
                     depth < 2    ? "an object"
                     : is_list    ? "an array of integers"
                     : depth == 2 ? "a string"
                                  : "an integer from 0 to 2^48",
                     event == JsonEvent::object_start  ? "an object"
                     : event == JsonEvent::array_start ? "an array"
                     : parsed.is_string()              ? "a string"
                                                       : parsed.dump());
  }

  void TakeValue(const nlohmann::json& value) {
    if (is_metadata_) {
      metadata_.emplace(field_, value.get_ref<const std::string&>());
    } else if (field_ == "dtype") {
      TakeDType(value.get_ref<const std::string&>());
    } else if (field_ == "shape") {
      if (info_.shape.size() == kMaxRank) {
        throw InputError(Here(), "too many dimensions", "at most " + std::to_string(kMaxRank));
      }
      info_.shape.push_back(value.get<uint64_t>());
    } else {
      if (offsets_.size() == 2) throw InputError(Here(), "data_offsets has more than 2 numbers");
      offsets_.push_back(value.get<uint64_t>());
    }
  }

  void TakeDType(const std::string& name) {
    const std::optional<DType> dtype = ValueNamed<DType>(name);
    const auto unsupported = std::ranges::find(kUnsupported, name);
    if (!dtype && unsupported == kUnsupported.end()) {
      throw InputError(Here(), "unknown dtype", kReadableDTypes, Quoted(name));
    }
    info_.dtype = dtype.value_or(DType::kF32);
    if (!dtype) unsupported_ = *unsupported;
  }

  void FinishTensor() {
    for (const char* const field : {"dtype", "shape", "data_offsets"}) {
      if (!Has(field)) {
        throw InputError(Here(), std::string("field '") + field + "' missing");
      }
    }
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
    names_.insert(tensors_.back().info->name);
  }

  const std::string& place_;
  Metadata& metadata_;
  std::vector<SafetensorsTensor>& tensors_;
  std::unordered_set<std::string_view> names_;  // of the tensors so far
  bool has_metadata_ = false;
  std::string key_;  // the last one: the name of a tensor, or that of the metadata
  bool is_metadata_ = false;
  std::vector<std::string> fields_;  // of a tensor
  std::string field_;                // the last one
  // Of the tensor at hand.
  TensorInfo info_;
  std::string_view unsupported_;
  std::vector<uint64_t> offsets_;
};

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
  if (latest != nullptr) {
    const std::lock_guard lock(latest->mutex);
    if (std::string_view(json).substr(end) == latest->json) header = latest->header;
  }
  header.data_start = data_start;
  const bool known = header.tensors != nullptr;
  if (known) json.replace(end, json.npos, end == 0 ? "{}" : "}");
  std::vector<SafetensorsTensor> tensors;
  HeaderReader reader(source.place, header.metadata, tensors);
  ParseJson(source.place, json, [&](int depth, JsonEvent event, const nlohmann::json& parsed) {
    return reader.Take(depth, event, parsed);
  });
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
  const std::lock_guard lock(latest->mutex);
  latest->json = std::move(json);
  latest->header = std::move(rest);
  return header;
}

}  // namespace dlsim
