// SPDX-License-Identifier: Apache-2.0
// The scalar reference and every SIMD target give the code that the definition gives: for each
// format and rounding mode, over all 2^32 inputs or, in a routine run, a part that differs by mode.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/exhaustive/breakpoint_oracle.h"
#include "tests/exhaustive/proof_formats.h"
#include "tests/exhaustive/sweep.h"

namespace dlsim {
namespace {

struct Rules {
  const char* name;
  Overflow overflow;
  Subnormals subnormals;
};

constexpr Rules kDefaultRules = {"", Overflow::kInfinity, Subnormals::kKeep};
constexpr Rules kBothOtherRules = {" saturate flush", Overflow::kSaturate,
                                   Subnormals::kFlushToZero};
constexpr Rules kRules[] = {kDefaultRules,
                            kBothOtherRules,
                            {" saturate", Overflow::kSaturate, Subnormals::kKeep},
                            {" flush", Overflow::kInfinity, Subnormals::kFlushToZero}};

class EncodeSweep : public testing::TestWithParam<std::tuple<NamedFormat, NamedRounding>> {
 protected:
  void TearDown() override { PrintProof("encode", format_.name, rounding_.name, tally_, watch_); }

  bool Stochastic() const { return rounding_.rounding == Rounding::kStochastic; }

  ArrayConversion How(const Rules& rules) const {
    ArrayConversion how = {{format_.format, rounding_.rounding, rules.overflow, rules.subnormals}};
    how.random = {0x0123456789ABCDEF, 7};
    return how;
  }

  // A shuffled part of all inputs, another one at each call.
  InputSequence NextPart() { return Mixed(ProvesAll() ? 64 : 256, salt_++); }

  void Check(const std::string& what, const ArrayConversion& how, const InputSequence& inputs,
             Encoders encoders = Encoders::kAll) {
    const std::string name = format_.name + " " + rounding_.name + what;
    tally_ += CodeBits(format_.format) <= 16 ? RunSweep<uint16_t>({name, how, inputs, encoders})
                                             : RunSweep<uint32_t>({name, how, inputs, encoders});
  }

  const NamedFormat format_ = std::get<0>(GetParam());
  const NamedRounding rounding_ = std::get<1>(GetParam());
  uint32_t salt_ = 17 * static_cast<uint32_t>(rounding_.rounding);
  Tally tally_;
  Stopwatch watch_;
};

TEST_P(EncodeSweep, EqualsTheDefinition) {
  const bool tuned = IsTuned(format_.format);
  const bool all = ProvesAll() || (tuned && rounding_.rounding == Rounding::kNearestEven);
  Check("", How(kDefaultRules), all ? AllInputs() : Stratified(64, salt_));
  if (ProvesAll() && (tuned || !Stochastic())) {
    Check(kBothOtherRules.name, How(kBothOtherRules), AllInputs(),
          tuned ? Encoders::kAll : Encoders::kReference);
  }
  for (const Rules& rules : kRules) {
    const ArrayConversion how = How(rules);
    const std::string name = rules.name;
    Check(name + " shuffled", how, NextPart());
    Check(name + " boundaries", how, Around(BreakpointOracle(how.conversion).Breakpoints()));
  }
}

TEST_P(EncodeSweep, EqualsTheDefinitionWhenScaled) {
  for (const float scale : {2e15f, 0x1p-20f}) {
    ArrayConversion how = How(kDefaultRules);
    how.scale = scale;
    Check(" scaled", how, NextPart());
  }
}

TEST_P(EncodeSweep, WidensCodesTo32Bits) {
  const ArrayConversion how = How(kDefaultRules);
  const std::string name = format_.name + " " + rounding_.name + " 32-bit codes";
  tally_ += RunSweep<uint32_t>({name, how, NextPart()});
}

INSTANTIATE_TEST_SUITE_P(All, EncodeSweep,
                         testing::Combine(testing::ValuesIn(ProofFormats()),
                                          testing::ValuesIn(kRoundings)),
                         [](const auto& test) {
                           return TestName(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

}  // namespace
}  // namespace dlsim
