// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/line_words.h"

#include <array>
#include <bit>
#include <cstdint>

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 9> kScaleWords = {"scale",        "overflow",    "skipped",
                                                         "Scale",        "Overflow",    "SCALE",
                                                         "cost-scaling", "outputs are", "| step "};
constexpr std::array<std::string_view, 3> kLossWords = {"loss", "Loss", "nan iterations"};

constexpr size_t kCount = kScaleWords.size() + kLossWords.size();
constexpr std::string_view WordAt(size_t i) {
  return i < kScaleWords.size() ? kScaleWords[i] : kLossWords[i - kScaleWords.size()];
}

using Words = uint16_t;  // a bit for each word
static_assert(kCount <= 16);
constexpr Words kOfScale = (1U << kScaleWords.size()) - 1;

// The words that have a character at a place, by character.
using WordsByCharacter = std::array<Words, 256>;
constexpr WordsByCharacter WordsWith(size_t place) {
  WordsByCharacter words{};
  for (size_t i = 0; i < kCount; ++i) {
    words[static_cast<uint8_t>(WordAt(i)[place])] |= static_cast<Words>(1U << i);
  }
  return words;
}

}  // namespace

LineWords FindLineWords(std::string_view line) {
  static constexpr WordsByCharacter kFirst = WordsWith(0), kSecond = WordsWith(1);
  unsigned found = 0;
  for (size_t at = 0; at + 1 < line.size(); ++at) {
    unsigned may_be = kFirst[static_cast<uint8_t>(line[at])];
    may_be &= kSecond[static_cast<uint8_t>(line[at + 1])];
    for (; may_be != 0; may_be &= may_be - 1) {
      const auto word = static_cast<size_t>(std::countr_zero(may_be));
      if (line.substr(at).starts_with(WordAt(word))) found |= 1U << word;
    }
  }
  return {.scale = (found & kOfScale) != 0, .loss = (found & ~unsigned{kOfScale}) != 0};
}

}  // namespace dlsim::sim
