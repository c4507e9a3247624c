// SPDX-License-Identifier: Apache-2.0
#include "sim/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>

namespace dlsim::sim {
namespace {

bool IsTerminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && (term == nullptr || std::string_view(term) != "dumb");
}

// Returns what DLSIM_PROGRESS_FD names, or -1.
int DescriptorOfCaller() {
  const char* const text = std::getenv("DLSIM_PROGRESS_FD");
  if (text == nullptr) return -1;
  const std::string_view digits = text;
  int descriptor = -1;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), descriptor);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  return is_number && descriptor > STDERR_FILENO ? descriptor : -1;
}

std::string Describe(const std::string& label, uint64_t done, uint64_t total, ProgressUnit unit,
                     double seconds) {
  const double fraction =
      total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const double left = rate > 0 ? static_cast<double>(total - std::min(done, total)) / rate : 0;
  std::string speed;
  if (unit == ProgressUnit::kBytes) speed = fmt::format("{:.2f} GB/s  ", rate / 1e9);
  if (unit == ProgressUnit::kPolicySteps) {
    speed = fmt::format("{:.3g} million policy-steps/s  ", rate / 1e6);
  }
  return fmt::format("{} {:3.0f} %  {}{:.0f} s left", label, 100 * fraction, speed, left);
}

}  // namespace

Progress::Progress(std::string label, uint64_t total, ProgressMode mode, ProgressUnit unit)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      descriptor_(DescriptorOfCaller()),
      quiet_(mode == ProgressMode::kQuiet),
      terminal_(descriptor_ >= 0 || IsTerminal()),
      start_(Clock::now()),
      next_(start_ + (terminal_ ? std::chrono::milliseconds(500) : std::chrono::seconds(10))) {}

Progress::~Progress() {
  if (drawn_ && terminal_) Write(descriptor_ >= 0 ? "\n" : "\r\x1b[K");
}

// What is lost of it is no error.
void Progress::Write(const std::string& text) const {
  if (descriptor_ < 0) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  } else {
    [[maybe_unused]] const ssize_t written = write(descriptor_, text.data(), text.size());
  }
}

void Progress::Update(uint64_t done) {
  const Clock::time_point now = Clock::now();
  if (quiet_ || now < next_) return;
  next_ = now + (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10));
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string line = Describe(label_, done, total_, unit_, seconds);
  if (descriptor_ >= 0) {
    Write(fmt::format("{} {} {}\n", done, total_, line));
  } else {
    Write(terminal_ ? "\r\x1b[K" + line : line + "\n");
  }
  drawn_ = true;
}

}  // namespace dlsim::sim
