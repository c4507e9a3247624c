// SPDX-License-Identifier: Apache-2.0
#include "sim/app/config_arguments.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "dlsim/error.h"

namespace dlsim::sim {

void ConfigArguments::Visit(OptionRows& option, ConfigFiles files, const std::string& taken,
                            const std::string& win) {
  const bool several = files == ConfigFiles::kSeveral;
  option.Group(kTryGroup);
  OptionRow config =
      option("--config", paths, "FILE",
             "Take " + taken +
                 " from a training configuration: YAML, JSON or "
                 "TOML of Cerebras, DeepSpeed, Hugging Face, Accelerate, Lightning, NeMo, "
                 "fairseq, verl, torchtitan, torch, Apex, or a script with the command line of "
                 "Megatron-LM, fairseq or Hugging Face; '-' for standard input; " +
                 win + " override it" +
                 (several ? "; repeatable, to compare the runs of several files" : ""));
  // Several are taken here, so that ReadConfig can say which command compares them.
  if (!several) config.TakeAll();
  std::vector<std::pair<std::string_view, std::string_view>> kinds;
  for (const std::string_view kind : ConfigKinds()) kinds.emplace_back(kind, kind);
  option.Choice(
      "--config-kind", options.kind, kinds, "KIND",
      "Software that the file was written for: cerebras, deepspeed, accelerate, megatron, "
      "fairseq, huggingface, lightning, verl, torchtitan, torch, apex, cerebras-tf, "
      "cerebras-old or dlsim (default: recognized by its content)");
  option.Read(
      "--config-version",
      [this](const std::string& text) {
        options.version = ParseStackVersion("--config-version", text);
      },
      "VERSION",
      "Version of the training software that the file was written for, such as 0.16.4 for "
      "DeepSpeed or 1.6.1 for the Model Zoo; defaults differ between versions (default: the "
      "newest)");
  option("--backend", options.backend, "NAME",
         "Where a Cerebras configuration runs: csx, gpu or cpu (default: what the file says, else "
         "csx)");
}

std::vector<TrainingConfig> ReadConfigs(const ConfigArguments& arguments) {
  if (arguments.paths.empty()) {
    if (arguments.options.backend) throw UsageError("--backend", "needs --config");
    if (!arguments.options.kind.empty()) throw UsageError("--config-kind", "needs --config");
    if (arguments.options.version) throw UsageError("--config-version", "needs --config");
  }
  std::vector<TrainingConfig> configs;
  std::set<std::string> seen;
  for (const std::string& path : arguments.paths) {
    if (!seen.insert(path).second) throw UsageError("--config", Quoted(path) + " is given twice");
    configs.push_back(ReadTrainingConfig(path, arguments.options));
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

Json JsonConfig(const std::string& path, const TrainingConfig& config) {
  Json updates = Json::object();
  const UpdateFormats& formats = config.updates.formats;
  const auto add = [&](std::string_view key, const std::optional<std::string>& format) {
    if (format) updates[key] = *format;
  };
  add("weights", formats.weights);
  add("master", formats.master);
  add("first", formats.first);
  add("second", formats.second);
  add("gradients", formats.gradients);
  add("reduce", formats.reduce);
  return {{"file", path}, {"kind", config.kind}, {"updates", updates}, {"notes", config.notes}};
}

}  // namespace dlsim::sim
