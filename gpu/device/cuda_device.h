// SPDX-License-Identifier: Apache-2.0
// A CUDA device that tabulates the steps of a trace and converts arrays of the host. Buffers take
// turns: while the host fills one, the device works on the others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "gpu/base/cuda.h"
#include "gpu/base/device_code.h"
#include "src/device/compute_device.h"

namespace dlsim::gpu {

// Adds pieces to tables[Piece::tensor]; both are on the device, and tables are 0 before the first
// call. Pieces of a table follow each other, best sorted by type. `scale` multiplies each value in
// float32 after Piece::inverse_grad_scale, unless it is 1.
void LaunchTabulate(const Piece* pieces, uint32_t piece_count, float scale, TableSums* tables,
                    Stream stream);

// Buffers of the current device, each with a stream of its own. Their memory grows to what was
// asked for most and is kept.
class SlotRing {
 public:
  struct Slot {
    PinnedBuffer<std::byte> host_input, host_output;
    DeviceBuffer<std::byte> device_input, device_output;
    OwnedStream stream;
    std::function<void()> collect = {};  // what Submit was given

    // Begin to copy the first bytes of the host's input to the device, and of the output back.
    void Send(size_t bytes);
    void Fetch(size_t bytes);
  };

  SlotRing() = default;
  ~SlotRing() { Abandon(); }
  SlotRing(const SlotRing&) = delete;
  SlotRing& operator=(const SlotRing&) = delete;

  // Calls `work`, which takes slots, and collects all that runs then. Leaves nothing running if
  // something fails.
  void Run(const std::function<void()>& work);

  // Returns the slot whose turn it is, after what it held is collected, with at least so much
  // memory of each kind.
  Slot& Next(size_t input_bytes, size_t output_bytes);

  // Calls `collect` once the work of the slot that Next gave last is done, when its turn comes or
  // at the end.
  void Submit(std::function<void()> collect);

 private:
  // Waits for the work of a slot, and calls `collect` once.
  void Collect(Slot& slot);

  // Waits for all that runs and drops its results.
  void Abandon() noexcept;

  std::array<Slot, 3> slots_;
  size_t next_ = 0;
};

// Keeps its buffers from one step to the next, of a size that does not depend on the trace's.
class CudaDevice final : public ComputeDevice {
 public:
  CudaDevice(int index, std::string name);  // on the current device

  std::string name() const override { return name_; }
  void Tabulate(std::span<const DeviceBlock> blocks, float scale, const TakeSums& take) override;
  void Read(const std::byte* from, std::span<std::byte> to) override;
  void Encode(const ArrayConversion& how, DType dtype, std::span<const std::byte> bytes,
              std::span<std::byte> codes) override;
  void Decode(const Format& format, std::span<const std::byte> codes,
              std::span<float> values) override;

 private:
  int index_;
  std::string name_;
  SlotRing slots_;
};

}  // namespace dlsim::gpu
