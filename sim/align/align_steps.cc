// SPDX-License-Identifier: Apache-2.0
#include "sim/align/align_steps.h"

#include <algorithm>

namespace dlsim::sim {
namespace {

AlignedSteps AlignByIndex(std::span<const int64_t> a, std::span<const int64_t> b) {
  AlignedSteps aligned;
  const size_t common = std::min(a.size(), b.size());
  for (size_t i = 0; i < common; ++i) aligned.pairs.push_back({i, i});
  aligned.only_a.assign(a.begin() + static_cast<ptrdiff_t>(common), a.end());
  aligned.only_b.assign(b.begin() + static_cast<ptrdiff_t>(common), b.end());
  return aligned;
}

}  // namespace

AlignedSteps AlignSteps(std::span<const int64_t> a, std::span<const int64_t> b,
                        Alignment alignment) {
  if (alignment == Alignment::kIndex) return AlignByIndex(a, b);
  AlignedSteps aligned;
  size_t i = 0, k = 0;
  while (i < a.size() || k < b.size()) {
    if (k == b.size() || (i < a.size() && a[i] < b[k])) {
      aligned.only_a.push_back(a[i++]);
    } else if (i == a.size() || b[k] < a[i]) {
      aligned.only_b.push_back(b[k++]);
    } else {
      aligned.pairs.push_back({i++, k++});
    }
  }
  return aligned;
}

}  // namespace dlsim::sim
