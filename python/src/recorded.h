// SPDX-License-Identifier: Apache-2.0
// What the readers of traces and of profiles give to Python alike.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/step_tables.h"
#include "dlsim/trace.h"
#include "python/src/bindings.h"
#include "src/table/tabulate.h"

namespace dlsim::python {

// Text of a file or the name of one, which may hold bytes that are not UTF-8.
inline nb::str TextOf(const std::string& text) {
  const auto size = static_cast<Py_ssize_t>(text.size());
  return nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), size, "surrogateescape"));
}

// Paths as os.fsencode gives them.
std::vector<std::string> PathsOf(const std::vector<nb::bytes>& paths);

nb::dict DictOf(const std::map<std::string, std::string>& texts);

// (name, role, type, shape)
nb::tuple HeaderOf(const TensorInfo& tensor);
nb::list HeadersOf(const std::vector<TensorRef>& tensors);

// Gives a vector to NumPy, which then owns it.
template <class T>
nb::ndarray<nb::numpy, T> ArrayOf(std::vector<T> values, std::vector<size_t> shape) {
  auto* const owned = new std::vector<T>(std::move(values));
  const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(owned->data(), shape.size(), shape.data(), owner);
}

// Columns of exponent counts: one per exponent, then these.
enum ExponentColumn : size_t { kZeros = kExponents, kNan, kInf, kElements, kExponentColumns };

// One row per tensor, summed over parts.
nb::ndarray<nb::numpy, int64_t> ExponentCounts(const StepTables& step);

}  // namespace dlsim::python
