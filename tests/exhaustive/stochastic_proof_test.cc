// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding rounds up with exactly the probability that the definition gives, without
// bias, and with the same bits for any number of threads and any vector width.
#include <gtest/gtest.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "dlsim/convert.h"
#include "src/base/parallel.h"
#include "tests/exhaustive/breakpoint_oracle.h"
#include "tests/exhaustive/progress.h"
#include "tests/exhaustive/proof_formats.h"
#include "tests/exhaustive/random_words.h"
#include "tests/exhaustive/sweep.h"

namespace dlsim {
namespace {

constexpr uint64_t kAllWords = uint64_t{1} << 32;

uint32_t EncodeStochastic(const CodecSpec& spec, uint32_t bits, uint32_t word) {
  return EncodeWith<Rounding::kStochastic>(spec, bits, word).code;
}

// How a value rounds over all random words. The result changes at most once as the word grows.
struct Draw {
  uint32_t first;         // result for word 0
  uint32_t last;          // result for word 2^32 - 1
  uint64_t change;        // the first word that gives `last`
  uint64_t away() const;  // number of words that round away from zero
};

uint64_t Draw::away() const {
  if (first == last) return 0;
  return last > first ? kAllWords - change : change;
}

Draw FindDraw(const CodecSpec& spec, uint32_t bits) {
  Draw draw = {EncodeStochastic(spec, bits, 0), EncodeStochastic(spec, bits, ~0u), 0};
  if (draw.first == draw.last) return draw;
  uint64_t low = 0, high = kAllWords - 1;  // the results of these differ
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    (EncodeStochastic(spec, bits, static_cast<uint32_t>(middle)) == draw.first ? low : high) =
        middle;
  }
  draw.change = high;
  return draw;
}

// Magnitudes of finite inputs, as many in each binade: normal results, subnormal ones down to
// probabilities below 2^-32, and the way to overflow.
std::vector<uint32_t> DenseMagnitudes() {
  constexpr uint32_t kBinades = 255, kBinade = 1u << 23;
  const uint32_t step = ProvesAll() ? 509 : 8191;
  std::vector<uint32_t> magnitudes;
  for (uint32_t at = 0; at < kBinades * kBinade; at += step) {
    magnitudes.push_back(at);
    const uint32_t hash = (at * 0x85EBCA6B) >> 16;
    magnitudes.push_back(std::min(at + hash % step, kBinades * kBinade - 1));
  }
  return magnitudes;
}

class StochasticProof : public testing::TestWithParam<NamedFormat> {
 protected:
  void TearDown() override {
    UseSimdTarget("");
    PrintProof("stochastic", GetParam().name, "sr", tally_, watch_);
  }

  const Format& format() const { return GetParam().format; }

  const Conversion conversion_ = {GetParam().format, Rounding::kStochastic};
  Tally tally_;
  Stopwatch watch_;
};

// Whether the reference draws `away` words of 2^32 away from zero, and changes where the
// definition does: compared for the words at the change, at both ends, and some between.
bool DrawsAsDefined(const BreakpointOracle& oracle, const CodecSpec& spec, uint32_t bits) {
  const Draw draw = FindDraw(spec, bits);
  if (draw.away() != oracle.WordsThatRoundUp(bits & 0x7FFFFFFF)) return false;
  std::array<uint32_t, 16> words;
  FillRandomWords({bits, 0}, 0, words);
  words[0] = 0;
  words[1] = ~0u;
  words[2] = static_cast<uint32_t>(draw.change);
  words[3] = static_cast<uint32_t>(draw.change) - 1;
  std::array<uint32_t, words.size()> inputs, codes;
  inputs.fill(bits);
  oracle.Encode(inputs, words, codes.data());
  for (size_t i = 0; i < words.size(); ++i) {
    if (EncodeStochastic(spec, bits, words[i]) != codes[i]) return false;
  }
  return true;
}

TEST_P(StochasticProof, ProbabilityIsTheExactDistance) {
  const BreakpointOracle oracle(conversion_);
  const CodecSpec spec = MakeCodecSpec(conversion_);
  const std::vector<uint32_t> magnitudes = DenseMagnitudes();
  std::vector<char> equal(magnitudes.size());
  const auto bits = [&](size_t i) { return magnitudes[i] | (i / 2 % 2 == 0 ? 0 : 0x80000000); };
  ParallelForBlocks(magnitudes.size(), [&](size_t begin, size_t length) {
    for (size_t i = begin; i < begin + length; ++i) {
      equal[i] = DrawsAsDefined(oracle, spec, bits(i));
    }
  });
  tally_ = {equal.size(), static_cast<uint64_t>(std::count(equal.begin(), equal.end(), 0))};
  if (tally_.differences == 0) return;
  const uint32_t first =
      bits(static_cast<size_t>(std::find(equal.begin(), equal.end(), 0) - equal.begin()));
  ADD_FAILURE() << tally_.differences << " values, first " << std::hex << first << std::dec << ": "
                << FindDraw(spec, first).away() << " words round away from zero, expected "
                << oracle.WordsThatRoundUp(first & 0x7FFFFFFF);
}

// The mean over all 2^32 words, formed exactly: the products have at most 22 + 32 bits.
TEST_P(StochasticProof, ExpectationIsTheValue) {
  const CodecSpec spec = MakeCodecSpec(conversion_);
  for (const uint32_t bits : DenseMagnitudes()) {
    const Draw draw = FindDraw(spec, bits);
    const uint32_t below = std::min(draw.first, draw.last), above = std::max(draw.first, draw.last);
    if (above > spec.max_code) continue;  // infinity has no mean
    const long double low = std::bit_cast<float>(Decode(spec, below));
    const long double high = std::bit_cast<float>(Decode(spec, above));
    const long double up = static_cast<long double>(draw.away());
    const long double sum = low * (0x1p32L - up) + high * up;
    const long double error = std::bit_cast<float>(bits) * 0x1p32L - sum;
    // Values that are never drawn up lie less than one unit above the code below.
    const long double next = std::bit_cast<float>(Decode(spec, below + 1));
    ++tally_.comparisons;
    if (error >= 0 && error < next - low) continue;
    if (tally_.differences++ == 0) {
      ADD_FAILURE() << std::hex << bits << " has a mean off by " << std::dec
                    << static_cast<double>(error / (next - low)) << " of 2^-32 of the gap";
    }
  }
}

// Encodes in one piece.
std::vector<uint32_t> EncodeWhole(const ArrayConversion& how, const std::vector<float>& values) {
  std::vector<uint32_t> codes(values.size());
  EncodeArray(how, values, std::span<uint32_t>(codes));
  return codes;
}

// Encodes in pieces of growing lengths, multiples of 8.
std::vector<uint32_t> EncodeInPieces(const ArrayConversion& how, const std::vector<float>& values) {
  std::vector<uint32_t> codes(values.size());
  size_t length = 8;
  for (size_t begin = 0; begin < values.size(); begin += length, length += 8) {
    const size_t count = std::min(length, values.size() - begin);
    ArrayConversion piece = how;
    piece.first_index += begin;
    EncodeArray(piece, std::span(values).subspan(begin, count),
                std::span(codes).subspan(begin, count));
  }
  return codes;
}

void UseThreads([[maybe_unused]] int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
}

TEST_P(StochasticProof, SameBitsForAnyThreadsTargetAndPieces) {
  const InputSequence sequence = Mixed(4096, 5);
  std::vector<uint32_t> inputs(sequence.count);
  sequence.fill(0, inputs);
  std::vector<float> values;
  for (const uint32_t bits : inputs) values.push_back(std::bit_cast<float>(bits));
  ArrayConversion how = {conversion_};
  how.random = {99, 1};
  how.first_index = (uint64_t{1} << 35) - 4096;  // the block counter passes 2^32
  std::vector<uint32_t> words(values.size()), expected(values.size());
  FillRandomWords(how.random, how.first_index, words);
  BreakpointOracle(conversion_).Encode(inputs, words, expected.data());
  for (const std::string& target : SupportedSimdTargets()) {
    UseSimdTarget(target);
    for (const int threads : {1, 2, 4}) {
      UseThreads(threads);
      for (const auto& codes : {EncodeWhole(how, values), EncodeInPieces(how, values)}) {
        const bool same = codes == expected;
        tally_ += {codes.size(), !same};
        EXPECT_TRUE(same) << target << " with " << threads << " threads";
      }
    }
  }
}

// Values with given distances from a code, in units of the gap to the next one.
std::vector<float> ValuesAbove(const BreakpointOracle& oracle, uint32_t code, double gap) {
  const double low = std::bit_cast<float>(oracle.Decode(code));
  std::vector<float> values;
  for (const double distance : {0x1p-9, 0.1, 1.0 / 3, 0.5, 0.75, 0.99}) {
    values.push_back(static_cast<float>(low + distance * gap));
  }
  return values;
}

TEST_P(StochasticProof, DrawsAreUnbiased) {
  constexpr size_t kDraws = size_t{1} << 20;
  const BreakpointOracle oracle(conversion_);
  const CodecSpec spec = MakeCodecSpec(conversion_);
  const auto value = [&](uint32_t code) {
    return double{std::bit_cast<float>(oracle.Decode(code))};
  };
  const uint32_t one = static_cast<uint32_t>(format().bias) << format().mantissa_bits;
  std::vector<float> values;
  for (const uint32_t code : {0u, 1u, one, one + 1}) {
    for (const float v : ValuesAbove(oracle, code, value(code + 1) - value(code))) {
      values.push_back(v);
    }
  }
  const uint32_t max = spec.max_code;
  for (const float v : ValuesAbove(oracle, max, value(max) - value(max - 1))) values.push_back(v);
  for (const float v : values) {
    for (const uint64_t seed : {1u, 2u, 3u}) {
      ArrayConversion how = {conversion_};
      how.random = {seed, 0};
      const std::vector<uint32_t> codes = EncodeWhole(how, std::vector<float>(kDraws, v));
      const uint32_t below = Encode(spec, Rounding::kTowardZero, std::bit_cast<uint32_t>(v)).code;
      const double up = static_cast<double>(
          kDraws - static_cast<size_t>(std::count(codes.begin(), codes.end(), below)));
      const double p =
          static_cast<double>(oracle.WordsThatRoundUp(std::bit_cast<uint32_t>(v))) / 0x1p32;
      const double sigma = std::sqrt(kDraws * p * (1 - p));
      const bool near = std::fabs(up - kDraws * p) <= 5 * sigma;
      tally_ += {1, !near};
      EXPECT_TRUE(near) << v << " seed " << seed << ": " << up << " of " << kDraws
                        << " draws round up, expected " << kDraws * p << " +- " << sigma;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StochasticProof, testing::ValuesIn(ProofFormats()),
                         [](const auto& test) { return TestName(test.param) + "_sr"; });

}  // namespace
}  // namespace dlsim
