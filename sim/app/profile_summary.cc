// SPDX-License-Identifier: Apache-2.0
#include "sim/app/profile_summary.h"

#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "dlsim/error.h"
#include "sim/app/conversion_options.h"
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

}  // namespace

std::string FormatSummary(const std::string& path, const ProfileReader& profile) {
  const uint64_t trace = profile.trace_bytes(), own = profile.file_bytes();
  const std::string ratio =
      trace == 0 ? ""
                 : fmt::format(" of a trace of {} ({})", Bytes(trace),
                               Percent(static_cast<double>(own) / static_cast<double>(trace)));
  const ProfileSettings& settings = profile.settings();
  std::string scaled;
  for (const NamedScaledFormat& format : settings.scaled) scaled += format.name + ", ";
  return fmt::format("{}: {}, {}{}; exact for {}{}\n", Printable(path), FormatSteps(profile),
                     Bytes(own), ratio, scaled, DescribeLadder(settings.ladder, ScaleList::kEnds));
}

Json JsonSummary(const std::string& path, const ProfileReader& profile) {
  const ProfileSettings& settings = profile.settings();
  const size_t steps = profile.step_count();
  Json object = {{"schema", "dlsim.profile-report/1"},
                 {"profile", path},
                 {"steps", steps},
                 {"first_step", steps > 0 ? Json(profile.step_number(0)) : Json()},
                 {"last_step", steps > 0 ? Json(profile.step_number(steps - 1)) : Json()},
                 {"trace_bytes", profile.trace_bytes()},
                 {"profile_bytes", profile.file_bytes()},
                 {"edges", profile.edges().bits().size()},
                 {"tensors", settings.tensors},
                 {"accumulate", NameOf(settings.accumulation)},
                 {"grad_accum_steps", settings.accumulate_steps}};
  object["scaled_formats"] = ScaledNames(settings);
  object.update(LadderNames(settings.ladder));
  for (const float scale : settings.ladder.scales) object["scales"].push_back(scale);
  return object;
}

}  // namespace dlsim::sim
