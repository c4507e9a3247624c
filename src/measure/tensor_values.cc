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
  std::vector<std::byte> buffer(values.size() * size);
  for (uint64_t begin = 0; begin < tensor.elements; begin += kChunkElements) {
    const size_t count = std::min<uint64_t>(kChunkElements, tensor.elements - begin);
    const std::byte* const bytes =
        tensor.Bytes(begin * size, std::span(buffer).first(count * size));
    LoadFloats(tensor.dtype, bytes, recording.CarriedScale(tensor.role),
               std::span(values).first(count));
    visit(begin, std::span<const float>(values).first(count));
  }
}

}  // namespace dlsim
