// SPDX-License-Identifier: Apache-2.0
#include "trace/metadata.h"

#include <charconv>
#include <cmath>

#include "dlsim/error.h"
#include "trace/tensor_rules.h"

namespace dlsim {
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

}  // namespace

std::optional<int64_t> MetadataNumber(const std::string& place, const Metadata& metadata,
                                      const std::string& key) {
  const auto entry = metadata.find(key);
  if (entry == metadata.end()) return std::nullopt;
  const std::optional<int64_t> number = ParseDigits(entry->second);
  if (!number) {
    throw InputError(place, "bad " + key + " in the metadata", "decimal digits",
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

void CheckPosition(const Recording& recording, int64_t step, size_t recordings) {
  const Metadata& metadata = recording.metadata;
  const std::string& place = recording.place;
  const std::optional<int64_t> own_step = MetadataNumber(place, metadata, "step");
  if (own_step.value_or(step) != step) {
    throw InputError(place, "step in the metadata differs", std::to_string(step),
                     std::to_string(*own_step));
  }
  const std::optional<int64_t> micro_steps = MetadataNumber(place, metadata, "micro_steps");
  const int64_t count = static_cast<int64_t>(recordings);
  if (micro_steps.value_or(count) != count) {
    throw InputError(place, "missing micro-step: wrong number of files for this step",
                     std::to_string(*micro_steps) + " as its metadata says", std::to_string(count));
  }
  const std::optional<int64_t> micro_step = MetadataNumber(place, metadata, "micro_step");
  if (recording.micro >= 0 && micro_step.value_or(recording.micro) != recording.micro) {
    throw InputError(place, "micro_step in the metadata differs", std::to_string(recording.micro),
                     std::to_string(*micro_step));
  }
}

}  // namespace dlsim
