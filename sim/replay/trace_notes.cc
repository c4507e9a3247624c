// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/trace_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "dlsim/error.h"
#include "sim/base/quantity.h"

namespace dlsim::sim {
namespace {

// The first step, or nothing if it is damaged: whoever reads it says so.
std::optional<TraceStep> FirstStep(const TraceReader& trace) {
  try {
    return trace.Load(0);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void NoteHalfPrecision(const Recording& recording, std::vector<std::string>& notes) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto count = std::ranges::count(recording.tensors, dtype, &TraceTensor::dtype);
    if (count == 0) continue;
    notes.push_back(
        fmt::format("{} of {} {} recorded in {}: the trace does not show what underflow or "
                    "overflow of that format already lost",
                    count, Counted(recording.tensors.size(), "tensor"), count == 1 ? "is" : "are",
                    NameOf(dtype)));
  }
}

// safetensors of transformers say {"format": "pt"}; their names are those of parameters.
bool NoteWeights(const Recording& recording, std::vector<std::string>& notes) {
  const auto format = recording.metadata.find("format");
  if (format == recording.metadata.end() || format->second != "pt") return false;
  const auto is_gradient = [](const TraceTensor& tensor) {
    return tensor.name.ends_with("grad") || tensor.role == Role::kActGrad;
  };
  const auto is_weight = [](const TraceTensor& tensor) { return tensor.name.ends_with(".weight"); };
  if (std::ranges::any_of(recording.tensors, is_gradient)) return false;
  if (std::ranges::none_of(recording.tensors, is_weight)) return false;
  notes.push_back(recording.place +
                  " looks like the weights of a model, not its gradients: record gradients with "
                  "dlsim.Recorder, or save p.grad of each parameter");
  return true;
}

// The last parts of names that gradients do not have; names of forward roles are none of theirs.
bool NamesForwardOrWeight(std::string_view name) {
  constexpr std::string_view kEndings[] = {".act",    ".value",      ".fwd",   ".weight", ".bias",
                                           ".output", ".activation", ".input", ".param"};
  return std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); });
}

// Whether a part of a name is what torch.optim calls a tensor of its states.
bool NamesOptimizerState(std::string_view name) {
  constexpr std::string_view kStates[] = {"exp_avg", "exp_avg_sq",      "max_exp_avg_sq",
                                          "exp_inf", "momentum_buffer", "square_avg",
                                          "grad_avg"};
  return std::ranges::any_of(kStates, [&](std::string_view state) {
    return name.find(state) != name.npos &&
           fmt::format(".{}.", name).find(fmt::format(".{}.", state)) != std::string::npos;
  });
}

// Adds a note on those of the names that are like something else than a gradient's.
void NoteLike(const char* what, bool (*is_like)(std::string_view),
              std::span<const std::string> names, std::vector<std::string>& notes) {
  const auto first = std::ranges::find_if(names, is_like);
  if (first == names.end()) return;
  const auto count = std::ranges::count_if(names, is_like);
  const std::string more = count > 1 ? fmt::format(" and {} more", count - 1) : "";
  notes.push_back(
      fmt::format("named like {}, but treated as a gradient: {}{}", what, Printable(*first), more));
}

}  // namespace

void NoteGaps(size_t steps, const std::function<int64_t(size_t)>& number,
              std::vector<std::string>& notes) {
  size_t gaps = 0;
  int64_t missing = 0;
  for (size_t i = 1; i < steps; ++i) {
    const int64_t between = number(i) - number(i - 1) - 1;
    gaps += between > 0;
    missing += between;
  }
  if (gaps == 0) return;
  notes.push_back(fmt::format(
      "{} {} missing ({}): policies treat the recorded steps as consecutive, so they count too few "
      "clean steps and see no overflow in the gaps",
      Counted(static_cast<uint64_t>(missing), "step"), missing == 1 ? "is" : "are",
      Counted(gaps, "gap")));
}

void NoteNames(std::span<const std::string> names, std::vector<std::string>& notes) {
  NoteLike("a forward value or a weight", NamesForwardOrWeight, names, notes);
  NoteLike("the state of an optimizer", NamesOptimizerState, names, notes);
}

std::vector<std::string> NotesOnTrace(const TraceReader& trace) {
  std::vector<std::string> notes = trace.notes();
  NoteGaps(
      trace.step_count(), [&](size_t i) { return trace.step_number(i); }, notes);
  const std::optional<TraceStep> step = FirstStep(trace);
  if (!step) return notes;
  NoteHalfPrecision(step->recordings.front(), notes);
  if (NoteWeights(step->recordings.front(), notes)) return notes;
  std::vector<std::string> gradients;
  for (const TraceTensor& tensor : step->recordings.front().tensors) {
    if (tensor.role == Role::kGrad) gradients.push_back(tensor.name);
  }
  NoteNames(gradients, notes);
  return notes;
}

}  // namespace dlsim::sim
