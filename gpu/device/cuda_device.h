// SPDX-License-Identifier: Apache-2.0
// A CUDA device that tabulates the steps of a trace and converts arrays of the host.
#pragma once

#include <string>

#include "gpu/device/slot_ring.h"
#include "src/device/compute_device.h"

namespace dlsim::gpu {

// Keeps its buffers from one step to the next, of a size that does not depend on the trace's.
class CudaDevice final : public ComputeDevice {
 public:
  CudaDevice(int index, std::string name);  // on the current device

  std::string name() const override { return name_; }
  void Tabulate(std::span<const DeviceBlock> blocks, float scale, const TakeSums& take) override;
  void Read(const std::byte* from, std::span<std::byte> to) override;
  void Encode(const ArrayConversion& how, DType dtype, std::span<const std::byte> bytes,
              std::span<uint16_t> codes) override;
  void Encode(const ArrayConversion& how, DType dtype, std::span<const std::byte> bytes,
              std::span<uint32_t> codes) override;
  void Decode(const Format& format, std::span<const uint16_t> codes,
              std::span<float> values) override;
  void Decode(const Format& format, std::span<const uint32_t> codes,
              std::span<float> values) override;

 private:
  int index_;
  std::string name_;
  SlotRing slots_;
};

}  // namespace dlsim::gpu
