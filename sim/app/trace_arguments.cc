// SPDX-License-Identifier: Apache-2.0
#include "sim/app/trace_arguments.h"

#include <algorithm>

#include "dlsim/error.h"
#include "dlsim/profile.h"

namespace dlsim::sim {
namespace {

bool HasTensors(const TraceStep& step) {
  return std::ranges::any_of(step.recordings,
                             [](const Recording& recording) { return !recording.tensors.empty(); });
}

}  // namespace

void VisitNpyVoid(OptionRows& option, std::optional<DType>& npy_void) {
  option.Choice<DType>("--npy-void", npy_void, {{"bf16", DType::kBF16}}, "bf16",
                       "Read NumPy's dtype V2 as bf16: ml_dtypes saves bfloat16 this way");
}

void VisitReading(OptionRows& option, TraceOptions& options) {
  option.Group(kInputGroup);
  option("--tensors", options.tensors, "GLOB",
         "Read only the tensors whose names match this pattern (* ? [])");
  option("--ranks", options.ranks, "NAME",
         "How the gradients of several data-parallel ranks are combined: mean (default) or sum");
  VisitNpyVoid(option, options.npy_void2);
}

void TraceArguments::Visit(OptionRows& option, TraceInput input) {
  const char* const profiles = input == TraceInput::kTraceOrProfile ? "; or a profile of one" : "";
  option
      .Argument("TRACE", paths,
                std::string("A directory of step-*.safetensors or act_dumps*.npz, a .safetensors "
                            "file, a *.safetensors.index.json, a .npy or a .npz; several are read "
                            "one after another") +
                    profiles)
      .required = true;
  VisitReading(option, options);
}

void RefuseProfiles(const TraceArguments& arguments) {
  const auto profile = std::ranges::find_if(arguments.paths, ProfileReader::IsProfile);
  if (profile == arguments.paths.end()) return;
  throw UsageError("TRACE", "a profile does not hold the elements that this takes",
                   "the trace itself", Quoted(*profile));
}

TraceReader OpenTrace(const TraceArguments& arguments) {
  TraceReader trace = TraceReader::Open(arguments.paths, arguments.options);
  const std::string& glob = arguments.options.tensors;
  RequireTensors(arguments, glob == "*" ? "no tensors" : NoTensorMatches(glob), trace.step_count(),
                 [&](size_t i) { return HasTensors(trace.Load(i)); });
  return trace;
}

std::string NoTensorMatches(const std::string& glob) {
  return "no tensor matches --tensors " + Quoted(glob);
}

void RequireTensors(const TraceArguments& arguments, const std::string& problem, size_t steps,
                    const std::function<bool(size_t step)>& has_tensors) {
  for (size_t i = 0; i < steps; ++i) {
    if (has_tensors(i)) return;
  }
  throw InputError(Printable(arguments.paths.front()), problem);
}

}  // namespace dlsim::sim
