// SPDX-License-Identifier: Apache-2.0
#include "sim/base/text_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "dlsim/error.h"
#include "sim/base/caller.h"
#include "src/trace/read_only_file.h"

namespace dlsim::sim {
namespace {

class OpenInput {
 public:
  explicit OpenInput(const std::string& path)
      : place_(Printable(InputName(path))),
        opened_(path != "-"),
        descriptor_(opened_ ? open(path.c_str(), O_RDONLY | O_CLOEXEC) : CurrentCaller().input) {
    if (!opened_ && descriptor_ < 0) throw InputError(place_, "the caller does not provide it");
    if (descriptor_ < 0) Fail();
  }
  ~OpenInput() {
    if (opened_) close(descriptor_);
  }
  OpenInput(const OpenInput&) = delete;
  OpenInput& operator=(const OpenInput&) = delete;

  const std::string& place() const { return place_; }

  // Appends what comes next; false at the end.
  bool AppendTo(std::string& text) const {
    std::array<char, 1 << 16> buffer;
    const ssize_t count = read(descriptor_, buffer.data(), buffer.size());
    if (count < 0 && errno != EINTR) Fail();
    if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
    return count != 0;
  }

 private:
  [[noreturn]] void Fail() const {
    FailToRead(place_, "cannot be read", {errno, std::generic_category()});
  }

  std::string place_;
  bool opened_;
  int descriptor_;
};

}  // namespace

std::string InputName(const std::string& path) { return path == "-" ? "standard input" : path; }

std::string ReadTextInput(const std::string& path, uint64_t max_bytes) {
  const OpenInput input(path);
  std::string text;
  while (input.AppendTo(text)) {
    if (text.size() <= max_bytes) continue;
    throw InputError(input.place(), "too large", "at most " + std::to_string(max_bytes) + " bytes");
  }
  return text;
}

}  // namespace dlsim::sim
