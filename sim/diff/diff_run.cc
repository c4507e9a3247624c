// SPDX-License-Identifier: Apache-2.0
#include "sim/diff/diff_run.h"

#include <array>
#include <utility>

#include "sim/replay/profile_source.h"
#include "sim/replay/step_queue.h"

namespace dlsim::sim {
namespace {

// A step of one run, with the files of a trace as they were before they were opened.
struct OpenedStep {
  std::optional<TraceStep> trace;
  std::optional<ProfileStep> profile;
  std::vector<std::string> files;
  FileState before;
};

OpenedStep Open(const DiffRun& run, size_t i) {
  OpenedStep step;
  if (run.profile) {
    step.profile = run.profile->Load(i);
    KeepTensors(run.tensors, *step.profile);
    return step;
  }
  step.files = run.source->files(i);
  step.before = StateIfThere(step.files);
  step.trace = run.source->LoadStep(i);
  return step;
}

// What was found in files that changed meanwhile belongs to no step.
void RequireUnchanged(const OpenedStep& step) {
  if (step.trace) RequireUnchanged(step.files, step.before);
}

ComparedStep CompareHistograms(const DiffRuns& runs, OpenedStep& a, OpenedStep& b) {
  const ProfileReader& profile = runs.a.profile ? *runs.a.profile : *runs.b.profile;
  StepOptions options;
  options.accumulation = profile.settings().accumulation;
  for (OpenedStep* step : {&a, &b}) {
    if (step->trace) step->profile = ProfileOf(*step->trace, profile.edges(), options);
  }
  const auto edges = [&](const DiffRun& run) -> const HistogramEdges& {
    return run.profile ? run.profile->edges() : profile.edges();
  };
  return CompareSteps({*a.profile, edges(runs.a)}, {*b.profile, edges(runs.b)});
}

DiffRun OpenDiffRun(const std::string& path, const TraceOptions& options) {
  DiffRun run;
  run.path = path;
  run.tensors = options.tensors;
  const std::array<std::string, 1> paths = {path};
  if (ProfileReader::IsProfile(path)) {
    run.profile = std::make_unique<ProfileReader>(ProfileReader::Open(paths));
    RequireSameRanks(*run.profile, options.ranks);
    run.facts = FactsOf(*run.profile);
    for (size_t i = 0; i < run.profile->step_count(); ++i) {
      run.steps.push_back(run.profile->step_number(i));
    }
    return run;
  }
  run.trace = std::make_unique<TraceReader>(TraceReader::Open(paths, options));
  run.facts = FactsOf(*run.trace);
  return run;
}

void ListSteps(int64_t accumulate_steps, DiffRun& run) {
  run.source = std::make_unique<TraceSource>(*run.trace, accumulate_steps);
  for (size_t i = 0; i < run.source->step_count(); ++i) run.steps.push_back(run.source->number(i));
}

}  // namespace

DiffRuns OpenDiffRuns(const std::string& a, const std::string& b, const TraceOptions& options) {
  DiffRuns runs = {OpenDiffRun(a, options), OpenDiffRun(b, options)};
  const ProfileReader* const profile = runs.a.profile ? runs.a.profile.get() : runs.b.profile.get();
  for (DiffRun* run : {&runs.a, &runs.b}) {
    if (run->trace) ListSteps(profile ? profile->settings().accumulate_steps : 1, *run);
  }
  return runs;
}

void CompareRuns(const DiffRuns& runs, const std::vector<AlignedSteps::Pair>& pairs,
                 const std::function<void(size_t pair, const ComparedStep& step)>& visit) {
  using OpenedPair = std::pair<OpenedStep, OpenedStep>;
  StepQueue<OpenedPair> queue(pairs.size(), [&](size_t i) {
    return OpenedPair(Open(runs.a, pairs[i].a), Open(runs.b, pairs[i].b));
  });
  for (size_t i = 0; i < pairs.size(); ++i) {
    OpenedPair opened = queue.Take(i);
    // Named apart: OpenMP takes no structured binding into a parallel region.
    OpenedStep &a = opened.first, &b = opened.second;
    ComparedStep step;
    queue.LoadDuring(i + 1, [&] {
      step = runs.has_elements() ? CompareSteps(*a.trace, *b.trace) : CompareHistograms(runs, a, b);
    });
    RequireUnchanged(a);
    RequireUnchanged(b);
    visit(i, step);
    queue.GiveBack(std::move(opened));
  }
}

}  // namespace dlsim::sim
