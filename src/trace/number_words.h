// SPDX-License-Identifier: Apache-2.0
// What the number in a file's name counts, by the word before it: conv1 is a layer, step_12 a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dlsim {

enum class NumberOf {
  kStep,     // step_12, iter-7, 3_epoch_4
  kRecord,   // grads_0007, ckpt-12, or no word at all: a step, if the files hold the same tensors
  kTensor,   // conv1, layer_3, weight2
  kPart,     // rank_0, microstep-1, seed_3: parts of one step, or several runs
  kUnknown,  // any other word
};

// A file's name around its number.
struct NumberedName {
  std::string_view before, after, extension;
  int64_t number = 0;
  NumberOf of = NumberOf::kUnknown;

  bool IsLike(const NumberedName& other) const {
    return before == other.before && after == other.after && extension == other.extension;
  }
};

// Returns the extension of a container that a step may be in: .safetensors, .npz, .npy; or nothing.
std::string_view ContainerExtension(std::string_view name);

// Returns the last number that follows a word for a step, else the number at the end of the name.
std::optional<NumberedName> ParseNumberedName(std::string_view name);

// True if a number in the name is that of a rank, a worker or a micro-step.
bool NamesARank(std::string_view name);

}  // namespace dlsim
