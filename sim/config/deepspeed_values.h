// SPDX-License-Identifier: Apache-2.0
// Values of a DeepSpeed configuration, read as DeepSpeed's own classes convert them, and what its
// releases changed. Compared with DeepSpeed 0.19.8 (runtime/precision_config.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/config/config_block.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

// The release for which a file is read; without one, the newest.
class DeepSpeedRelease {
 public:
  explicit DeepSpeedRelease(std::optional<StackVersion> version) : version_(version) {}

  bool named() const { return version_.has_value(); }
  bool IsBefore(const StackVersion& version) const { return version_ && *version_ < version; }

 private:
  std::optional<StackVersion> version_;
};

// The first releases with a rule.
inline constexpr StackVersion kChecksElements = {0, 13, 3};   // ZeRO stages 1 and 2
inline constexpr StackVersion kPrecisionConfig = {0, 17, 1};  // classes with types; growth
inline constexpr StackVersion kBf16WithoutZero = {0, 18, 5};  // FP16_Optimizer in bf16, or earlier
inline constexpr StackVersion kClipsByDefault = {0, 19, 3};   // also: bf16 checks for overflows
inline constexpr StackVersion kChecksNorm = {0, 19, 8};       // skips by the norm, too

// Reads one table. "auto", which Hugging Face's trainer fills in, becomes a note. null is refused,
// as by the original.
struct DeepSpeedValues {
  const ConfigBlock& block;
  DeepSpeedRelease release;
  std::vector<std::string>& notes;

  // True if the value is "auto".
  bool Auto(std::string_view key, std::string_view meaning) const;

  // Also "yes", "off", "1", 1 and their like, since 0.17.1.
  std::optional<bool> Bool(std::string_view key, bool if_auto) const;

  // Also "16", 16.0 and true.
  std::optional<int64_t> Integer(std::string_view key, std::string_view if_auto) const;
  std::optional<ConfigNumber> Number(std::string_view key, std::string_view if_auto) const;

  // A value or key that `since` and later releases refuse: an error if one of them is named, a note
  // if none is.
  void RefusedSince(const StackVersion& since, std::string_view key, std::string_view what) const;

  // Refuses null.
  void RequireValue(std::string_view key) const;
};

}  // namespace dlsim::sim
