// SPDX-License-Identifier: Apache-2.0
#include "sim/output/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace dlsim {
namespace {

bool IsTerminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && (term == nullptr || std::string_view(term) != "dumb");
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
      quiet_(mode == ProgressMode::kQuiet),
      terminal_(IsTerminal()),
      start_(Clock::now()),
      next_(start_ + (terminal_ ? std::chrono::milliseconds(500) : std::chrono::seconds(10))) {}

Progress::~Progress() {
  if (drawn_ && terminal_) std::fputs("\r\x1b[K", stderr);
}

void Progress::Update(uint64_t done) {
  const Clock::time_point now = Clock::now();
  if (quiet_ || now < next_) return;
  next_ = now + (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10));
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string line = Describe(label_, done, total_, unit_, seconds);
  std::fputs((terminal_ ? "\r\x1b[K" + line : line + "\n").c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace dlsim
