// SPDX-License-Identifier: Apache-2.0
#include "sim/app/configured_runs.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "dlsim/error.h"
#include "sim/app/conversion_options.h"
#include "sim/base/quantity.h"
#include "sim/base/text_input.h"

namespace dlsim::sim {
namespace {

void AddDefaults(SimulationRequest& request) {
  if (request.formats.empty()) request.formats = {kDefaultFormats.begin(), kDefaultFormats.end()};
}

// File names tell the files apart, else their paths do.
std::vector<std::string> NamesOf(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    names.push_back(
        Printable(path == "-" ? InputName(path) : std::filesystem::path(path).filename().string()));
  }
  for (const std::string& name : names) {
    if (std::ranges::count(names, name) > 1) return paths;
  }
  return names;
}

// A format with scales of its own is listed with those of the rest of the training.
void TakeScaled(const TrainingConfig& config, bool asked, ConfiguredRuns& made) {
  if (asked || config.scaled.empty()) return;
  if (std::ranges::count(made.scaled, config.scaled) == 0) made.scaled.push_back(config.scaled);
}

void AddRuns(const SimulationRequest& request, const std::string& config, ConfiguredRuns& made) {
  std::vector<SimulationRun> runs = PrepareRuns(request);
  for (SimulationRun& run : runs) run.config = config;
  std::ranges::move(runs, std::back_inserter(made.runs));
  for (const std::string& format : request.formats) {
    if (std::ranges::count(made.formats, format) == 0) made.formats.push_back(format);
  }
}

std::string ClippingText(const Clipping& clipping) {
  if (clipping.max_norm) return "note: gradients clipped to norm " + PythonRepr(*clipping.max_norm);
  return "note: gradients clipped to magnitude " + PythonRepr(*clipping.max_value);
}

// Steps are summed as they are read, for all runs alike.
void TakeAccumulation(const TrainingConfig& config, const std::string& path, bool first,
                      ConfiguredRuns& made) {
  if (first) made.accumulate_steps = config.accumulate_steps;
  if (config.accumulate_steps.value_or(1) == made.accumulate_steps.value_or(1)) return;
  throw UsageError("--config", "files that sum different numbers of steps cannot be compared",
                   std::to_string(made.accumulate_steps.value_or(1)) + " as in the first",
                   std::to_string(config.accumulate_steps.value_or(1)) + " in " + Quoted(path));
}

// Files that differ are judged as autocast, which holds less in 16 bits.
void TakeRecipe(const TrainingConfig& config, ConfiguredRuns& made) {
  const Recipe recipe = RecipeOf(config);
  made.recipe = made.recipe.value_or(recipe) == recipe ? recipe : Recipe::kAutocast;
}

}  // namespace

void Rows(const ConfigRecord& of, RowSink& row) {
  row.Group(of.config);
  row("name", of.name, "of several files: the file in `runs[].config`", kLeftOutIfEmpty);
  row("max_gradient_norm", of.clipping.max_norm, "of several files: norm to which it clips",
      kLeftOutIfEmpty);
  row("max_gradient_value", of.clipping.max_value, "of several files: magnitude to which it clips",
      kLeftOutIfEmpty);
}

ConfiguredRuns PrepareConfiguredRuns(const ConfigArguments& arguments, SimulationRequest& request) {
  const std::vector<TrainingConfig> configs = ReadConfigs(arguments);
  ConfiguredRuns made;
  if (configs.size() < 2) {
    if (!configs.empty()) {
      TakeScaled(configs[0], !request.formats.empty(), made);
      ApplyConfig(configs[0], request);
      made.accumulate_steps = configs[0].accumulate_steps;
      TakeRecipe(configs[0], made);
      made.configs = {{configs[0], "", {}}};
      made.text = DescribeConfig(configs[0]);
    }
    AddDefaults(request);
    AddRuns(request, "", made);
    return made;
  }
  const std::vector<std::string> names = NamesOf(arguments.paths);
  for (size_t i = 0; i < configs.size(); ++i) {
    SimulationRequest own = request;
    TakeScaled(configs[i], !request.formats.empty(), made);
    ApplyConfig(configs[i], own);
    AddDefaults(own);
    TakeAccumulation(configs[i], arguments.paths[i], i == 0, made);
    TakeRecipe(configs[i], made);
    AddRuns(own, names[i], made);
    made.configs.push_back({configs[i], names[i], own.clipping});
    made.text += DescribeConfig(configs[i]);
    if (own.clipping.enabled()) made.text += ClippingText(own.clipping) + "\n";
  }
  return made;
}

std::vector<std::string> ConfigsOfRuns(const std::vector<SimulationRun>& runs) {
  std::vector<std::string> configs;
  for (const SimulationRun& run : runs) {
    if (run.start && !run.config.empty()) configs.push_back(run.config);
  }
  return configs;
}

}  // namespace dlsim::sim
