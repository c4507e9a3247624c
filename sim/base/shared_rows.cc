// SPDX-License-Identifier: Apache-2.0
#include "sim/base/shared_rows.h"

#include <fmt/format.h>

#include "dlsim/error.h"

namespace dlsim::sim {

std::string DescribeProfile(const ProfileFacts& profile, uint64_t file_bytes) {
  const ProfileSettings& settings = profile.settings;
  std::string text =
      fmt::format("trace bytes: {} ({:.3g} times the profile)\n", profile.trace_bytes,
                  static_cast<double>(profile.trace_bytes) / static_cast<double>(file_bytes));
  text += fmt::format("accumulation: {}", NameOf(settings.accumulation));
  if (settings.accumulate_steps > 1) {
    text += fmt::format(", {} recorded steps make one", settings.accumulate_steps);
  }
  text += "\n";
  const auto add = [&](const char* title, const auto& items, const auto& text_of) {
    if (items.empty()) return;
    std::string list;
    for (const auto& item : items) list += (list.empty() ? "" : ", ") + text_of(item);
    text += std::string(title) + ": " + list + "\n";
  };
  add("loss scales next to powers of two", settings.mantissas,
      [](float mantissa) { return fmt::format("{} * 2^k", mantissa); });
  add("scaled formats", settings.scaled, [](const NamedScaledFormat& one) { return one.name; });
  if (settings.tensors != "*") text += "tensors: " + Quoted(settings.tensors) + "\n";
  return text;
}

inline void Rows(const ProfileFacts& of, RowSink& row) {
  row("profile", true, "only if it is a profile: true");
  row("trace_bytes", of.trace_bytes, "about the size of the files that the profile was made from");
  ProfileNames(of.settings, row);
}

inline void Rows(const SourceFacts& of, RowSink& row) {
  row("steps", of.steps, "number of recorded steps");
  row("first_step", of.first_step, "recorded step number");
  row("last_step", of.last_step, "recorded step number");
  row("file_bytes", of.file_bytes, "size of all files");
  row("description", of.description,
      "the text fields of trace.json; for several data-parallel ranks also `ranks`, their "
      "number, and `rank_reduction`, `mean` or `sum`");
  row.Group(of.profile, kLeftOutIfEmpty);
}

TellRows RowsOf(const SourceFacts& facts, std::span<const std::string> paths) {
  return [&facts, paths](RowSink& row) {
    row("paths", paths, "as given");
    row.Group(facts);
  };
}

void AddTraceKeys(std::vector<KeyTable>& tables) {
  AddKeys("trace", RowsOf(SourceFacts(), {}), tables);
}

}  // namespace dlsim::sim
