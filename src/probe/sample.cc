// SPDX-License-Identifier: Apache-2.0
// Which elements of a parameter a probe follows.
#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/probe.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {

ProbeTensor SampleOf(std::string name, std::vector<uint64_t> shape, DType dtype,
                     uint64_t elements) {
  constexpr uint64_t kRun = 16;
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

uint64_t ProbeHead::FollowedCount() const {
  uint64_t count = 0;
  for (const ProbeTensor& tensor : tensors) count += tensor.count;
  return count;
}

}  // namespace dlsim
