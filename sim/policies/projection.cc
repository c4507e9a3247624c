// SPDX-License-Identifier: Apache-2.0
#include "sim/policies/projection.h"

#include <cmath>

#include "sim/base/quantity.h"

namespace dlsim::sim {

void NoteDeadStart(std::string_view name, double scale, std::vector<std::string>& notes) {
  if (scale == 0) {
    notes.push_back(
        std::string(name).append(" 0 is taken as it is, not as the default: the scale stays 0"));
  } else if (!std::isfinite(scale)) {
    notes.push_back(std::string(name).append(" is infinite as float32 and can never come back"));
  }
}

void NoteZero(std::optional<int64_t> overflows, std::vector<std::string>& notes) {
  if (!overflows) return;
  notes.push_back(std::to_string(*overflows) +
                  " overflows in a row make the scale 0, which never grows again");
}

void NoteDivisor(std::string_view name, double factor, std::vector<std::string>& notes) {
  if (factor > 1) return;
  notes.push_back(
      std::string(name).append(factor < 0 ? " below 0: the scale changes its sign"
                                          : " of 1 or less: an overflow does not lower the scale"));
}

void NoteInfinity(std::optional<int64_t> clean_steps, std::vector<std::string>& notes) {
  if (!clean_steps) return;
  notes.push_back(std::to_string(*clean_steps) +
                  " clean steps make the scale infinite, and it can never come back");
}

void NoteNoCeiling(std::optional<int64_t> clean_steps, std::vector<std::string>& notes) {
  if (clean_steps) {
    NoteInfinity(clean_steps, notes);
  } else {
    notes.push_back("no ceiling: the scale can grow to infinity, and it can never come back");
  }
}

void NoteCeiling(std::string_view name, double ceiling, std::optional<int64_t> clean_steps,
                 std::vector<std::string>& notes) {
  if (!clean_steps || IsPowerOfTwo(ceiling)) return;
  notes.push_back(std::to_string(*clean_steps) + " clean steps bring the scale to " +
                  std::string(name) + ", not a power of two: neither are later scales");
}

}  // namespace dlsim::sim
