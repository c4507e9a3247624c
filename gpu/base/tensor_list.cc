// SPDX-License-Identifier: Apache-2.0
#include "dlsim/gpu/tensor_list.h"

#include <algorithm>
#include <string>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/measure.h"
#include "gpu/base/check_cuda.h"
#include "gpu/base/device_buffer.h"
#include "gpu/base/device_code.h"

namespace dlsim::gpu {
namespace {

constexpr const char* kCall = "dlsim::gpu::TensorList";

std::string NameOf(size_t tensor, const char* what) {
  return what + std::string(" of tensor ") + std::to_string(tensor);
}

// Returns the device of a tensor with elements, after checking its pointers.
int CheckTensor(const DeviceTensor& tensor, size_t index) {
  const size_t alignment = DTypeSize(tensor.dtype);
  const int device = CheckPointer(kCall, NameOf(index, "values"), tensor.values, alignment);
  if (tensor.codes == nullptr) return device;
  const int codes_device =
      CheckPointer(kCall, NameOf(index, "codes"), tensor.codes, sizeof(uint16_t));
  if (codes_device == device) return device;
  throw InputError(kCall, NameOf(index, "codes") + " are on another device than its values",
                   "device " + std::to_string(device), "device " + std::to_string(codes_device));
}

bool HoldsCodes(const DeviceTensor& tensor, size_t code_bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.codes);
  return tensor.elements == 0 || (address != 0 && address % code_bytes == 0);
}

// Returns the device of all tensors; the current one if none has elements.
int CheckTensors(std::span<const DeviceTensor> tensors) {
  int device = -1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].elements == 0) continue;
    const int other = CheckTensor(tensors[i], i);
    if (device >= 0 && other != device) {
      throw InputError(kCall, NameOf(i, "values") + " are on another device than those before",
                       "device " + std::to_string(device), "device " + std::to_string(other));
    }
    device = other;
  }
  if (device < 0) CheckCuda(cudaGetDevice(&device), kCall);
  return device;
}

DeviceBuffer<Piece> ToDevice(std::span<const Piece> pieces, int device) {
  const CurrentDevice current(device);
  DeviceBuffer<Piece> buffer(pieces.size());
  if (!pieces.empty()) Upload(pieces, buffer);
  return buffer;
}

}  // namespace

struct TensorList::State {
  int device = 0;
  size_t tensor_count = 0;
  uint64_t element_count = 0;
  DeviceBuffer<Piece> pieces;
  // The first tensor without memory for codes of 2 and of 4 bytes, or tensor_count.
  size_t without_codes2 = 0;
  size_t without_codes4 = 0;
};

TensorList::TensorList(std::span<const DeviceTensor> tensors) : state_(std::make_unique<State>()) {
  state_->device = CheckTensors(tensors);
  state_->tensor_count = tensors.size();
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    state_->element_count += tensors[i].elements;
    Piece whole = PieceOf(tensors[i]);
    whole.tensor = static_cast<uint32_t>(i);
    AppendPieces(whole, tensors[i].elements, pieces);
  }
  const auto first_without = [&](size_t code_bytes) {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const DeviceTensor& t) {
      return !HoldsCodes(t, code_bytes);
    });
    return static_cast<size_t>(found - tensors.begin());
  };
  state_->without_codes2 = first_without(2);
  state_->without_codes4 = first_without(4);
  state_->pieces = ToDevice(pieces, state_->device);
}

TensorList::TensorList(TensorList&&) noexcept = default;
TensorList& TensorList::operator=(TensorList&&) noexcept = default;
TensorList::~TensorList() = default;

size_t TensorList::tensor_count() const { return state_->tensor_count; }
uint64_t TensorList::element_count() const { return state_->element_count; }
int TensorList::device() const { return state_->device; }
const Piece* TensorList::pieces() const { return state_->pieces.data(); }
uint32_t TensorList::piece_count() const { return static_cast<uint32_t>(state_->pieces.size()); }

void TensorList::CheckCodes(std::string_view call, size_t code_bytes) const {
  const size_t without = code_bytes == 2 ? state_->without_codes2 : state_->without_codes4;
  if (without == state_->tensor_count) return;
  throw InputError(call, NameOf(without, "codes") + " are a null pointer or misaligned",
                   "a multiple of " + std::to_string(code_bytes) + " bytes");
}

}  // namespace dlsim::gpu
