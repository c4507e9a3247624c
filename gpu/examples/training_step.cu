// SPDX-License-Identifier: Apache-2.0
// Encodes the gradients of every training step on the device, without a wait, and tabulates them
// now and then: a table tells what any format would do to them. The step here is a stand-in.
#include <cuda_runtime.h>

#include <cstdio>
#include <span>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/gpu.h"
#include "dlsim/table.h"

namespace {

constexpr int kSteps = 10;
constexpr float kLossScale = 1024.0f;
constexpr uint64_t kCount = 1 << 20;

void Check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw dlsim::InputError(call, cudaGetErrorString(status));
}

// What a framework has: gradients in memory that stays where it is, and a stream.
struct Model {
  Model() {
    Check(cudaStreamCreate(&stream), "cudaStreamCreate");
    Check(cudaMalloc(&gradients, kCount * sizeof(float)), "cudaMalloc");
    Check(cudaMalloc(&codes, kCount * sizeof(uint16_t)), "cudaMalloc");
  }
  ~Model() {
    static_cast<void>(cudaFree(codes));
    static_cast<void>(cudaFree(gradients));
    static_cast<void>(cudaStreamDestroy(stream));
  }

  cudaStream_t stream = nullptr;
  float* gradients = nullptr;
  uint16_t* codes = nullptr;
};

__global__ void BackwardKernel(int step, float* gradients, uint64_t count) {
  const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) gradients[i] = static_cast<float>(i % 1000) * 1e-9f / static_cast<float>(step + 1);
}

void Backward(int step, const Model& model) {
  constexpr unsigned kThreads = 256;
  BackwardKernel<<<(kCount + kThreads - 1) / kThreads, kThreads, 0, model.stream>>>(
      step, model.gradients, kCount);
  Check(cudaGetLastError(), "BackwardKernel");
}

// Two parameters' gradients, and where their codes go.
std::vector<dlsim::gpu::DeviceTensor> Describe(const Model& model) {
  std::vector<dlsim::gpu::DeviceTensor> tensors(2);
  for (uint32_t t = 0; t < 2; ++t) {
    tensors[t].values = model.gradients + t * kCount / 2;
    tensors[t].codes = model.codes + t * kCount / 2;
    tensors[t].elements = kCount / 2;
  }
  return tensors;
}

void Encode(std::span<const dlsim::gpu::DeviceTensor> tensors, dlsim::gpu::Stream stream) {
  for (const dlsim::gpu::DeviceTensor& tensor : tensors) {
    dlsim::gpu::Encode({{dlsim::kFp16}, kLossScale, {}, 0}, tensor, stream);
  }
}

void Print(int step, std::span<const dlsim::TensorTable> tables) {
  for (size_t t = 0; t < tables.size(); ++t) {
    for (const dlsim::Format& format : {dlsim::kFp16, dlsim::kCb16}) {
      const auto stats = dlsim::Ask(tables[t], {format}, kLossScale);
      if (!stats) continue;
      std::printf("step %d, tensor %zu: %.2f %% underflow, %llu overflow\n", step, t,
                  100 * stats->underflow_fraction(),
                  static_cast<unsigned long long>(stats->overflow));
    }
  }
}

void Train(const Model& model) {
  const std::vector<dlsim::gpu::DeviceTensor> tensors = Describe(model);
  for (int step = 0; step < kSteps; ++step) {
    // Every step: launches only.
    Backward(step, model);
    Encode(tensors, model.stream);
    // Tables are needed now and then, and only that waits.
    if (step % 5 == 4) Print(step, dlsim::gpu::Tabulate(tensors, model.stream));
  }
}

}  // namespace

int main() {
  try {
    Train(Model());
    return 0;
  } catch (const dlsim::Error& error) {
    std::fprintf(stderr, "training_step: %s\n", error.what());
    return static_cast<int>(error.kind());
  }
}
