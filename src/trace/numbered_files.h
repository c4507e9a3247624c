// SPDX-License-Identifier: Apache-2.0
// Directories that others have written: one file per step, with its number at the end of the name,
// or one .npy per tensor of a single step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim {

// A file such as step_12.safetensors, step-12.npz, grads_0007.npy or 12.npz.
struct NumberedFile {
  int64_t step = 0;
  std::string name;
};

// True for the containers that a step may be in: .safetensors, .npz and .npy.
bool IsContainerName(std::string_view name);

// True if the files, of which `names` are all containers, are the tensors of one step: .npy files
// that differ not in a number alone.
bool AreArraysOfOneStep(const std::vector<std::string>& names);

// Returns the files of `directory` by their numbers, ascending. `names` are of its containers.
// Throws InputError, which tells what was found, unless there are some, all alike but for the
// number, each number once.
std::vector<NumberedFile> FindNumberedFiles(const std::string& directory,
                                            const std::vector<std::string>& names);

}  // namespace dlsim
