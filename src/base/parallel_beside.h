// SPDX-License-Identifier: Apache-2.0
// Parallel work that also does what waits beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "src/base/beside.h"
#include "src/base/parallel.h"

namespace dlsim {

// ParallelFor, which also does what waits beside: first, so that bodies fill the other threads
// meanwhile.
template <class Body>
void ParallelForBeside(size_t count, const Body& body, uint64_t elements = kMuchWork) {
  const std::function<void()>* const beside = TakeBeside();
  const size_t extra = beside == nullptr ? 0 : 1;
  const auto both = [&](size_t i) { i < extra ? (*beside)() : body(i - extra); };
  ParallelFor(count + extra, both, elements);
}

}  // namespace dlsim
