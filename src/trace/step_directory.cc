// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <compare>
#include <filesystem>
#include <set>

#include "dlsim/error.h"
#include "src/trace/layout.h"
#include "src/trace/read_only_file.h"
#include "src/trace/tensor_rules.h"
#include "src/trace/trace_json.h"

namespace dlsim {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kFileSuffix = ".safetensors";

// A file's place in its step; -1 = the name tells none.
struct Part {
  int64_t micro = -1;
  int64_t rank = -1;

  friend auto operator<=>(const Part&, const Part&) = default;
};

using StepFiles = std::map<Part, std::string>;

// Removes `label` and the digits after it from the front of `rest`. Returns the number, -1 if
// `rest` does not begin with `label`, or nothing for bad digits.
std::optional<int64_t> TakeNumber(std::string_view label, std::string_view& rest) {
  if (!rest.starts_with(label)) return -1;
  rest.remove_prefix(label.size());
  const size_t end = std::min(rest.find('.'), rest.size());
  const std::optional<int64_t> number = ParseDigits(rest.substr(0, end));
  rest.remove_prefix(end);
  return number;
}

std::string Join(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

std::map<int64_t, StepFiles> GroupByStep(const std::string& directory,
                                         const std::vector<std::string>& names) {
  std::map<int64_t, StepFiles> steps;
  for (const std::string& name : names) {
    const std::optional<StepName> parsed = ParseStepName(name);
    if (!parsed) {
      throw InputError(Printable(Join(directory, name)), "unknown kind of step file",
                       "step-<digits>[.rank-<digits>][.micro-<digits>].safetensors");
    }
    const Part part = {.micro = parsed->micro, .rank = parsed->rank};
    const auto [other, is_new] = steps[parsed->step].emplace(part, name);
    if (!is_new) {
      throw InputError(Printable(Join(directory, name)), "same step as " + Quoted(other->second));
    }
  }
  return steps;
}

// Returns how many ranks recorded the trace, 1 without any in the names. A single one is read as it
// is, whatever its number.
size_t CountRanks(const std::string& directory, const std::map<int64_t, StepFiles>& steps) {
  std::map<int64_t, std::string> first_files;  // of each rank
  for (const auto& [step, files] : steps) {
    for (const auto& [part, name] : files) first_files.try_emplace(part.rank, name);
  }
  if (first_files.size() <= 1) return 1;
  int64_t next = 0;
  for (const auto& [rank, name] : first_files) {
    const std::string place = Printable(Join(directory, name));
    if (rank < 0) throw InputError(place, "step files with and without ranks");
    if (rank != next) {
      throw InputError(place, "missing rank",
                       "files of ranks 0 to " + std::to_string(rank) + ", but " +
                           std::to_string(next) + " has none");
    }
    ++next;
  }
  return first_files.size();
}

void CheckMicroSteps(const std::string& directory, int64_t step, const StepFiles& files) {
  const bool has_micro = files.rbegin()->first.micro >= 0;
  if (has_micro && files.begin()->first.micro < 0) {
    throw InputError(Printable(Join(directory, files.begin()->second)),
                     "step has files with and without micro-steps");
  }
  int64_t last = -1;
  for (const auto& [part, name] : files) {
    if (part.micro > last + 1) {
      throw InputError(Printable(Join(directory, name)), "missing micro-step",
                       "micro-step " + std::to_string(last + 1) + " of step " +
                           std::to_string(step) + " before it");
    }
    last = part.micro;
  }
}

// Every rank records every step and micro-step, or the sum would silently lack its share.
void CheckRanks(const std::string& directory, int64_t step, const StepFiles& files, size_t ranks) {
  for (const auto& [part, name] : files) {
    for (int64_t rank = 0; rank < static_cast<int64_t>(ranks); ++rank) {
      if (files.contains({.micro = part.micro, .rank = rank})) continue;
      const std::string micro =
          part.micro < 0 ? "" : ", micro-step " + std::to_string(part.micro) + ",";
      throw InputError(Printable(Join(directory, name)), "missing rank",
                       "step " + std::to_string(step) + micro + " of rank " + std::to_string(rank) +
                           " in the same directory");
    }
  }
}

PlannedStep PlanStep(const std::string& directory, int64_t step, const StepFiles& files,
                     size_t ranks) {
  CheckMicroSteps(directory, step, files);
  if (ranks > 1) CheckRanks(directory, step, files, ranks);
  PlannedStep planned;
  planned.step = step;
  planned.ranks = ranks;
  for (const auto& [part, name] : files) {
    planned.files.push_back({.container = Container::kSafetensors,
                             .path = Join(directory, name),
                             .micro = part.micro,
                             .rank = part.rank,
                             .slice = 0});
  }
  return planned;
}

void CheckListed(const std::string& directory, const TraceJson& json,
                 const std::map<int64_t, StepFiles>& steps, const std::set<std::string>& names) {
  for (const std::string& file : json.files.value_or(std::vector<std::string>())) {
    if (names.contains(file)) continue;
    throw InputError(Printable(Join(directory, file)), "missing step: trace.json lists this file");
  }
  for (const int64_t step : json.steps.value_or(std::vector<int64_t>())) {
    if (steps.contains(step)) continue;
    throw InputError(Printable(directory),
                     "missing step " + std::to_string(step) + ": trace.json lists it");
  }
}

// Tells about step files that trace.json does not know; they are read all the same.
void NoteUnlisted(const std::string& directory, const TraceJson& json,
                  const std::set<std::string>& names, TracePlan& plan) {
  if (!json.files && !json.steps) return;
  const std::vector<std::string> no_files;
  const std::vector<std::string>& listed_files = json.files ? *json.files : no_files;
  const std::set<std::string> files(listed_files.begin(), listed_files.end());
  const std::vector<int64_t> no_steps;
  const std::vector<int64_t>& listed_steps = json.steps ? *json.steps : no_steps;
  const std::set<int64_t> steps(listed_steps.begin(), listed_steps.end());
  uint64_t unlisted = 0;
  std::string first;
  for (const std::string& name : names) {
    if (json.files ? files.contains(name) : steps.contains(ParseStepName(name)->step)) continue;
    if (unlisted++ == 0) first = name;
  }
  if (unlisted == 0) return;
  plan.notes.push_back(
      Printable(directory) + ": trace.json does not list " + std::to_string(unlisted) +
      " of the step files, which are read too: " + Quoted(first) + (unlisted > 1 ? ", ..." : ""));
}

uint64_t FileBytes(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) FailToRead(Printable(path), "cannot be read", error);
  return bytes;
}

}  // namespace

bool LooksLikeStepName(std::string_view name) {
  return name.starts_with(kPrefix) && name.ends_with(kFileSuffix);
}

std::optional<StepName> ParseStepName(std::string_view name) {
  if (!LooksLikeStepName(name) || name.size() < kPrefix.size() + kFileSuffix.size()) {
    return std::nullopt;
  }
  std::string_view rest = name.substr(0, name.size() - kFileSuffix.size());
  const std::optional<int64_t> step = TakeNumber(kPrefix, rest);
  const std::optional<int64_t> rank = TakeNumber(".rank-", rest);
  const std::optional<int64_t> micro = TakeNumber(".micro-", rest);
  if (!step || !rank || !micro || !rest.empty()) return std::nullopt;
  return StepName{.step = *step, .rank = *rank, .micro = *micro};
}

void PlanStepDirectory(const std::string& directory, const std::vector<std::string>& names,
                       bool has_trace_json, TracePlan& plan) {
  TraceJson json;
  if (has_trace_json) json = ReadTraceJson(Join(directory, "trace.json"));
  const std::map<int64_t, StepFiles> steps = GroupByStep(directory, names);
  const size_t ranks = CountRanks(directory, steps);
  const std::set<std::string> name_set(names.begin(), names.end());
  CheckListed(directory, json, steps, name_set);
  NoteUnlisted(directory, json, name_set, plan);
  std::shared_ptr<const RoleMap> roles;
  if (!json.roles.empty()) roles = std::make_shared<const RoleMap>(std::move(json.roles));
  for (const auto& [step, files] : steps) {
    plan.steps.push_back(PlanStep(directory, step, files, ranks));
    plan.steps.back().roles = roles;
    for (const PlannedFile& file : plan.steps.back().files) plan.file_bytes += FileBytes(file.path);
  }
  plan.description.merge(json.description);
}

}  // namespace dlsim
