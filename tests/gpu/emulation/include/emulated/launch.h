// SPDX-License-Identifier: Apache-2.0
// Launches of kernels.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "types.h"
#include "vectors.h"

struct cudaLaunchAttribute;

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace dlsim::emulation {

struct KernelLaunch {
  const void* kernel = nullptr;
  const char* parameters = nullptr;   // the kernel's parameter types, for messages
  std::function<void()> run_thread;   // the kernel with its arguments
  std::vector<const void*> pointers;  // those among the arguments
};

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, KernelLaunch launch);

template <class... Parameters>
const char* ParameterNames() {
  return __PRETTY_FUNCTION__;
}

template <class T>
void AddPointer(const T& argument, std::vector<const void*>& pointers) {
  if constexpr (std::is_pointer_v<T>) pointers.push_back(argument);
}

}  // namespace dlsim::emulation

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  std::tuple<std::decay_t<Parameters>...> values(
      static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  dlsim::emulation::KernelLaunch launch;
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.parameters = dlsim::emulation::ParameterNames<Parameters...>();
  std::apply(
      [&](const auto&... value) { (dlsim::emulation::AddPointer(value, launch.pointers), ...); },
      values);
  launch.run_thread = [kernel, values] { std::apply(kernel, values); };
  return dlsim::emulation::LaunchKernel(*config, std::move(launch));
}
