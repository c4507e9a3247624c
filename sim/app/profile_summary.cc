// SPDX-License-Identifier: Apache-2.0
#include "sim/app/profile_summary.h"

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>

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

Json JsonSummary(const ProfileReader& profile) {
  const ProfileSettings& settings = profile.settings();
  const size_t steps = profile.step_count();
  Json object = {{"schema", "dlsim.profile-report/1"},
                 {"profile", profile.folder()},
                 {"steps", steps},
                 {"first_step", steps > 0 ? Json(profile.step_number(0)) : Json()},
                 {"last_step", steps > 0 ? Json(profile.step_number(steps - 1)) : Json()},
                 {"trace_bytes", RecordedBytes(profile)},
                 {"profile_bytes", profile.file_bytes()},
                 {"tensors", settings.tensors},
                 {"accumulate", NameOf(settings.accumulation)},
                 {"grad_accum_steps", settings.accumulate_steps}};
  object.update(ProfileNames(settings));
  return object;
}

}  // namespace dlsim::sim
