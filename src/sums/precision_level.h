// SPDX-License-Identifier: Apache-2.0
// Cerebras' precision_opt_level as options for sums: a table of what is public and what is assumed.
// docs/accumulation.md quotes the sources.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "dlsim/accumulate.h"
#include "dlsim/enum_names.h"

namespace dlsim {

enum class PrecisionOptLevel : uint8_t { k0, k1, k2 };

// Kinds of operation that the levels tell apart.
enum class Operation : uint8_t {
  kMatMul,     // matrix multiplication
  kAttention,  // the matrix products inside attention
  kSoftmax,    // the softmax inside attention
  kReduction,  // any other sum: over micro-steps, a batch, a norm
};

constexpr auto EnumNames(Operation) {
  return std::to_array<EnumName<Operation>>({{Operation::kMatMul, "matmul"},
                                             {Operation::kAttention, "attention"},
                                             {Operation::kSoftmax, "softmax"},
                                             {Operation::kReduction, "reduction"}});
}

// Where sums are kept. The order of additions is the same on all levels.
enum class Sums : uint8_t {
  kFloat32,  // in float32 throughout
  kMixed,    // a chunk's partial sum in 16 bits, sums of partial sums in float32
  kShort,    // in 16 bits throughout, as are the terms
};

constexpr auto EnumNames(Sums) {
  return std::to_array<EnumName<Sums>>(
      {{Sums::kFloat32, "float32"}, {Sums::kMixed, "mixed"}, {Sums::kShort, "short"}});
}

// Whether Cerebras says so.
enum class Evidence : uint8_t { kPublic, kAssumption };

constexpr auto EnumNames(Evidence) {
  return std::to_array<EnumName<Evidence>>(
      {{Evidence::kPublic, "public"}, {Evidence::kAssumption, "assumption"}});
}

struct LevelRule {
  PrecisionOptLevel level;
  Operation operation;
  Sums sums;
  Evidence evidence;
  std::string_view note;  // what is public or why it is assumed
};

inline constexpr std::array<LevelRule, 12> kLevelRules = {{
    {PrecisionOptLevel::k0, Operation::kMatMul, Sums::kFloat32, Evidence::kPublic,
     "float32 accumulations"},
    {PrecisionOptLevel::k0, Operation::kAttention, Sums::kFloat32, Evidence::kPublic,
     "float32 accumulations"},
    {PrecisionOptLevel::k0, Operation::kSoftmax, Sums::kFloat32, Evidence::kAssumption,
     "a 16-bit softmax is named for level 2 only"},
    {PrecisionOptLevel::k0, Operation::kReduction, Sums::kFloat32, Evidence::kPublic,
     "float32 accumulations"},
    {PrecisionOptLevel::k1, Operation::kMatMul, Sums::kMixed, Evidence::kPublic,
     "a combination of float32 and 16-bit reductions; how they combine is assumed"},
    {PrecisionOptLevel::k1, Operation::kAttention, Sums::kFloat32, Evidence::kPublic,
     "float32 reductions in attention; a later text says a combination"},
    {PrecisionOptLevel::k1, Operation::kSoftmax, Sums::kFloat32, Evidence::kAssumption,
     "a 16-bit softmax is named for level 2 only"},
    {PrecisionOptLevel::k1, Operation::kReduction, Sums::kFloat32, Evidence::kAssumption,
     "other sums are not named; 16-bit inputs with float32 accumulation is the general advice"},
    {PrecisionOptLevel::k2, Operation::kMatMul, Sums::kMixed, Evidence::kPublic,
     "a combination of float32 and 16-bit reductions; how they combine is assumed"},
    {PrecisionOptLevel::k2, Operation::kAttention, Sums::kMixed, Evidence::kPublic,
     "a combination of float32 and 16-bit reductions; how they combine is assumed"},
    {PrecisionOptLevel::k2, Operation::kSoftmax, Sums::kShort, Evidence::kPublic,
     "a 16-bit softmax; that its sum is kept in 16 bits too is assumed"},
    {PrecisionOptLevel::k2, Operation::kReduction, Sums::kMixed, Evidence::kAssumption,
     "other sums are not named; taken as in matrix multiplication"},
}};

// What Cerebras does not publish: the parameters of the emulation.
struct LevelParameters {
  Conversion short_format = {kCb16};  // of inputs (always to nearest even) and of 16-bit sums
  uint64_t chunk_length = 128;        // terms of a partial sum, on all levels alike
  RandomStream random = {};           // if short_format rounds stochastically
};

// Returns the rule of a level for a kind of operation.
const LevelRule& RuleOf(PrecisionOptLevel level, Operation operation);

// Returns how that level sums in that kind of operation.
AccumulationOptions OptionsOf(PrecisionOptLevel level, Operation operation,
                              const LevelParameters& parameters);

}  // namespace dlsim
