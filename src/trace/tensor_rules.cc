// SPDX-License-Identifier: Apache-2.0
#include "src/trace/tensor_rules.h"

#include <charconv>
#include <cmath>
#include <sstream>

#include "dlsim/error.h"

namespace dlsim {

std::optional<uint64_t> ElementCount(std::span<const uint64_t> shape, uint64_t item_bytes) {
  bool empty = false;
  uint64_t bytes = item_bytes;
  for (const uint64_t size : shape) {
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes / item_bytes;
}

std::string ShapeText(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (const uint64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

Role RoleOfName(std::string_view name) {
  if (name.ends_with(".act_grad")) return Role::kActGrad;
  if (name.ends_with(".act") || name.ends_with(".fwd")) return Role::kAct;
  return name.ends_with(".value") ? Role::kValue : Role::kGrad;
}

std::string TensorPlace(std::string_view place, std::string_view name) {
  return std::string(place) + ": tensor " + Quoted(name);
}

std::optional<int64_t> ParseDigits(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  int64_t number = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    number = number * 10 + (digit - '0');
  }
  return number;
}

namespace {

// Independent of the locale, as the recorder's str(float) is.
float ParseGradScale(const std::string& place, const std::string& text) {
  float scale = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, scale);
  const bool is_number = error == std::errc() && stop == end && std::isfinite(scale) && scale > 0;
  if (!is_number || !std::isfinite(1.0f / scale)) {  // gradients are multiplied by the reciprocal
    throw InputError(place, "bad grad_scale in the metadata",
                     "a finite positive float32 with a finite reciprocal", Quoted(text));
  }
  return scale;
}

// Checks a number of files that the metadata may tell.
void CheckCount(const Recording& recording, const char* key, size_t files, const char* problem) {
  const std::optional<int64_t> stated = MetadataNumber(recording.place, recording.metadata, key);
  if (!stated || *stated == static_cast<int64_t>(files)) return;
  throw InputError(recording.place, problem, std::to_string(*stated) + " as its metadata says",
                   std::to_string(files));
}

// Checks an index that the metadata may tell against that of the file's name, -1 without one.
void CheckIndex(const Recording& recording, const char* key, int64_t index) {
  const std::optional<int64_t> stated = MetadataNumber(recording.place, recording.metadata, key);
  if (!stated || index < 0 || *stated == index) return;
  throw InputError(recording.place, std::string(key) + " in the metadata differs",
                   std::to_string(index), std::to_string(*stated));
}

}  // namespace

std::optional<int64_t> MetadataNumber(const std::string& place, const Metadata& metadata,
                                      const std::string& key) {
  const auto entry = metadata.find(key);
  if (entry == metadata.end()) return std::nullopt;
  const std::optional<int64_t> number = ParseDigits(entry->second);
  if (!number) {
    throw InputError(place, "bad " + key + " in the metadata", "at most 18 decimal digits",
                     Quoted(entry->second));
  }
  return number;
}

void ApplyMetadata(const std::string& place, Recording& recording) {
  const Metadata& metadata = recording.metadata;
  if (const auto scale = metadata.find("grad_scale"); scale != metadata.end()) {
    recording.grad_scale = ParseGradScale(place, scale->second);
  }
  if (const auto how = metadata.find("accumulate"); how != metadata.end() && how->second != "sum") {
    throw InputError(place, "unsupported accumulate in the metadata", "'sum'", Quoted(how->second));
  }
}

void CheckPosition(const Recording& recording, int64_t step, size_t micro_steps, size_t ranks) {
  CheckIndex(recording, "step", step);
  CheckCount(recording, "micro_steps", micro_steps,
             "missing micro-step: wrong number of files for this step");
  CheckIndex(recording, "micro_step", recording.micro);
  if (recording.rank < 0) return;  // elsewhere the words may mean anything
  CheckCount(recording, "ranks", ranks, "missing rank: wrong number of files for this step");
  CheckIndex(recording, "rank", recording.rank);
}

std::set<std::string> ListedIn(const Metadata& metadata, std::string_view key) {
  std::set<std::string> names;
  const auto listed = metadata.find(std::string(key));
  if (listed == metadata.end()) return names;
  std::istringstream lines(listed->second);
  for (std::string name; std::getline(lines, name);) {
    if (!name.empty()) names.insert(name);
  }
  return names;
}

std::string ListOf(const std::set<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : "\n") + name;
  return list;
}

std::map<std::string, FeatureAxis> FeatureAxes(const TraceStep& step) {
  std::map<std::string, FeatureAxis> axes;
  for (const Recording& recording : step.recordings) {
    for (const std::string& line : ListedIn(recording.metadata, kFeatureAxesKey)) {
      const size_t end = line.find(' ');
      if (end == line.npos) continue;
      axes[line.substr(end + 1)] = ParseDigits(std::string_view(line).substr(0, end));
    }
  }
  return axes;
}

}  // namespace dlsim
