// SPDX-License-Identifier: Apache-2.0
#include "sim/base/text_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "src/base/file.h"

namespace dlsim::sim {
namespace {

// A file that is closed at the end, -1 for none.
struct Closed {
  int descriptor;

  ~Closed() {
    if (descriptor >= 0) close(descriptor);
  }
};

}  // namespace

std::string InputName(const std::string& path) { return path == "-" ? "standard input" : path; }

std::string ReadTextInput(const std::string& path, uint64_t max_bytes) {
  const std::string place = Printable(InputName(path));
  const bool is_standard = path == "-";
  const int descriptor =
      is_standard ? CurrentCaller().input : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto fail = [&] { FailToRead(place, "cannot be read", {errno, std::generic_category()}); };
  if (descriptor < 0 && is_standard) throw InputError(place, "the caller does not provide it");
  if (descriptor < 0) fail();
  const Closed closed{is_standard ? -1 : descriptor};
  std::string text;
  std::array<char, 1 << 16> buffer;
  for (;;) {
    const ssize_t count = read(descriptor, buffer.data(), buffer.size());
    if (count == 0) return text;
    if (count < 0 && errno != EINTR) fail();
    if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() <= max_bytes) continue;
    throw InputError(place, "too large", "at most " + std::to_string(max_bytes) + " bytes");
  }
}

}  // namespace dlsim::sim
