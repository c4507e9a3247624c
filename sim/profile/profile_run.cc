// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/profile_run.h"

#include "dlsim/error.h"
#include "sim/profile/step_encoder.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {
namespace {

// Nothing for the whole.
std::optional<ProfilePart> PartOf(StepRange range, size_t steps) {
  if (range.end - range.begin == steps) return std::nullopt;
  ProfilePart part = {steps, {}};
  if (range.end > range.begin) part.ranges.push_back({range.begin, range.end - range.begin});
  return part;
}

}  // namespace

ProfileRun::ProfileRun(const TraceReader& trace, const ProfileRequest& request)
    : trace_(trace), request_(request), edges_(EdgesOf(request.settings.ladder)) {}

void ProfileRun::Open() {
  const TraceSource steps(trace_, request_.settings.accumulate_steps);
  const StepRange range = ShardOf(steps.step_count(), request_.shard, request_.shards);
  ProfileSettings settings = request_.settings;
  settings.part = PartOf(range, steps.step_count());
  if (request_.unfinished == Unfinished::kDiscard) {
    ProfileWriter(request_.output, settings, edges_, ProfileWriter::Existing::kReplace).Truncate(0);
  }
  writer_ = std::make_unique<ProfileWriter>(request_.output, settings, edges_, request_.existing);
  const bool extends = request_.existing == ProfileWriter::Existing::kExtend;
  finished_ = writer_->done().size();
  try {
    resumption_ = FindResumption(writer_->done(), writer_->done_at(), steps, range,
                                 extends ? Gone::kKeep : Gone::kForget);
  } catch (const Error&) {
    writer_->Abandon();
    throw;
  }
  writer_->Truncate(resumption_.kept);
}

void ProfileRun::Write(const std::function<void(size_t)>& on_step) {
  const StepRange range = resumption_.remaining;
  const auto take = [&](size_t i, const EncodedStep& step) {
    writer_->Append(step);
    on_step(i + 1 - range.begin);
  };
  EncodeSteps(trace_, request_.settings, edges_, range, request_.step, take);
  writer_->Commit();
}

}  // namespace dlsim::sim
