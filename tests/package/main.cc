// SPDX-License-Identifier: Apache-2.0
// Uses the installed library the way a user would.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/measure.h"
#ifdef HAS_CUDA
#include "dlsim/gpu.h"
#endif

int main() {
  const std::vector<float> values = {1.0f, 0x1p-40f, 1e10f};
  std::vector<uint16_t> codes(values.size());
  dlsim::EncodeArray({{dlsim::kCb16}}, values, std::span<uint16_t>(codes));
  const dlsim::TensorStats stats = dlsim::Measure(values, dlsim::ArrayConversion{{dlsim::kCb16}});
#ifdef HAS_CUDA
  const dlsim::gpu::DeviceList list = dlsim::gpu::Devices();
  if (list.devices.empty() == list.problem.empty()) return 1;
#endif
  const bool right = codes[0] == 0x3E00 && codes[1] == 0 && codes[2] == 0x7E00 &&
                     stats.underflow == 1 && stats.overflow == 1;
  std::puts(right ? "dlsim: package works" : "dlsim: package is broken");
  return right ? 0 : 1;
}
