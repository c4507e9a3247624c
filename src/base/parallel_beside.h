// SPDX-License-Identifier: Apache-2.0
// Parallel work that also does what waits beside it.
#pragma once

#include <cstddef>
#include <functional>

#include "src/base/beside.h"
#include "src/base/parallel.h"

namespace dlsim {

// ParallelFor, which also does what waits beside: first, so that bodies fill the other threads
// meanwhile.
template <class Body>
void ParallelForBeside(size_t count, const Body& body) {
  const std::function<void()>* const beside = TakeBeside();
  const size_t extra = beside == nullptr ? 0 : 1;
  ParallelFor(count + extra, [&](size_t i) { i < extra ? (*beside)() : body(i - extra); });
}

}  // namespace dlsim
