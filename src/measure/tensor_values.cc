// SPDX-License-Identifier: Apache-2.0
#include "dlsim/tensor_values.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dlsim/measure.h"
#include "src/base/float_environment.h"
#include "src/measure/load_floats.h"

namespace dlsim {

void VisitValues(const Recording& recording, const TraceTensor& tensor,
                 const std::function<void(uint64_t begin, std::span<const float> values)>& visit) {
  const DefaultFloatEnvironment environment;
  const size_t size = DTypeSize(tensor.dtype);
  std::vector<float> values(std::min<uint64_t>(tensor.elements, kChunkElements));
  std::vector<std::byte> bytes(tensor.mapped == nullptr ? values.size() * size : 0);
  for (uint64_t begin = 0; begin < tensor.elements; begin += kChunkElements) {
    const size_t count = std::min<uint64_t>(kChunkElements, tensor.elements - begin);
    const std::byte* from = bytes.data();
    if (tensor.mapped != nullptr) {
      from = tensor.mapped + begin * size;
    } else {
      tensor.read(begin * size, std::span(bytes).first(count * size));
    }
    LoadFloats(tensor.dtype, from, recording.grad_scale, std::span(values).first(count));
    visit(begin, std::span<const float>(values).first(count));
  }
}

}  // namespace dlsim
