// SPDX-License-Identifier: Apache-2.0
#include "tests/exhaustive/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "dlsim/convert.h"
#include "src/base/parallel.h"
#include "tests/exhaustive/breakpoint_oracle.h"
#include "tests/exhaustive/f16c.h"
#include "tests/exhaustive/progress.h"
#include "tests/exhaustive/random_words.h"

namespace dlsim {
namespace {

// Inputs per batch: a batch with expected and actual codes stays in the last-level cache.
constexpr size_t kBatchInputs = size_t{1} << 20;

// A run of inputs in the forms that encoders take.
struct Inputs {
  std::span<const float> values;
  std::span<const uint32_t> scaled;  // bits of the scaled values
  std::span<const uint32_t> words;   // random bits
};

struct Batch {
  std::vector<uint32_t> bits;  // of the values
  std::vector<float> values;
  std::vector<uint32_t> scaled;
  std::vector<uint32_t> words;

  Inputs Part(size_t begin, size_t length) const {
    return {std::span(values).subspan(begin, length), std::span(scaled).subspan(begin, length),
            std::span(words).subspan(begin, length)};
  }
};

template <class Code>
struct Encoder {
  std::string name;
  std::string simd_target;  // to switch to; empty for the best
  std::function<void(const ArrayConversion&, const Inputs&, std::span<Code>)> encode;
};

void FillBatch(const Sweep& sweep, uint64_t first, size_t count, Batch& batch) {
  batch.bits.resize(count);
  batch.values.resize(count);
  batch.scaled.resize(count);
  batch.words.resize(count);
  const float scale = sweep.how.scale;
  const bool stochastic = sweep.how.conversion.rounding == Rounding::kStochastic;
  ParallelForBlocks(count, [&](size_t begin, size_t length) {
    sweep.inputs.fill(first + begin, std::span(batch.bits).subspan(begin, length));
    for (size_t i = begin; i < begin + length; ++i) {
      const float value = std::bit_cast<float>(batch.bits[i]);
      batch.values[i] = value;
      batch.scaled[i] = scale == 1 ? batch.bits[i] : std::bit_cast<uint32_t>(value * scale);
    }
    if (stochastic) {
      FillRandomWords(sweep.how.random, first + begin,
                      std::span(batch.words).subspan(begin, length));
    }
  });
}

template <class Code>
void EncodeByReference(const ArrayConversion& how, const Inputs& inputs, std::span<Code> codes) {
  const CodecSpec spec = MakeCodecSpec(how.conversion);
  const Rounding rounding = how.conversion.rounding;
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<Code>(Encode(spec, rounding, inputs.scaled[i], inputs.words[i]).code);
  }
}

template <class Code>
void EncodeByArray(const ArrayConversion& how, const Inputs& inputs, std::span<Code> codes) {
  EncodeArray(how, inputs.values, codes);
}

template <class Code>
std::vector<Encoder<Code>> EncodersOf(const Sweep& sweep) {
  std::vector<Encoder<Code>> encoders = {{"reference", "", EncodeByReference<Code>}};
  if (sweep.encoders == Encoders::kReference) return encoders;
  for (const std::string& target : SupportedSimdTargets()) {
    encoders.push_back({target, target, EncodeByArray<Code>});
  }
  if constexpr (sizeof(Code) == sizeof(uint16_t)) {
    if (sweep.how.conversion == Conversion{kFp16} && sweep.how.scale == 1 && HasF16c()) {
      encoders.push_back(
          {"F16C", "", [](const ArrayConversion&, const Inputs& inputs, std::span<Code> codes) {
             EncodeByF16c(inputs.values, codes);
           }});
    }
  }
  return encoders;
}

// Encodes a batch block by block on all threads, over codes that are all wrong before; returns the
// number of differences.
template <class Code>
uint64_t CountDifferences(const Encoder<Code>& encoder, const ArrayConversion& how,
                          const Batch& batch, const std::vector<Code>& expected,
                          std::vector<Code>& actual) {
  UseSimdTarget(encoder.simd_target);
  std::atomic<uint64_t> differences = 0;
  ParallelForBlocks(expected.size(), [&](size_t begin, size_t length) {
    for (size_t i = begin; i < begin + length; ++i) actual[i] = static_cast<Code>(~expected[i]);
    ArrayConversion block = how;
    block.first_index += begin;
    encoder.encode(block, batch.Part(begin, length), std::span(actual).subspan(begin, length));
    if (std::memcmp(&expected[begin], &actual[begin], length * sizeof(Code)) == 0) return;
    for (size_t i = begin; i < begin + length; ++i) differences += expected[i] != actual[i];
  });
  return differences;
}

template <class Code>
void ReportFirst(const std::string& where, const Batch& batch, const std::vector<Code>& expected,
                 const std::vector<Code>& actual) {
  const auto [at, other] = std::mismatch(expected.begin(), expected.end(), actual.begin());
  const size_t i = static_cast<size_t>(at - expected.begin());
  ADD_FAILURE() << where << std::hex << ": input " << batch.bits[i] << " scaled " << batch.scaled[i]
                << " random bits " << batch.words[i] << " gives " << *other << ", expected " << *at;
}

}  // namespace

bool ProvesAll() {
  const char* effort = std::getenv("DLSIM_EXHAUSTIVE");
  return effort != nullptr && std::string_view(effort) == "full";
}

template <class Code>
Tally RunSweep(const Sweep& sweep) {
  const BreakpointOracle oracle(sweep.how.conversion);
  const std::vector<Encoder<Code>> encoders = EncodersOf<Code>(sweep);
  std::vector<bool> reported(encoders.size(), false);
  Batch batch;
  std::vector<Code> expected, actual;
  Tally tally;
  SweepProgress progress(sweep.name, sweep.inputs.count);
  for (uint64_t first = 0; first < sweep.inputs.count; first += kBatchInputs) {
    const uint64_t rest = sweep.inputs.count - first;
    const size_t count = static_cast<size_t>(std::min<uint64_t>(kBatchInputs, rest));
    FillBatch(sweep, first, count, batch);
    expected.resize(count);
    actual.resize(count);
    ParallelForBlocks(count, [&](size_t begin, size_t length) {
      const Inputs inputs = batch.Part(begin, length);
      oracle.Encode(inputs.scaled, inputs.words, &expected[begin]);
    });
    ArrayConversion how = sweep.how;
    how.first_index += first;
    for (size_t e = 0; e < encoders.size(); ++e) {
      const uint64_t differences = CountDifferences(encoders[e], how, batch, expected, actual);
      tally += {count, differences};
      if (differences == 0 || reported[e]) continue;
      reported[e] = true;
      ReportFirst(sweep.name + " " + encoders[e].name, batch, expected, actual);
    }
    progress.Advance(count);
  }
  UseSimdTarget("");
  return tally;
}
template Tally RunSweep<uint16_t>(const Sweep&);
template Tally RunSweep<uint32_t>(const Sweep&);

}  // namespace dlsim
