// SPDX-License-Identifier: Apache-2.0
#include "python/src/recorded.h"

#include <nanobind/stl/string.h>

#include <bit>

#include "dlsim/error.h"

namespace nb = nanobind;

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

nb::tuple HeaderOf(const std::string& name, Role role, DType dtype,
                   const std::vector<uint64_t>& shape) {
  nb::list sizes;
  for (const uint64_t size : shape) sizes.append(size);
  return nb::make_tuple(TextOf(name), std::string(NameOf(role)), std::string(NameOf(dtype)),
                        nb::tuple(sizes));
}

size_t ExponentIndex(uint32_t magnitude) {
  const size_t biased = magnitude >> 23;
  if (biased == 0) return static_cast<size_t>(std::bit_width(magnitude)) - 1;
  return 22 + biased;
}

const HistogramEdges& ExponentEdges() {
  static const HistogramEdges edges = [] {
    std::vector<uint32_t> subnormal;
    for (int bit = 0; bit < 23; ++bit) subnormal.push_back(uint32_t{1} << bit);
    return HistogramEdges(subnormal);
  }();
  return edges;
}

nb::ndarray<nb::numpy, int64_t> ExponentCounts(const ProfileStep& step,
                                               const HistogramEdges& edges) {
  const size_t tensors = step.tensors.size();
  std::vector<int64_t> counts(tensors * kExponentColumns);
  const auto add = [](int64_t& to, uint64_t count) { to += static_cast<int64_t>(count); };
  for (const std::vector<Histogram>& part : step.histograms) {
    for (size_t t = 0; t < tensors; ++t) {
      int64_t* const row = counts.data() + t * kExponentColumns;
      const Histogram& histogram = part[t];
      for (const SignHistogram& sign : histogram.signs) {
        for (const HistogramBin& bin : sign.bins) {
          add(row[ExponentIndex(edges.bits()[bin.bin])], bin.count);
        }
      }
      add(row[kZeros], histogram.zeros);
      add(row[kNan], histogram.nan);
      add(row[kInf], histogram.inf);
      add(row[kElements], histogram.elements);
    }
  }
  return ArrayOf(std::move(counts), {tensors, kExponentColumns});
}

}  // namespace dlsim::python
