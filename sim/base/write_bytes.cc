// SPDX-License-Identifier: Apache-2.0
#include "sim/base/write_bytes.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace dlsim::sim {

// Signals interrupt a write, and a pipe may have been opened not to block.
bool WriteBytes(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor, bytes.data(), bytes.size());
    if (count == 0) errno = ENOSPC;  // nothing would ever be written
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd writable = {.fd = descriptor, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace dlsim::sim
