// SPDX-License-Identifier: Apache-2.0
// What a number format is, and the table of formats: the only place with a format's constants. Also
// the types of recorded elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dlsim/enum_names.h"

// Lets one definition compile for the host and for CUDA devices, without special compiler flags.
#ifdef __CUDACC__
#define DLSIM_HOST_DEVICE __host__ __device__
#else
#define DLSIM_HOST_DEVICE
#endif

namespace dlsim {

// std::bit_cast is no device function; the builtin behind it is both.
template <class To, class From>
DLSIM_HOST_DEVICE constexpr To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// What the codes of the all-ones exponent mean.
enum class Specials : uint8_t {
  kIeee,       // mantissa zero is infinity, anything else NaN
  kSingleNan,  // finite values, but for the last code, which is NaN; there is no infinity
  kFinite,     // finite values: there is neither infinity nor NaN, and conversions saturate
};

constexpr auto EnumNames(Specials) {
  return std::to_array<EnumName<Specials>>({{Specials::kIeee, "ieee"},
                                            {Specials::kSingleNan, "single-nan"},
                                            {Specials::kFinite, "finite"}});
}

// What the codes of the zero exponent mean.
enum class Denormals : uint8_t {
  kGradual,  // subnormals, spaced like the smallest normal binade (IEEE 754)
  kNone,     // one more normal binade, in which mantissa zero stands for zero
};

constexpr auto EnumNames(Denormals) {
  return std::to_array<EnumName<Denormals>>(
      {{Denormals::kGradual, "gradual"}, {Denormals::kNone, "none"}});
}

// A binary floating-point format with one sign bit: a row of data. Everything else is computed.
struct Format {
  int exponent_bits = 0;  // 2..8
  int mantissa_bits = 0;  // explicit bits, 1..22
  int bias = 0;           // value of a normal number: 2^(exponent - bias) * 1.mantissa
  Specials specials = Specials::kIeee;
  Denormals denormals = Denormals::kGradual;

  friend constexpr bool operator==(const Format&, const Format&) = default;
};

// A row of the table.
struct FormatRow {
  std::string_view name;
  std::array<std::string_view, 2> aliases;  // unused ones are empty
  Format format;
  std::string_view note;  // origin and assumptions, one line
};

// Cerebras publishes CB16's field widths and that denormals exist, not its bias or special codes.
// dlsim takes the IEEE-like reading below; docs/numerics.md gives the evidence.
inline constexpr std::array<FormatRow, 7> kFormats = {{
    {"fp16", {"float16", "half"}, {5, 10, 15}, "IEEE 754 binary16"},
    {"bf16", {"bfloat16", ""}, {8, 7, 127}, "the upper half of binary32"},
    {"cb16", {"cbfloat16", ""}, {6, 9, 31}, "Cerebras; bias and special codes assumed IEEE-like"},
    {"fp8-e4m3", {"float8_e4m3fn", ""}, {4, 3, 7, Specials::kSingleNan}, "OCP 8-bit; no infinity"},
    {"fp8-e5m2", {"float8_e5m2", ""}, {5, 2, 15}, "OCP 8-bit"},
    {"tf32", {"tensorfloat32", ""}, {8, 10, 127}, "NVIDIA TensorFloat-32, 19 bits"},
    {"dlfloat16",
     {"dlfloat", ""},
     {6, 9, 31, Specials::kSingleNan, Denormals::kNone},
     "IBM; no subnormals, one code for infinity and NaN"},
}};

inline constexpr Format kFp16 = kFormats[0].format;
inline constexpr Format kBf16 = kFormats[1].format;
inline constexpr Format kCb16 = kFormats[2].format;
inline constexpr Format kE4m3 = kFormats[3].format;
inline constexpr Format kE5m2 = kFormats[4].format;

// The elements of formats with block scales, which alone use them (OCP Microscaling Formats 1.0).
inline constexpr Format kE2m3 = {2, 3, 1, Specials::kFinite};
inline constexpr Format kE3m2 = {3, 2, 3, Specials::kFinite};
inline constexpr Format kE2m1 = {2, 1, 1, Specials::kFinite};

// The formats that a question without any is asked for.
inline constexpr std::array<std::string_view, 3> kDefaultFormats = {
    kFormats[0].name, kFormats[1].name, kFormats[2].name};

// A format with the name to print.
struct NamedFormat {
  std::string name;
  Format format;
};

// Returns the format of a name or alias of kFormats, or of `eXmY` (X exponent bits, 2..8, Y
// mantissa bits, 1..22; IEEE-like, bias 2^(X-1)-1). Throws Error (exit code 2) for anything else,
// which names `place`.
NamedFormat ParseFormat(std::string_view name, std::string_view place = "format");

// Number of bits of a code.
DLSIM_HOST_DEVICE constexpr int CodeBits(const Format& f) {
  return 1 + f.exponent_bits + f.mantissa_bits;
}

// Codes without their sign bit.
DLSIM_HOST_DEVICE constexpr uint32_t MagnitudeMask(const Format& f) {
  return (uint32_t{1} << (CodeBits(f) - 1)) - 1;
}

// The code of +infinity in an IEEE-like format; in a format without one, the code of NaN; without
// either, the one past all codes.
DLSIM_HOST_DEVICE constexpr uint32_t OverflowCode(const Format& f) {
  const uint32_t mantissa_mask = (uint32_t{1} << f.mantissa_bits) - 1;
  if (f.specials == Specials::kFinite) return MagnitudeMask(f) + 1;
  return f.specials == Specials::kIeee ? MagnitudeMask(f) & ~mantissa_mask : MagnitudeMask(f);
}

// The code of the largest finite value.
DLSIM_HOST_DEVICE constexpr uint32_t MaxFiniteCode(const Format& f) { return OverflowCode(f) - 1; }

// The quiet NaN that has no payload; what NaN becomes in a format without one, the largest value.
DLSIM_HOST_DEVICE constexpr uint32_t QuietNanCode(const Format& f) {
  if (f.specials == Specials::kFinite) return MaxFiniteCode(f);
  return OverflowCode(f) | (uint32_t{1} << (f.mantissa_bits - 1));
}

// The smallest code of a normal value.
DLSIM_HOST_DEVICE constexpr uint32_t MinNormalCode(const Format& f) {
  return f.denormals == Denormals::kGradual ? uint32_t{1} << f.mantissa_bits : 1;
}

DLSIM_HOST_DEVICE constexpr bool HasInfinity(const Format& f) {
  return f.specials == Specials::kIeee;
}

// Values computed from the row, exact as doubles.
double MaxFinite(const Format& f);
double MinNormal(const Format& f);
double MinPositive(const Format& f);        // the smallest subnormal, or MinNormal without any
double OverflowThreshold(const Format& f);  // round to nearest even overflows from here on

// The element types that recorded tensors may have. Little-endian.
enum class DType { kF32, kF64, kF16, kBF16 };

// As in safetensors.
constexpr auto EnumNames(DType) {
  return std::to_array<EnumName<DType>>(
      {{DType::kF32, "F32"}, {DType::kF64, "F64"}, {DType::kF16, "F16"}, {DType::kBF16, "BF16"}});
}

// Returns the size of one element in bytes.
DLSIM_HOST_DEVICE constexpr size_t DTypeSize(DType dtype) {
  return dtype == DType::kF64 ? 8 : dtype == DType::kF32 ? 4 : 2;
}

}  // namespace dlsim
