// SPDX-License-Identifier: Apache-2.0
#include "sim/app/training_config.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "dlsim/sim/policies.h"
#include "sim/app/shared_options.h"
#include "sim/base/files.h"
#include "sim/base/parse.h"
#include "sim/base/quantity.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

using Json = nlohmann::ordered_json;

// Returns the first name of a policy's parameter, or `key` itself if it has none of that name.
std::string_view ParameterName(const PolicyInfo& policy, std::string_view key) {
  const ParameterInfo* const parameter = FindParameter(policy, key);
  return parameter == nullptr ? key : parameter->name;
}

std::string_view KeyOf(std::string_view setting) { return setting.substr(0, setting.find('=')); }

void RequireTaken(const std::string& place, std::string_view key,
                  std::span<const ConfigPolicy> policies) {
  std::vector<std::string_view> known;
  for (const ConfigPolicy& policy : policies) {
    const PolicyInfo& info = FindPolicy(policy.name);
    if (FindParameter(info, key) != nullptr) return;
    for (const ParameterInfo& parameter : info.parameters) known.push_back(parameter.name);
  }
  throw UsageError(place + ": parameters." + Printable(key),
                   WithSuggestion("unknown parameter", key, known), OneOf(known));
}

// Gives each policy those of the settings for all policies that it takes and has not set.
void AddGeneral(const std::vector<std::string>& general, TrainingConfig& config) {
  const std::string place = Printable(InputName(config.path));
  for (const ConfigPolicy& policy : config.policies) {
    for (const std::string& setting : policy.settings) {
      RequireTaken(place, KeyOf(setting), std::span(&policy, 1));
    }
  }
  for (const std::string& setting : general) RequireTaken(place, KeyOf(setting), config.policies);
  for (ConfigPolicy& policy : config.policies) {
    const PolicyInfo& info = FindPolicy(policy.name);
    const std::vector<std::string> own = policy.settings;
    for (const std::string& setting : general) {
      const std::string_view name = ParameterName(info, KeyOf(setting));
      const auto same = [&](const std::string& other) {
        return ParameterName(info, KeyOf(other)) == name;
      };
      if (FindParameter(info, name) == nullptr || std::ranges::any_of(own, same)) continue;
      policy.settings.push_back(setting);
    }
  }
}

template <class T>
std::optional<T> Optional(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? std::nullopt : std::optional(found->get<T>());
}

TrainingConfig ConfigOf(const Json& meant) {
  TrainingConfig config;
  config.path = meant.at("path");
  config.kind = meant.at("kind");
  config.formats = meant.at("formats").get<std::vector<std::string>>();
  for (const Json& policy : meant.at("policies")) {
    config.policies.push_back(
        {policy.at("name"), policy.at("settings").get<std::vector<std::string>>()});
  }
  config.scaled = meant.at("scaled");
  config.clipping.max_norm = Optional<double>(meant, "max_norm");
  config.clipping.max_value = Optional<double>(meant, "max_value");
  if (const auto rule = Optional<std::string>(meant, "clip_rule")) {
    config.clipping.rule = *ValueNamed<ClipRule>(*rule);
  }
  config.accumulate_steps = Optional<int64_t>(meant, "accumulate_steps");
  if (const auto test = Optional<std::string>(meant, "finite_test")) {
    config.finite_test = ValueNamed<FiniteTest>(*test);
  }
  for (const auto& [what, format] : meant.at("updates").items()) {
    config.updates.emplace_back(what, format.get<std::string>());
  }
  config.notes = meant.at("notes").get<std::vector<std::string>>();
  // The names of a file, as the engine has them; the error names the file.
  try {
    for (std::string& format : config.formats) format = ParseFormat(format).name;
    for (ConfigPolicy& policy : config.policies) policy.name = FindPolicy(policy.name).name;
  } catch (const Error& error) {
    throw UsageError(Printable(InputName(config.path)), error.what());
  }
  AddGeneral(meant.at("general").get<std::vector<std::string>>(), config);
  return config;
}

}  // namespace

void ConfigArguments::Visit(OptionRows& option, ConfigFiles files) {
  const bool several = files == ConfigFiles::kSeveral;
  option.Group(kTryGroup);
  OptionRow& config = option(
      "--config", paths, "FILE",
      std::string("Take format, policy and parameters from a training configuration: YAML, "
                  "JSON or TOML of Cerebras, DeepSpeed, Hugging Face, Accelerate, "
                  "Lightning, NeMo, fairseq, verl, torchtitan, torch, Apex, or a script with "
                  "the command line of Megatron-LM, fairseq or Hugging Face; '-' for "
                  "standard input; --format, --policy and --set override it") +
          (several ? "; repeatable, to compare the runs of several files" : ""));
  // Several are taken here, so that ReadConfig can say which command compares them.
  config.repeats = true;
  if (!several) config.takes = Takes::kOne;
  option("--config-kind", kind, "KIND",
         "Software that the file was written for: cerebras, deepspeed, accelerate, megatron, "
         "fairseq, huggingface, lightning, verl, torchtitan, torch, apex, cerebras-tf, "
         "cerebras-old or dlsim (default: recognized by its content)",
         {"verl", "accelerate", "megatron", "fairseq", "huggingface", "lightning", "cerebras",
          "deepspeed", "torchtitan", "torch", "apex", "cerebras-tf", "cerebras-old", "dlsim"});
  option("--config-version", version, "VERSION",
         "Version of the training software that the file was written for, such as 0.16.4 for "
         "DeepSpeed or 1.6.1 for the Model Zoo; defaults differ between versions (default: the "
         "newest)");
  option("--backend", backend, "NAME",
         "Where a Cerebras configuration runs: csx, gpu or cpu (default: what the file says, else "
         "csx)",
         {"csx", "gpu", "cpu"});
  option.Group("");
  option("--configured", configured, "JSON", "What the files of --config mean");
  option.Group(kTryGroup);
}

void RequirePython(const std::string& option, const std::string& instead) {
  throw UsageError(option, "is read by the dlsim command of the Python package",
                   instead + ", or the dlsim that `pip install .` installs");
}

std::vector<TrainingConfig> ReadConfigs(const ConfigArguments& arguments) {
  if (arguments.paths.empty()) {
    if (!arguments.backend.empty()) throw UsageError("--backend", "needs --config");
    if (!arguments.kind.empty()) throw UsageError("--config-kind", "needs --config");
    if (!arguments.version.empty()) throw UsageError("--config-version", "needs --config");
    return {};
  }
  std::set<std::string> seen;
  for (const std::string& path : arguments.paths) {
    if (!seen.insert(path).second) throw UsageError("--config", Quoted(path) + " is given twice");
  }
  if (!arguments.configured) RequirePython("--config", "--policy, --format and --set");
  std::vector<TrainingConfig> configs;
  try {
    for (const Json& meant : Json::parse(*arguments.configured)) configs.push_back(ConfigOf(meant));
  } catch (const Json::exception& error) {
    throw UsageError("--configured", Printable(error.what()));
  }
  return configs;
}

std::optional<TrainingConfig> ReadConfig(const ConfigArguments& arguments) {
  if (arguments.paths.size() > 1) {
    throw UsageError("--config", "several files", "one; dlsim replay compares several",
                     std::to_string(arguments.paths.size()));
  }
  std::vector<TrainingConfig> configs = ReadConfigs(arguments);
  if (configs.empty()) return std::nullopt;
  return std::move(configs.front());
}

std::optional<TrainingConfig> ReadConfigOfUnclippedRuns(const ConfigArguments& arguments) {
  std::optional<TrainingConfig> config = ReadConfig(arguments);
  if (config && config->clipping.enabled()) {
    config->notes.push_back("gradients are not clipped here: dlsim replay clips");
    config->clipping = {};
  }
  return config;
}

std::vector<std::string> SettingsOf(const ConfigPolicy& policy,
                                    std::span<const std::string> command_line) {
  const PolicyInfo& info = FindPolicy(policy.name);
  std::vector<std::string> settings;
  for (const std::string& setting : policy.settings) {
    const std::string_view parameter = ParameterName(info, KeyOf(setting));
    // Whether a setting of the command line sets this parameter of this policy.
    const auto sets = [&](const std::string& other) {
      std::string_view key = KeyOf(other);
      if (const size_t dot = key.rfind('.'); dot != key.npos) {
        if (FindPolicy(key.substr(0, dot)).name != info.name) return false;
        key.remove_prefix(dot + 1);
      }
      return ParameterName(info, key) == parameter;
    };
    if (std::ranges::none_of(command_line, sets)) settings.push_back(setting);
  }
  return settings;
}

void ApplyConfig(const TrainingConfig& config, SimulationRequest& request) {
  if (request.formats.empty()) request.formats = config.formats;
  const bool asked = !request.policies.empty();
  const std::vector<std::string> command_line = request.settings;
  for (const ConfigPolicy& policy : config.policies) {
    const PolicyInfo& info = FindPolicy(policy.name);
    // "all" stands for every policy.
    const auto same = [&](const std::string& name) {
      return name == "all" || FindPolicy(name).name == info.name;
    };
    if (asked && std::ranges::none_of(request.policies, same)) continue;
    if (!asked) request.policies.push_back(policy.name);
    for (const std::string& setting : SettingsOf(policy, command_line)) {
      request.settings.push_back(std::string(info.name) + "." + setting);
    }
  }
  if (!request.clipping.enabled() && config.clipping.enabled()) {
    request.clipping.max_norm = config.clipping.max_norm;
    request.clipping.max_value = config.clipping.max_value;
    // A file's static scale says nothing of its stack; the other policies have their own rule.
    const bool is_static = request.policies == std::vector<std::string>{"static"};
    if (!request.clip_rule && is_static) request.clip_rule = config.clipping.rule;
  }
  if (!request.finite_test) request.finite_test = config.finite_test;
}

Recipe RecipeOf(const TrainingConfig& config) {
  const bool half = std::ranges::any_of(config.policies, [](const ConfigPolicy& policy) {
    return policy.name.starts_with("deepspeed") || policy.name == "megatron";
  });
  return half ? Recipe::kHalf : Recipe::kAutocast;
}

std::string DescribeConfig(const TrainingConfig& config) {
  std::string text = "config: " + Printable(InputName(config.path)) + " (" + config.kind + ")\n";
  for (const std::string& note : config.notes) text += "note: " + note + "\n";
  return text;
}

void Rows(const TrainingConfig& of, RowSink& row) {
  row("file", of.path, "path of the configuration");
  row("kind", of.kind, "software that it was written for");
  row("updates", of.updates, "formats that it names for weights, states and gradients");
  row("notes", of.notes, "remarks on what it does not say, or says unusually");
}

namespace {

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

void AddRuns(SimulationRequest& request, const std::string& config, ConfiguredRuns& made) {
  if (request.formats.empty()) request.formats = {kDefaultFormats.begin(), kDefaultFormats.end()};
  std::vector<SimulationRun> runs = PrepareRuns(request);
  for (SimulationRun& run : runs) run.config = config;
  std::ranges::move(runs, std::back_inserter(made.runs));
  for (const std::string& format : request.formats) {
    if (std::ranges::count(made.formats, format) == 0) made.formats.push_back(format);
  }
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
  const std::vector<std::string> names = NamesOf(arguments.paths);
  const bool several = configs.size() > 1;
  const SimulationRequest asked = request;
  ConfiguredRuns made;
  for (size_t i = 0; i < configs.size(); ++i) {
    const TrainingConfig& config = configs[i];
    request = asked;
    // A format with scales of its own is listed with those of the rest of the training.
    if (asked.formats.empty() && !config.scaled.empty() &&
        std::ranges::count(made.scaled, config.scaled) == 0) {
      made.scaled.push_back(config.scaled);
    }
    ApplyConfig(config, request);
    // Steps are summed as they are read, for all runs alike.
    if (i == 0) made.accumulate_steps = config.accumulate_steps;
    if (config.accumulate_steps.value_or(1) != made.accumulate_steps.value_or(1)) {
      throw UsageError(
          "--config", "files that sum different numbers of steps cannot be compared",
          std::to_string(made.accumulate_steps.value_or(1)) + " as in the first",
          std::to_string(config.accumulate_steps.value_or(1)) + " in " + Quoted(config.path));
    }
    // Files that differ are judged as autocast, which holds less in 16 bits.
    const Recipe recipe = RecipeOf(config);
    made.recipe = made.recipe.value_or(recipe) == recipe ? recipe : Recipe::kAutocast;
    AddRuns(request, several ? names[i] : "", made);
    made.configs.push_back(
        {config, several ? names[i] : "", several ? request.clipping : Clipping()});
    made.text += DescribeConfig(config);
    const auto& [max_norm, max_value, rule, domain] = request.clipping;
    if (!several || !request.clipping.enabled()) continue;
    made.text += std::string("note: gradients clipped to ") + (max_norm ? "norm " : "magnitude ") +
                 PythonRepr(max_norm ? *max_norm : *max_value) + "\n";
  }
  if (configs.empty()) AddRuns(request, "", made);
  if (several) request = asked;
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
