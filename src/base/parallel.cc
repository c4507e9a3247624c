// SPDX-License-Identifier: Apache-2.0
#include "src/base/parallel.h"

#include <pthread.h>

namespace dlsim {
namespace {

bool forked = false;

[[maybe_unused]] const int kRegistered = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

bool InForkedChild() { return forked; }

}  // namespace dlsim
