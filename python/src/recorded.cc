// SPDX-License-Identifier: Apache-2.0
#include "python/src/recorded.h"

#include <nanobind/stl/string.h>

#include <cmath>
#include <span>

#include "dlsim/error.h"

namespace dlsim::python {

std::vector<std::string> PathsOf(const std::vector<nb::bytes>& paths) {
  std::vector<std::string> result;
  for (const nb::bytes& path : paths) {
    result.emplace_back(path.c_str(), path.size());
    if (result.back().find('\0') != std::string::npos) {
      throw UsageError(Quoted(result.back()), "a path holds a zero byte");
    }
  }
  return result;
}

nb::dict DictOf(const std::map<std::string, std::string>& texts) {
  nb::dict dict;
  for (const auto& [key, value] : texts) dict[TextOf(key)] = TextOf(value);
  return dict;
}

nb::tuple HeaderOf(const TensorInfo& tensor) {
  nb::list sizes;
  for (const uint64_t size : tensor.shape) sizes.append(size);
  return nb::make_tuple(TextOf(tensor.name), std::string(NameOf(tensor.role)),
                        std::string(NameOf(tensor.dtype)), nb::tuple(sizes));
}

nb::list HeadersOf(const std::vector<TensorRef>& tensors) {
  nb::list headers;
  for (const TensorRef& tensor : tensors) headers.append(HeaderOf(*tensor));
  return headers;
}

nb::ndarray<nb::numpy, int64_t> ExponentCounts(const StepTables& step) {
  const size_t tensors = step.tensors.size();
  std::vector<int64_t> counts(tensors * kExponentColumns);
  for (const std::vector<TensorTable>& part : step.parts) {
    for (size_t t = 0; t < tensors; ++t) {
      const auto row = std::span(counts).subspan(t * kExponentColumns, kExponentColumns);
      const auto add = [&](size_t column, uint64_t count) {
        row[column] += static_cast<int64_t>(count);
      };
      const auto of = [](int exponent) { return static_cast<size_t>(exponent - kLowestExponent); };
      const TensorTable& table = part[t];
      for (const Binade& binade : table.binades) add(of(binade.exponent), binade.count);
      for (const float value : table.values) add(of(std::ilogb(value)), 1);
      add(kZeros, table.zeros);
      add(kNan, table.nan);
      add(kInf, table.inf);
      add(kElements, table.elements);
    }
  }
  return ArrayOf(std::move(counts), {tensors, kExponentColumns});
}

}  // namespace dlsim::python
