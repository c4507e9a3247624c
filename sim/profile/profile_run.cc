// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/profile_run.h"

#include <xxhash.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "dlsim/error.h"
#include "sim/profile/rank_message.h"
#include "sim/profile/step_encoder.h"
#include "sim/replay/trace_source.h"

namespace dlsim::sim {
namespace {

// Stands for all that ranks must agree on: settings, and the steps to read with their files.
uint64_t DigestOf(const ProfileRequest& request, const HistogramEdges& edges,
                  const TraceSource& steps, StepRange range) {
  const ProfileSettings& settings = request.settings;
  std::string text;
  const auto add = [&](const std::string& part) {
    text += part + "/" + std::to_string(part.size());
  };
  add(std::filesystem::absolute(request.output).string());
  for (const NamedScaledFormat& format : settings.scaled) add(format.name);
  add(settings.tensors);
  add(std::to_string(static_cast<int>(settings.accumulation)));
  add(std::to_string(request.shard) + "/" + std::to_string(request.shards));
  for (const uint32_t edge : edges.bits()) add(std::to_string(edge));
  for (size_t i = range.begin; i < range.end; ++i) {
    add(std::to_string(steps.number(i)));
    for (const std::string& path : steps.files(i)) add(path);
  }
  return XXH3_64bits(text.data(), text.size());
}

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

std::string ProfileRun::Open() {
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
  const StepRange remaining = resumption_.remaining;
  return nlohmann::json{{"begin", remaining.begin},
                        {"end", remaining.end},
                        {"digest", DigestOf(request_, edges_, steps, remaining)}}
      .dump();
}

void ProfileRun::Follow(const std::string& plan) {
  const nlohmann::json decided = nlohmann::json::parse(plan);
  const StepRange range = {decided["begin"], decided["end"]};
  const TraceSource steps(trace_, request_.settings.accumulate_steps);
  if (steps.step_count() < range.end ||
      DigestOf(request_, edges_, steps, range) != decided["digest"].get<uint64_t>()) {
    throw InputError("", "the ranks see different files or were started with different arguments",
                     "one trace, on a file system that all ranks share");
  }
  resumption_.remaining = range;
}

void ProfileRun::Deliver(Ranks& ranks) const {
  const size_t size = static_cast<size_t>(ranks.size());
  const StepRange all = resumption_.remaining;
  try {
    const StepRange own = {all.begin + static_cast<size_t>(ranks.rank()), all.end};
    EncodeSteps(trace_, request_.settings, edges_, own, size, request_.step,
                [&](size_t, const EncodedStep& step) { ranks.Send(StepMessage(step)); });
  } catch (...) {
    ranks.Send(FailureMessage(std::current_exception()));
  }
  ranks.Flush();
}

void ProfileRun::Collect(const Ranks& ranks, const std::function<void(size_t)>& on_step) {
  const size_t size = static_cast<size_t>(ranks.size());
  const StepRange all = resumption_.remaining;
  const auto append = [&](size_t i, const EncodedStep& step) {
    writer_->Append(step);
    on_step(i + 1 - all.begin);
  };
  // The steps of the other ranks follow each of this one's.
  const auto take = [&](size_t i, const EncodedStep& step) {
    append(i, step);
    for (size_t owner = 1; owner < size && i + owner < all.end; ++owner) {
      append(i + owner, StepOfMessage(ranks.Receive(static_cast<int>(owner))));
    }
  };
  EncodeSteps(trace_, request_.settings, edges_, all, size, request_.step, take);
  writer_->Commit();
}

}  // namespace dlsim::sim
