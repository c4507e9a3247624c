// SPDX-License-Identifier: Apache-2.0
// Formats whose values have scales of their own: one for a tensor, a row, or a block of elements
// (FP8 recipes, MXFP8, MXFP4, NVFP4). What the codes of elements mean is in format.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"

namespace dlsim {

// Which elements share a scale.
enum class Sharing : uint8_t {
  kTensor,
  kRow,    // of a matrix, all of it
  kBlock,  // consecutive elements of a row
};

constexpr auto EnumNames(Sharing) {
  return std::to_array<EnumName<Sharing>>(
      {{Sharing::kTensor, "tensor"}, {Sharing::kRow, "row"}, {Sharing::kBlock, "block"}});
}

// How a scale is stored.
enum class ScaleType : uint8_t {
  kFloat32,
  kE8m0,  // a power of two, 2^-127 to 2^127, and NaN
  kFp8,   // E4M3, with one more scale, in float32, for the tensor
};

constexpr auto EnumNames(ScaleType) {
  return std::to_array<EnumName<ScaleType>>(
      {{ScaleType::kFloat32, "float32"}, {ScaleType::kE8m0, "e8m0"}, {ScaleType::kFp8, "e4m3"}});
}

// How a scale in E8M0 follows from the largest magnitude of the block and that of the elements.
enum class ScaleRule : uint8_t {
  kFloor,    // floor(log2 largest) - floor(log2 max): the largest may be clipped (OCP)
  kEven,     // the same after the largest was rounded to the mantissa of the elements
  kNearest,  // largest / max, rounded to the nearest power of two
  kUp,       // largest / max, rounded up: nothing is clipped (NVIDIA)
};

constexpr auto EnumNames(ScaleRule) {
  return std::to_array<EnumName<ScaleRule>>({{ScaleRule::kFloor, "floor"},
                                             {ScaleRule::kEven, "even"},
                                             {ScaleRule::kNearest, "nearest"},
                                             {ScaleRule::kUp, "up"}});
}

// Which of the largest magnitudes that were seen decides.
enum class FromHistory : uint8_t { kMax, kMostRecent };

constexpr auto EnumNames(FromHistory) {
  return std::to_array<EnumName<FromHistory>>(
      {{FromHistory::kMax, "max"}, {FromHistory::kMostRecent, "most_recent"}});
}

// Delayed scaling: the scale of a tensor follows from its largest magnitudes in steps before.
struct DelayedScaling {
  uint32_t history = 1024;  // steps, 1 or more
  FromHistory decides = FromHistory::kMax;

  friend bool operator==(const DelayedScaling&, const DelayedScaling&) = default;
};

struct ScaledFormat {
  std::string_view name;
  Format forward;   // elements of weights and activations
  Format backward;  // elements of gradients
  Sharing sharing = Sharing::kTensor;
  uint32_t block = 0;  // elements of a block
  ScaleType scale = ScaleType::kFloat32;
  ScaleRule rule = ScaleRule::kUp;  // of kE8m0
  bool power_of_two = false;        // of kFloat32: scales are rounded down to one
  int margin = 0;                   // of kFloat32: binades of head-room
  float least = 0;                  // of kFloat32: smaller magnitudes count as this
  bool square_parameters = false;   // of kBlock: those of parameters are as high as they are wide
  std::optional<DelayedScaling> delayed = std::nullopt;  // of kTensor
  std::string_view note = {};                            // origin, one line

  friend bool operator==(const ScaledFormat&, const ScaledFormat&) = default;
};

// A format of the Open Compute Project: a power of two for 32 elements.
constexpr ScaledFormat MicroscalingFormat(std::string_view name, const Format& element,
                                          ScaleRule rule, std::string_view note) {
  return {.name = name,
          .forward = element,
          .backward = element,
          .sharing = Sharing::kBlock,
          .block = 32,
          .scale = ScaleType::kE8m0,
          .rule = rule,
          .note = note};
}

inline constexpr std::array<ScaledFormat, 9> kScaledFormats = {{
    {.name = "fp8-current",
     .forward = kE4m3,
     .backward = kE5m2,
     .note = "a scale for each tensor, from its own largest magnitude (TransformerEngine)"},
    {.name = "fp8-delayed",
     .forward = kE4m3,
     .backward = kE5m2,
     .delayed = DelayedScaling(),
     .note = "a scale for each tensor, from the steps before (TransformerEngine)"},
    {.name = "fp8-rowwise",
     .forward = kE4m3,
     .backward = kE4m3,
     .sharing = Sharing::kRow,
     .power_of_two = true,
     .least = 1e-12f,
     .note = "a scale for each row, a power of two (torchao)"},
    {.name = "fp8-block",
     .forward = kE4m3,
     .backward = kE4m3,
     .sharing = Sharing::kBlock,
     .block = 128,
     .power_of_two = true,
     .square_parameters = true,
     .note = "a scale for 128 elements, of parameters for 128 x 128 (DeepSeek-V3, "
             "TransformerEngine)"},
    MicroscalingFormat(
        "mxfp8", kE4m3, ScaleRule::kUp,
        "a power of two for 32 elements, rounded up (OCP; TransformerEngine's rounding)"),
    MicroscalingFormat("mxfp6-e2m3", kE2m3, ScaleRule::kFloor,
                       "a power of two for 32 elements (OCP)"),
    MicroscalingFormat("mxfp6-e3m2", kE3m2, ScaleRule::kFloor,
                       "a power of two for 32 elements (OCP)"),
    MicroscalingFormat("mxfp4", kE2m1, ScaleRule::kFloor, "a power of two for 32 elements (OCP)"),
    {.name = "nvfp4",
     .forward = kE2m1,
     .backward = kE2m1,
     .sharing = Sharing::kBlock,
     .block = 16,
     .scale = ScaleType::kFp8,
     .note = "an E4M3 scale for 16 elements and one in float32 for the tensor (NVIDIA)"},
}};

// A scaled format with the name to print, which is what the user wrote.
struct NamedScaledFormat {
  std::string name;
  ScaledFormat format;

  friend bool operator==(const NamedScaledFormat&, const NamedScaledFormat&) = default;
};

// Returns the name of a format of elements: "e4m3".
std::string ElementName(const Format& element);

// True if the text begins with the name of a scaled format: ParseScaledFormat is to read it.
bool NamesScaledFormat(std::string_view text);

// Returns the scaled format of a name of kScaledFormats with options, as in
// "fp8-delayed:history=16,decides=most_recent" or "mxfp8:rule=floor,backward=e5m2". Options:
// `forward` and `backward` (elements: e4m3, e5m2, e2m3, e3m2, e2m1), `rule` (of E8M0 scales),
// `block` (2 to 4096 elements), `pow2` (0 or 1) and `margin` (-64 to 64; of float32 scales),
// `history` (1 to 65536) and `decides` (of delayed scaling). Throws Error (exit code 2) for
// anything else, which names `place`.
NamedScaledFormat ParseScaledFormat(std::string_view text, std::string_view place = "format");

// Takes the names of scaled formats out of those of all kinds. Throws as ParseScaledFormat.
std::vector<NamedScaledFormat> TakeScaledFormats(std::vector<std::string>& formats,
                                                 std::string_view place = "--format");

}  // namespace dlsim
