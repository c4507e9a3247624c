// SPDX-License-Identifier: Apache-2.0
// What is tuned for: a trace, or a profile of one.
#include <algorithm>
#include <utility>

#include "dlsim/error.h"
#include "sim/advice/tuning.h"
#include "sim/replay/profile_source.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {
namespace {

TuneResult TuneFor(const GradientSource& gradients, const TuneRequest& request,
                   const ReplayOptions& options, bool estimated) {
  const TuneSource source = {
      .replay =
          [&](std::vector<ReplayRun> runs) { return Replay(gradients, std::move(runs), options); },
      .step_count = gradients.step_count(),
      .estimated = estimated};
  return Tune(source, request,
              AdviseOn(gradients, request.formats, request.conversion, options.step));
}

}  // namespace

bool HasFormat(const Ladder& ladder, const std::string& format) {
  return std::ranges::count(ladder.formats, ParseFormat(format).format, &NamedFormat::format) > 0;
}

void RequireOnLadder(const Ladder& ladder, const TuneRequest& request) {
  for (const std::string& name : request.formats) {
    if (!HasFormat(ladder, name)) {
      throw UsageError("--format", "not on the profile's ladder", "", Quoted(name));
    }
  }
  const Conversion& conversion = request.conversion;
  if (std::ranges::count(ladder.roundings, conversion.rounding) == 0) {
    throw UsageError("--rounding", "not on the profile's ladder", "",
                     Quoted(NameOf(conversion.rounding)));
  }
  if (std::ranges::count(ladder.subnormals, conversion.subnormals) == 0) {
    throw UsageError("--subnormals", "not on the profile's ladder", "",
                     Quoted(NameOf(conversion.subnormals)));
  }
}

TuneResult Tune(const TraceReader& trace, const TuneRequest& request,
                const ReplayOptions& options) {
  TraceSource gradients(trace, options.accumulate_steps);
  gradients.LeaveOutLosses();
  return TuneFor(gradients, request, options, false);
}

TuneResult Tune(const ProfileReader& profile, const TuneRequest& request,
                const ReplayOptions& options) {
  constexpr const char* kAllTensors = "*";
  RequireOnLadder(profile.settings().ladder, request);
  ProfileSource gradients(profile, kAllTensors);
  gradients.LeaveOutLosses();
  ReplayOptions replay = options;
  replay.step.accumulation = profile.settings().accumulation;
  return TuneFor(gradients, request, replay, true);
}

}  // namespace dlsim::sim
