// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/step_sources.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "sim/base/quantity.h"
#include "src/base/file.h"

namespace dlsim::sim {
namespace {

// Throws InputError naming a file that is gone.
FileState StateOf(std::span<const std::string> paths) {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  FileState state;
  for (const std::string& path : paths) {
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0) {
      throw InputError(Printable(path),
                       std::string("cannot be read (") + std::strerror(errno) + ")");
    }
    state.files.push_back(
        {std::filesystem::path(path).filename().string(), static_cast<uint64_t>(status.st_size)});
    state.changed_at.push_back(int64_t{status.st_mtim.tv_sec} * kNanoseconds +
                               status.st_mtim.tv_nsec);
  }
  return state;
}

}  // namespace

FileState StateIfThere(std::span<const std::string> paths) {
  try {
    return StateOf(paths);
  } catch (const Error&) {
    return {};
  }
}

void RequireUnchanged(std::span<const std::string> paths, const FileState& before) {
  const FileState after = StateOf(paths);
  for (size_t k = 0; k < paths.size(); ++k) {
    const bool is_same = k < before.files.size() && after.files[k].bytes == before.files[k].bytes &&
                         after.changed_at[k] == before.changed_at[k];
    if (!is_same) throw InputError(Printable(paths[k]), "changed while it was read");
  }
}

namespace {

// Steps of at most this size in bytes are small: some ten milliseconds of one thread.
constexpr uint64_t kSmallStepBytes = uint64_t{16} << 20;
// A process can have some thousand files open, and several steps for each thread.
constexpr size_t kFewFiles = 4;

bool HasMicroSteps(const TraceStep& step) {
  return step.recordings.size() > 1 || step.recordings.front().micro >= 0;
}

Error NotTheRecorded(size_t asked, size_t recorded) {
  return UsageError("grad_accum_steps", "the trace is recorded with micro-steps of its own",
                    std::to_string(recorded), std::to_string(asked));
}

// Loads the i-th effective step as a step of a trace with micro-steps.
TraceStep LoadEffective(const TraceReader& trace, size_t steps, size_t i) {
  if (steps == 1) return trace.Load(i);
  TraceStep effective;
  for (size_t k = 0; k < steps; ++k) {
    TraceStep step = trace.Load(i * steps + k);
    if (HasMicroSteps(step)) throw NotTheRecorded(steps, step.recordings.size());
    Recording& recording = step.recordings.front();
    recording.micro = static_cast<int64_t>(k);
    recording.grad_scale *= static_cast<float>(steps);
    effective.step = step.step;
    effective.recordings.push_back(std::move(recording));
  }
  return effective;
}

// Opens a step whose files must stay as they are until nobody reads them any more.
std::unique_ptr<Step> OpenStep(const TraceReader& trace, size_t steps, size_t i,
                               const StepOptions* options) {
  const std::vector<std::string> files = FilesOf(trace, static_cast<int64_t>(steps), i);
  const auto check = [files, before = StateIfThere(files)] { RequireUnchanged(files, before); };
  auto recorded = std::make_shared<const TraceStep>(LoadEffective(trace, steps, i));
  if (options == nullptr) {
    StepTables head;  // what a step is without its tables
    head.step = recorded->step;
    if (!recorded->recordings.empty()) head.metadata = recorded->recordings.front().metadata;
    head.tensors = DescribeTensors(*recorded);
    head.gradients = static_cast<size_t>(std::ranges::count_if(
        head.tensors, [](const TensorRef& tensor) { return IsGradient(tensor->role); }));
    return std::make_unique<Step>(std::move(head), recorded, StepOptions(), check);
  }
  StepTables tables = TabulateStep(*recorded, *options);
  check();
  return std::make_unique<Step>(std::move(tables), recorded, *options, check);
}

void NoteHalfPrecision(const Recording& recording, std::vector<std::string>& notes) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto count = std::ranges::count(
        recording.tensors, dtype, [](const TraceTensor& tensor) { return tensor.info->dtype; });
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
    return tensor.info->name.ends_with("grad") || tensor.info->role == Role::kActGrad;
  };
  const auto is_weight = [](const TraceTensor& tensor) {
    return tensor.info->name.ends_with(".weight");
  };
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
              std::span<const std::string_view> names, std::vector<std::string>& notes) {
  const auto first = std::ranges::find_if(names, is_like);
  if (first == names.end()) return;
  const auto count = std::ranges::count_if(names, is_like);
  const std::string more = count > 1 ? fmt::format(" and {} more", count - 1) : "";
  notes.push_back(
      fmt::format("named like {}, but treated as a gradient: {}{}", what, Printable(*first), more));
}

// Notes the steps that are missing between those that are there, by their numbers, which ascend: a
// scaler counts steps, and may have seen an overflow there.
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

// Returns the reader's own notes, then one each for steps that were not recorded, for gradients in
// 16 bits, and for what looks like a model's weights or has a name like forward values or weights;
// the last two go by the first step.
std::vector<std::string> NotesOnTrace(const TraceReader& trace) {
  std::vector<std::string> notes = trace.notes();
  NoteGaps(
      trace.step_count(), [&](size_t i) { return trace.step_number(i); }, notes);
  std::optional<TraceStep> step;
  try {
    step = trace.Load(0);
  } catch (const Error&) {  // whoever reads it says that it is damaged
    return notes;
  }
  NoteHalfPrecision(step->recordings.front(), notes);
  if (NoteWeights(step->recordings.front(), notes)) return notes;
  std::vector<std::string_view> gradients;
  for (const TraceTensor& tensor : step->recordings.front().tensors) {
    if (tensor.info->role == Role::kGrad) gradients.push_back(tensor.info->name);
  }
  NoteLike("a forward value or a weight", NamesForwardOrWeight, gradients, notes);
  NoteLike("the state of an optimizer", NamesOptimizerState, gradients, notes);
  return notes;
}

}  // namespace

SourceFacts FactsOf(const TraceReader& trace) {
  const size_t steps = trace.step_count();
  return {.steps = steps,
          .first_step = trace.step_number(0),
          .last_step = trace.step_number(steps - 1),
          .file_bytes = trace.file_bytes(),
          .description = trace.description(),
          .notes = NotesOnTrace(trace),
          .profile = {}};
}

std::vector<std::string> FilesOf(const TraceReader& trace, int64_t accumulate_steps, size_t i) {
  const auto steps = static_cast<size_t>(accumulate_steps);
  std::vector<std::string> paths;
  for (size_t k = 0; k < steps; ++k) {
    for (std::string& path : trace.files(i * steps + k)) paths.push_back(std::move(path));
  }
  return paths;
}

StepSource TraceSteps(const TraceReader& trace, int64_t accumulate_steps) {
  if (accumulate_steps < 1) {
    throw UsageError("grad_accum_steps", "not a number of steps", "1 or more",
                     std::to_string(accumulate_steps));
  }
  const size_t asked = static_cast<size_t>(accumulate_steps);
  size_t steps = 1;
  if (asked > 1) {
    const TraceStep first = trace.Load(0);
    if (!HasMicroSteps(first)) {
      steps = asked;
    } else if (first.recordings.size() != asked) {
      throw NotTheRecorded(asked, first.recordings.size());
    }
  }
  StepSource source;
  source.facts = FactsOf(trace);
  source.step_count = trace.step_count() / steps;
  if (source.step_count == 0) {
    throw UsageError("grad_accum_steps", "more than the trace has steps",
                     "at most " + std::to_string(trace.step_count()), std::to_string(asked));
  }
  source.load = [&trace, steps](size_t i, const StepOptions& options) {
    return OpenStep(trace, steps, i, &options);
  };
  source.describe = [&trace, steps](size_t i) { return OpenStep(trace, steps, i, nullptr); };
  const auto files = [&trace, steps](size_t i) {
    return FilesOf(trace, static_cast<int64_t>(steps), i);
  };
  // The steps of one file are read in order.
  if (source.step_count > 1 && source.facts.file_bytes / source.step_count <= kSmallStepBytes) {
    const std::vector<std::string> first = files(0);
    source.small_steps = first.size() <= kFewFiles && first != files(1);
  }
  source.read_ahead = [files](size_t i) {
    for (const std::string& path : files(i)) ReadOnlyFile::ReadAhead(path);
  };
  return source;
}

SourceFacts FactsOf(const ProfileReader& profile) {
  const size_t steps = profile.step_count();
  if (steps == 0) throw InputError("the profile", "has no step");
  SourceFacts facts;
  facts.steps = steps;
  facts.first_step = profile.step_number(0);
  facts.last_step = profile.step_number(steps - 1);
  facts.file_bytes = profile.file_bytes();
  facts.description = profile.settings().description;
  uint64_t trace_bytes = 0;
  for (size_t i = 0; i < steps; ++i) {
    for (const RecordedFile& file : profile.LoadHead(i).files) trace_bytes += file.bytes;
  }
  facts.profile = ProfileFacts{profile.settings(), trace_bytes};
  const auto ranks = facts.description.find("ranks");
  const auto reduction = facts.description.find("rank_reduction");
  if (ranks != facts.description.end() && reduction != facts.description.end()) {
    facts.notes.push_back("each gradient is the " + Printable(reduction->second) + " of " +
                          Printable(ranks->second) + " data-parallel ranks");
  }
  NoteGaps(
      steps, [&](size_t i) { return profile.step_number(i); }, facts.notes);
  return facts;
}

StepSource ProfileSteps(const ProfileReader& profile, const std::string& tensors) {
  StepSource source;
  source.facts = FactsOf(profile);
  source.step_count = profile.step_count();
  source.small_steps = true;
  source.load = [&profile](size_t i, const StepOptions& options) {
    StepOptions held = options;
    held.scaled = profile.settings().scaled;
    return std::make_unique<Step>(profile.Load(i), nullptr, held);
  };
  source.describe = [&profile](size_t i) {
    return std::make_unique<Step>(profile.LoadHead(i), nullptr, StepOptions());
  };
  if (tensors == "*") return source;
  return Without(std::move(source), [tensors](const TensorInfo& tensor) {
    return fnmatch(tensors.c_str(), tensor.name.c_str(), 0) != 0;
  });
}

void RequireSameRanks(const ProfileReader& profile, const std::optional<RankReduction>& asked) {
  const auto& description = profile.settings().description;
  const auto made = description.find("rank_reduction");
  if (!asked || made == description.end() || made->second == NameOf(*asked)) return;
  throw UsageError("--ranks", "the profile was made otherwise", Printable(made->second),
                   NameOf(*asked));
}

StepSource HeldSteps(std::vector<StepTables> steps) {
  const auto held = std::make_shared<const std::vector<StepTables>>(std::move(steps));
  StepSource source;
  source.step_count = source.facts.steps = held->size();
  if (!held->empty()) {
    source.facts.first_step = held->front().step;
    source.facts.last_step = held->back().step;
    source.facts.profile.emplace();
  }
  source.load = [held](size_t i, const StepOptions& options) {
    return std::make_unique<Step>((*held)[i], nullptr, options);
  };
  source.describe = [held](size_t i) {
    return std::make_unique<Step>((*held)[i], nullptr, StepOptions());
  };
  return source;
}

namespace {

bool MayBeLoss(const TensorInfo& tensor) {
  if (tensor.role != Role::kActGrad) return false;
  return tensor.shape.empty() ||
         (tensor.shape == std::vector<uint64_t>{1} && tensor.name.starts_with("(root)."));
}

// The single positive value of a table; 0 if it holds anything else.
float OnlyValue(const TensorTable& table) {
  const bool single = table.elements == 1 && table.values.size() == 1;
  return single ? std::max(0.0f, table.values.front()) : 0;
}

// Backward starts from 1; of the mean over micro-steps, from their share.
bool IsShareOfOne(float value) {
  if (!(value > 0 && value <= 1)) return false;
  const double parts = std::round(1 / double{value});
  return std::fabs(double{value} * parts - 1) < 1e-6;
}

// The value of each candidate so far; 0 once it is known to be no loss.
using Candidates = std::map<std::string, float>;

void CompareWithEarlier(const StepTables& step, bool first, Candidates& candidates) {
  for (size_t t = 0; t < step.gradients; ++t) {
    if (!MayBeLoss(*step.tensors[t])) continue;
    for (const std::vector<TensorTable>& part : step.parts) {
      const float value = OnlyValue(part[t]);
      const auto [entry, added] = candidates.try_emplace(step.tensors[t]->name, first ? value : 0);
      if (entry->second != value || !IsShareOfOne(value)) entry->second = 0;
    }
  }
}

// What cannot be read is no loss: the reader reports it.
std::set<std::string> FindLosses(const StepSource& source) {
  constexpr size_t kMostSteps = 64;
  Candidates candidates;
  try {
    const size_t samples = std::min(kMostSteps, source.step_count);
    for (size_t s = 0; s < samples; ++s) {
      const size_t i = samples < 2 ? 0 : s * (source.step_count - 1) / (samples - 1);
      const std::unique_ptr<Step> head = source.describe(i);
      const auto count = std::ranges::count_if(head->tables().tensors, MayBeLoss, Referred());
      if (count == 0 || static_cast<size_t>(count) == head->tables().tensors.size()) return {};
      const auto is_other = [](const TensorInfo& tensor) { return !MayBeLoss(tensor); };
      if (head->recorded() != nullptr) {
        head->Drop(is_other);
        CompareWithEarlier(TabulateStep(*head->recorded(), {}), s == 0, candidates);
      } else {
        CompareWithEarlier(source.load(i, {})->tables(), s == 0, candidates);
      }
      const auto open = [](const auto& entry) { return entry.second > 0; };
      if (std::ranges::none_of(candidates, open)) return {};
    }
  } catch (const Error&) {
    return {};
  }
  std::set<std::string> losses;
  for (const auto& [name, value] : candidates) {
    if (value > 0) losses.insert(name);
  }
  return losses;
}

}  // namespace

StepSource WithoutLosses(StepSource source) {
  const std::set<std::string> losses = FindLosses(source);
  if (losses.empty()) return source;
  std::string names;
  for (const std::string& name : losses) names += (names.empty() ? "" : ", ") + Printable(name);
  StepSource without = Without(std::move(source), [losses](const TensorInfo& tensor) {
    return losses.contains(tensor.name);
  });
  without.facts.notes.push_back(
      "left out " + names + ": the gradient of the loss itself, which training keeps in float32");
  return without;
}

}  // namespace dlsim::sim
