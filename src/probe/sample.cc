// SPDX-License-Identifier: Apache-2.0
// Which elements of a parameter a probe follows.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "dlsim/probe.h"
#include "src/base/check.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr uint64_t kRun = 16;

template <class T>
void ReadRuns(const ProbeTensor& tensor, const std::byte* values, std::span<T> out) {
  const uint64_t stride = tensor.stride * sizeof(T);
  // A size that the compiler knows saves a call for each run.
  for (; tensor.run == kRun && out.size() > kRun; values += stride, out = out.subspan(kRun)) {
    std::memcpy(out.data(), values, kRun * sizeof(T));
  }
  for (; out.size() > tensor.run; values += stride, out = out.subspan(tensor.run)) {
    std::memcpy(out.data(), values, tensor.run * sizeof(T));
  }
  std::memcpy(out.data(), values, out.size_bytes());
}

}  // namespace

ProbeTensor SampleOf(std::string name, std::vector<uint64_t> shape, DType dtype,
                     uint64_t elements) {
  const std::string place = TensorPlace("probe", name);
  if (dtype == DType::kF64) throw UsageError(place, "is float64", "float32 or 16 bits");
  const std::optional<uint64_t> all = ElementCount(shape, 1);
  if (!all || *all == 0 || elements == 0) throw UsageError(place, "has no elements to be followed");
  const uint64_t columns = shape.empty() ? 1 : *all / shape[0];
  ProbeTensor tensor = {std::move(name), std::move(shape), dtype, *all, *all, *all};
  if (*all <= elements) return tensor;
  tensor.run = std::min(kRun, elements);
  tensor.count = elements / tensor.run * tensor.run;
  tensor.stride = *all;
  if (tensor.count == tensor.run) return tensor;
  const uint64_t largest = (*all - tensor.run) / (tensor.count / tensor.run - 1);
  tensor.stride = largest;
  while (tensor.stride > tensor.run && std::gcd(tensor.stride, columns) != 1) --tensor.stride;
  if (tensor.stride == tensor.run) tensor.stride = largest;
  return tensor;
}

void ReadSample(const ProbeTensor& tensor, const std::byte* values, std::span<float> out) {
  DLSIM_CHECK(out.size() == tensor.count && tensor.dtype != DType::kF64);
  if (tensor.dtype == DType::kF32) return ReadRuns(tensor, values, out);
  std::vector<uint16_t> codes(out.size());
  ReadRuns(tensor, values, std::span(codes));
  DecodeArray(tensor.dtype == DType::kF16 ? kFp16 : kBf16, std::span<const uint16_t>(codes), out);
}

uint64_t ProbeHead::FollowedCount() const {
  uint64_t count = 0;
  for (const ProbeTensor& tensor : tensors) count += tensor.count;
  return count;
}

}  // namespace dlsim
