// SPDX-License-Identifier: Apache-2.0
// Directories that others have written: one file per step, with its number in the name, or one .npy
// per tensor of a single step. The word before a number says what it counts: conv1 is a layer,
// step_12 a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dlsim {

// A file such as step_12.safetensors, step-12.npz, grads_0007.npy or 12.npz.
struct NumberedFile {
  std::optional<int64_t> step;
  std::string name;
};

struct NumberedDirectory {
  bool is_one_step = false;              // the files are .npy, the tensors of one step
  std::vector<NumberedFile> files = {};  // ascending, if not
  std::string note = {};                 // what is not certain; empty if nothing
};

// Returns the extension of a container that a step may be in: .safetensors, .npz, .npy; or nothing.
std::string_view ContainerExtension(std::string_view name);

// Finds what the numbers in `names` mean, which are all containers of `directory`. Tensors are read
// by their headers, and only where the names do not decide. Throws InputError, which tells what was
// found, for what may mean several things.
NumberedDirectory ReadNumbers(const std::string& directory, const std::vector<std::string>& names);

// Refuses `path`, given after `before` as the next step, if their names or shapes say that both are
// of one step. Throws InputError, which asks for their directory.
void RefuseSameStep(const std::string& before, const std::string& path);

}  // namespace dlsim
