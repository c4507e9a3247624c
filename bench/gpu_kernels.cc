// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_kernels.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/data_sets.h"
#include "dlsim/convert.h"
#include "dlsim/gpu.h"
#include "gpu/base/cuda.h"
#include "gpu/base/device_code.h"
#include "gpu/device/cuda_device.h"
#include "src/device/compute_device.h"

namespace dlsim::bench {
namespace {

// Queues one call on a stream.
using Call = std::function<void(gpu::Stream stream)>;

// The arrays of the device, which hold one data set or its codes at a time.
class GpuArrays {
 public:
  GpuArrays(int device, size_t elements) : device_(device), elements_(elements) {}

  // Makes the device current for the rest of the program; all else expects that.
  void Select() { gpu::CheckCuda(cudaSetDevice(device_), "cudaSetDevice"); }

  size_t size() const { return elements_; }

  // The values of a data set, copied there unless they are there already.
  std::span<float> Values(DataSet data) {
    if (values_.size() == 0) values_ = gpu::DeviceBuffer<float>(elements_);
    if (data_ != data) {
      data_.reset();
      Upload(std::as_bytes(Host().Values(data)), values_.data());
      data_ = data;
    }
    return values_.span();
  }

  std::span<const uint16_t> Encoded(DataSet data, const Format& format) {
    const std::span<uint16_t> codes = Host().Codes();
    EncodeArray({.conversion = {format}}, Host().Values(data), codes);
    Upload(std::as_bytes(codes), Codes().data());
    return Codes();
  }

  std::span<uint16_t> Codes() {
    if (codes_.size() == 0) codes_ = gpu::DeviceBuffer<uint16_t>(elements_);
    return codes_.span();
  }

  std::span<float> Floats() {
    if (floats_.size() == 0) floats_ = gpu::DeviceBuffer<float>(elements_);
    return floats_.span();
  }

 private:
  Arrays& Host() { return ArraysOf(elements_, 0); }

  static void Upload(std::span<const std::byte> bytes, void* to) {
    gpu::CheckCuda(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
    gpu::CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  int device_;
  size_t elements_;
  std::optional<DataSet> data_;
  gpu::DeviceBuffer<float> values_, floats_;
  gpu::DeviceBuffer<uint16_t> codes_;
};

// Returns the call of a benchmark on its data, ready to be made.
using Prepare = std::function<Call(GpuArrays& arrays, DataSet data)>;

// A point in a stream that is timed and can be waited for.
class OwnedEvent {
 public:
  OwnedEvent() { gpu::CheckCuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~OwnedEvent() { static_cast<void>(cudaEventDestroy(event_)); }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;

  void Record(gpu::Stream stream) {
    gpu::CheckCuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  void Wait() const { gpu::CheckCuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

double SecondsOf(const Call& call, gpu::OwnedStream& stream) {
  OwnedEvent begin, end;
  begin.Record(stream.get());
  call(stream.get());
  end.Record(stream.get());
  end.Wait();
  float milliseconds = 0;
  gpu::CheckCuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()),
                 "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

void Run(benchmark::State& state, GpuArrays& arrays, const Prepare& prepare, DataSet data,
         size_t bytes) {
  arrays.Select();
  const Call call = prepare(arrays, data);
  gpu::OwnedStream stream;
  SecondsOf(call, stream);  // the first call loads the code
  for (auto _ : state) state.SetIterationTime(SecondsOf(call, stream));
  const auto items = state.iterations() * static_cast<int64_t>(arrays.size());
  state.SetItemsProcessed(items);
  state.SetBytesProcessed(items * static_cast<int64_t>(bytes));
}

gpu::DeviceTensor TensorOf(GpuArrays& arrays, DataSet data) {
  const std::span<const float> values = arrays.Values(data);
  return {.values = values.data(), .elements = values.size()};
}

Call PrepareCopy(GpuArrays& arrays, DataSet data) {
  const std::span<const float> from = arrays.Values(data);
  float* const to = arrays.Floats().data();
  return [=](gpu::Stream stream) {
    gpu::CheckCuda(
        cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
  };
}

Call PrepareEncode(const Conversion& conversion, GpuArrays& arrays, DataSet data) {
  gpu::DeviceTensor tensor = TensorOf(arrays, data);
  tensor.codes = arrays.Codes().data();
  return [=](gpu::Stream stream) { gpu::Encode({.conversion = conversion}, tensor, stream); };
}

Call PrepareDecode(const Format& format, GpuArrays& arrays, DataSet data) {
  const std::span<const uint16_t> codes = arrays.Encoded(data, format);
  float* const values = arrays.Floats().data();
  return
      [=](gpu::Stream stream) { gpu::Decode(format, codes.data(), values, codes.size(), stream); };
}

Call PrepareTabulate(GpuArrays& arrays, DataSet data) {
  const gpu::DeviceTensor tensor = TensorOf(arrays, data);
  std::vector<gpu::Piece> pieces;
  for (uint64_t begin = 0; begin < tensor.elements; begin += kBlockElements) {
    gpu::Piece& piece = pieces.emplace_back(gpu::PieceOf(tensor));
    piece.values += begin * sizeof(float);
    piece.count =
        static_cast<uint32_t>(std::min<uint64_t>(kBlockElements, tensor.elements - begin));
  }
  const auto on_device = std::make_shared<gpu::DeviceBuffer<gpu::Piece>>(pieces.size());
  gpu::CheckCuda(
      cudaMemcpy(on_device->data(), pieces.data(), on_device->size_bytes(), cudaMemcpyHostToDevice),
      "cudaMemcpy");
  const auto table = std::make_shared<gpu::DeviceBuffer<TableSums>>(1);
  gpu::CheckCuda(cudaMemset(table->data(), 0, table->size_bytes()), "cudaMemset");
  return [=](gpu::Stream stream) {  // adds to what the table holds
    gpu::LaunchTabulate(on_device->data(), static_cast<uint32_t>(on_device->size()), 1.0f,
                        table->data(), stream);
  };
}

// Registers benchmarks that share arrays. `kernel` is "Kernel/format/mode".
class Registry {
 public:
  Registry(int device, size_t elements) : arrays_(std::make_shared<GpuArrays>(device, elements)) {}

  void Add(const std::string& kernel, size_t bytes, const Prepare& prepare) const {
    for (const DataSet data : kDataSets) {
      std::string name = "gpu/" + kernel + "/DRAM/";
      name += DataSetName(data);
      const auto run = [=, arrays = arrays_](benchmark::State& state) {
        Run(state, *arrays, prepare, data, bytes);
      };
      benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime();
    }
  }

 private:
  std::shared_ptr<GpuArrays> arrays_;
};

void AddFormat(const std::string& name, const Registry& registry) {
  const Format format = ParseFormat(name).format;
  for (const auto& [rounding, mode_name] : EnumNames(Rounding{})) {
    const Conversion conversion = {format, rounding};
    const std::string mode(mode_name);
    registry.Add("Encode/" + name + "/" + mode, 6,
                 [=](auto& arrays, auto data) { return PrepareEncode(conversion, arrays, data); });
  }
  registry.Add("Decode/" + name + "/-", 6,
               [=](auto& arrays, auto data) { return PrepareDecode(format, arrays, data); });
}

}  // namespace

void RegisterGpuKernels(int device, size_t elements) {
  gpu::OpenDevice(device);  // throws, and says why
  for (const gpu::DeviceInfo& info : gpu::Devices().devices) {
    if (info.index == device) benchmark::AddCustomContext("gpu", info.name);
  }
  const Registry registry(device, elements);
  registry.Add("Copy/-/-", 8, PrepareCopy);
  for (const std::string_view format : kDefaultFormats) AddFormat(std::string(format), registry);
  registry.Add("Tabulate/-/-", 4, PrepareTabulate);
}

}  // namespace dlsim::bench
