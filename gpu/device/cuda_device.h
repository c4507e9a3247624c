// SPDX-License-Identifier: Apache-2.0
// A CUDA device that measures and counts the steps of a trace and converts arrays of the host.
#pragma once

#include <memory>
#include <string>

#include "gpu/device/counter_store.h"
#include "gpu/device/slot_ring.h"
#include "src/device/compute_device.h"
#include "src/histogram/histogram_sums.h"

namespace dlsim::gpu {

// Keeps its buffers from one step to the next, of a size that does not depend on the trace's.
class CudaDevice final : public ComputeDevice {
 public:
  CudaDevice(int index, std::string name);  // on the current device

  std::string name() const override { return name_; }
  std::unique_ptr<DeviceWork> Measure(
      const StepWork& work,
      std::function<void(size_t tensor, const BlockAnswer& answer)> on_answer) override;
  std::unique_ptr<DeviceWork> Count(const StepWork& work, const HistogramEdges& edges,
                                    std::span<HistogramSums> sums) override;
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
  CounterStore counters_;  // goes before the streams that they work in
};

}  // namespace dlsim::gpu
