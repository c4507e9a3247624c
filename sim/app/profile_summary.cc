// SPDX-License-Identifier: Apache-2.0
#include "sim/app/profile_summary.h"

#include <fmt/format.h>

#include <cstddef>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "sim/base/source_text.h"

namespace dlsim::sim {
namespace {

std::string FormatSteps(const ProfileReader& profile) {
  const size_t count = profile.step_count();
  if (count == 0) return "no steps";
  if (count == 1) return fmt::format("1 step ({})", profile.step_number(0));
  return fmt::format("{} steps ({} to {})", count, profile.step_number(0),
                     profile.step_number(count - 1));
}

// Size of the files that the steps were made from.
uint64_t RecordedBytes(const ProfileReader& profile) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < profile.step_count(); ++i) {
    for (const RecordedFile& file : profile.LoadHead(i).files) bytes += file.bytes;
  }
  return bytes;
}

}  // namespace

std::string FormatSummary(const ProfileReader& profile) {
  const uint64_t trace = RecordedBytes(profile), own = profile.file_bytes();
  const std::string ratio =
      trace == 0 ? ""
                 : fmt::format(" of a trace of {} ({})", Bytes(trace),
                               Percent(static_cast<double>(own) / static_cast<double>(trace)));
  std::string also;
  for (const float mantissa : profile.settings().mantissas) {
    also += fmt::format(", loss scales of {} * 2^k", mantissa);
  }
  for (const NamedScaledFormat& format : profile.settings().scaled) also += ", " + format.name;
  return fmt::format("{}: {}, {}{}{}{}\n", Printable(profile.folder()), FormatSteps(profile),
                     Bytes(own), ratio, also.empty() ? "" : "; also for",
                     also.substr(also.empty() ? 0 : 1));
}

namespace {

// What is said of a profile.
struct ProfileRecord {
  std::string folder;
  std::vector<int64_t> steps;
  uint64_t trace_bytes = 0, profile_bytes = 0;
  ProfileSettings settings;
};

inline void Rows(const ProfileRecord& of, RowSink& row) {
  const bool none = of.steps.empty();
  row("schema", "dlsim.profile-report/1");
  row("profile", of.folder, "the folder");
  row("steps", of.steps.size(), "that it has");
  row("first_step", none ? nullptr : &of.steps.front(), "recorded number");
  row("last_step", none ? nullptr : &of.steps.back(), "recorded number");
  row("trace_bytes", of.trace_bytes, "size of the files that it was made from");
  row("profile_bytes", of.profile_bytes, "its size");
  row("tensors", of.settings.tensors, "the pattern of those that it has");
  row("accumulate", of.settings.accumulation, "rule for micro-steps");
  row("grad_accum_steps", of.settings.accumulate_steps, "recorded steps that make one");
  ProfileNames(of.settings, row);
}

}  // namespace

JsonPart JsonSummary(const ProfileReader& profile) {
  ProfileRecord record = {
      profile.folder(), {}, RecordedBytes(profile), profile.file_bytes(), profile.settings()};
  for (size_t i = 0; i < profile.step_count(); ++i) record.steps.push_back(profile.step_number(i));
  return JsonOf(record);
}

void AddProfileKeys(std::vector<KeyTable>& tables) { AddKeys<ProfileRecord>("", tables); }

}  // namespace dlsim::sim
