// SPDX-License-Identifier: Apache-2.0
// Every code of every format decodes to its value by definition: the scalar reference and every
// SIMD target, 16-bit and 32-bit codes, with any bits above the code.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "dlsim/convert.h"
#include "tests/exhaustive/breakpoint_oracle.h"
#include "tests/exhaustive/progress.h"
#include "tests/exhaustive/proof_formats.h"

namespace dlsim {
namespace {

class DecodeSweep : public testing::TestWithParam<NamedFormat> {
 protected:
  void TearDown() override {
    UseSimdTarget("");
    PrintProof("decode", GetParam().name, "-", tally_, watch_);
  }

  // Float32 bits of every code in order, by definition.
  std::vector<uint32_t> Definition() const {
    const BreakpointOracle oracle({GetParam().format});
    std::vector<uint32_t> bits;
    for (const uint32_t sign : {0u, 0x80000000u}) {
      for (uint32_t code = 0; code < Codes() / 2; ++code)
        bits.push_back(sign | oracle.Decode(code));
    }
    return bits;
  }

  uint32_t Codes() const { return uint32_t{1} << CodeBits(GetParam().format); }

  void Compare(const std::string& decoder, uint32_t code, uint32_t actual, uint32_t expected) {
    ++tally_.comparisons;
    if (actual == expected) return;
    if (tally_.differences++ > 0) return;
    ADD_FAILURE() << decoder << std::hex << ": code " << code << " gives " << actual
                  << ", expected " << expected;
  }

  // All codes, with all bits above the code unset, set and mixed, on every target.
  template <class Code>
  void DecodeAll() {
    const std::vector<uint32_t> definition = Definition();
    std::vector<Code> codes;
    for (const uint32_t above : {0u, ~0u, 0xA5A5A5A5u}) {
      for (uint32_t code = 0; code < Codes(); ++code) {
        codes.push_back(static_cast<Code>(code | (above & ~(Codes() - 1))));
      }
    }
    std::vector<float> values(codes.size());
    for (const std::string& target : SupportedSimdTargets()) {
      UseSimdTarget(target);
      values.assign(codes.size(), 0.123f);
      DecodeArray(GetParam().format, codes, values);
      for (size_t i = 0; i < codes.size(); ++i) {
        Compare(target, codes[i], std::bit_cast<uint32_t>(values[i]), definition[i % Codes()]);
      }
    }
  }

  Tally tally_;
  Stopwatch watch_;
};

TEST_P(DecodeSweep, EqualsTheDefinition) {
  const std::vector<uint32_t> definition = Definition();
  const CodecSpec spec = MakeCodecSpec({GetParam().format});
  for (uint32_t code = 0; code < Codes(); ++code) {
    Compare("reference", code, Decode(spec, code), definition[code]);
  }
  DecodeAll<uint32_t>();
  if (CodeBits(GetParam().format) <= 16) DecodeAll<uint16_t>();
}

INSTANTIATE_TEST_SUITE_P(All, DecodeSweep, testing::ValuesIn(ProofFormats()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace dlsim
