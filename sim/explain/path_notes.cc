// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/path_notes.h"

#include <fmt/format.h>

#include <algorithm>

namespace dlsim::sim {
namespace {

void NoteNorms(const std::vector<LogEvent>& events, std::vector<std::string>& notes) {
  const auto is_bad = [](const LogEvent& event) { return event.norm_is_nonfinite; };
  const auto count = std::ranges::count_if(events, is_bad);
  if (count == 0) return;
  notes.push_back(fmt::format(
      "the gradient's norm is not finite in {} that {} not skipped, from line {} on: no loss "
      "scale helps",
      count == 1 ? "one line" : fmt::format("{} lines", count),
      count == 1 ? "reports a step" : "report steps", std::ranges::find_if(events, is_bad)->line));
}

}  // namespace

void AddPathNotes(const LeftOut& left_out, const std::vector<LogEvent>& events,
                  std::vector<std::string>& notes) {
  NoteNorms(events, notes);
  if (left_out.epochs > 0) {
    notes.push_back(
        "step numbers start over with each epoch: each epoch is assumed to end at its last line, "
        "so "
        "there may be more steps, and longer growth intervals");
  }
  if (left_out.stretches > 0) {
    notes.push_back(
        fmt::format("the log goes back, as after a resume: {} repeated stretches are ignored",
                    left_out.stretches));
  }
  if (left_out.surplus > 0) {
    notes.push_back(fmt::format(
        "there are more overflow messages than steps between some lines: {} are ignored",
        left_out.surplus));
  }
  if (left_out.uncounted > 0) {
    notes.push_back(
        "the scale falls where the log counts 0 skipped steps: each halving is assumed to be an "
        "overflow");
  } else if (left_out.presumed > 0) {
    notes.push_back(
        "the log does not say which steps were skipped: each fall of the scale is assumed to be an "
        "overflow");
  }
}

}  // namespace dlsim::sim
