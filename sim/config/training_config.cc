// SPDX-License-Identifier: Apache-2.0
#include "sim/config/training_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/format.h"
#include "sim/base/number.h"
#include "sim/base/suggest.h"
#include "sim/base/text_input.h"
#include "sim/config/arguments.h"
#include "sim/config/config_file.h"
#include "sim/config/deepspeed_file.h"
#include "sim/config/dialects.h"
#include "sim/config/foreign_stacks.h"
#include "sim/config/lint.h"

namespace dlsim::sim {
namespace {

enum class HasBackend { kNo, kYes };

struct Dialect {
  std::string_view name;
  HasBackend backend;
  bool (*matches)(const ConfigBlock&);
  TrainingConfig (*read)(const ConfigBlock&, const ConfigOptions&);
};

// In the order in which they are tried.
constexpr std::array kDialects = {
    Dialect{"verl", HasBackend::kNo, LooksLikeVerl, ReadVerl},
    Dialect{"accelerate", HasBackend::kNo, LooksLikeAccelerateRun, ReadAccelerateRun},
    Dialect{"megatron", HasBackend::kNo, LooksLikeMegatron, ReadMegatron},
    Dialect{"fairseq", HasBackend::kNo, LooksLikeFairseq, ReadFairseq},
    Dialect{"huggingface", HasBackend::kNo, LooksLikeHfTrainer, ReadHfTrainer},
    Dialect{"lightning", HasBackend::kNo, LooksLikeLightning, ReadLightning},
    Dialect{"cerebras", HasBackend::kYes, LooksLikeModelZoo, ReadModelZoo},
    Dialect{"deepspeed", HasBackend::kNo, LooksLikeDeepSpeed, ReadDeepSpeed},
    Dialect{"torchtitan", HasBackend::kNo, LooksLikeTorchtitan, ReadTorchtitan},
    Dialect{"torch", HasBackend::kNo, LooksLikeTorch, ReadTorch},
    Dialect{"apex", HasBackend::kNo, LooksLikeApex, ReadApex},
    Dialect{"cerebras-tf", HasBackend::kNo, LooksLikeTfTrainer, ReadTfTrainer},
    Dialect{"cerebras-old", HasBackend::kYes, LooksLikeModelZooOld, ReadModelZooOld},
    Dialect{"dlsim", HasBackend::kNo, LooksLikeDlsimToml, ReadDlsimToml},
};

constexpr auto kDialectNames = [] {
  std::array<std::string_view, kDialects.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kDialects[i].name;
  return names;
}();

const Dialect& FindDialect(const ConfigBlock& file, const std::string& kind) {
  if (kind.empty()) RefuseForeignStack(file);
  const auto matches = [&](const Dialect& dialect) {
    return kind.empty() ? dialect.matches(file) : dialect.name == kind;
  };
  const auto found = std::ranges::find_if(kDialects, matches);
  if (found != kDialects.end()) return *found;
  if (!kind.empty()) {
    throw UsageError("--config-kind", WithSuggestion("unknown name", kind, kDialectNames),
                     OneOf(kDialectNames), Quoted(kind));
  }
  for (const std::string_view key : {"--deepspeed_config", "--deepspeed-config"}) {
    if (!file.Has(key)) continue;
    const ConfigNode arguments = ArgumentTable(file.node());
    RefuseDeepSpeedRun(ConfigBlock(file.file(), arguments));
  }
  std::string seen;
  size_t count = 0;
  for (const ConfigEntry& entry : file.node().entries) {
    if (++count > 5) break;
    seen += (seen.empty() ? "" : ", ") + Printable(entry.key);
  }
  if (count > 5) seen += ", ...";
  file.Refuse("", "not a known training configuration",
              "the keys of " + OneOf(kDialectNames) + " (or name it by --config-kind)",
              seen.empty() ? "no keys" : seen);
}

}  // namespace

std::span<const std::string_view> ConfigKinds() { return kDialectNames; }

StackVersion ParseStackVersion(const std::string& place, const std::string& text) {
  StackVersion version = {};
  std::string_view rest = text;
  for (size_t i = 0; i < version.size() && !rest.empty(); ++i) {
    const size_t end = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, end);
    if (part.empty() || part.size() > 9 || part.find_first_not_of("0123456789") != part.npos) break;
    version[i] = ParseInteger(part, place);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (!rest.empty() || text.empty() || text.back() == '.') {
    throw UsageError(place, "bad version", "up to three numbers such as 1.9.1", Quoted(text));
  }
  return version;
}

TrainingConfig InterpretConfig(const std::string& file, const ConfigNode& root,
                               const ConfigOptions& options) {
  const ConfigBlock block(file, root);
  const Dialect& dialect = FindDialect(block, options.kind);
  TrainingConfig config = dialect.read(block, options);
  if (options.backend && dialect.backend == HasBackend::kNo) {
    config.notes.push_back("--backend has no effect on this kind of file");
  }
  if (config.grad_accum_steps.value_or(1) > 1) {
    const std::string steps = std::to_string(*config.grad_accum_steps);
    config.notes.push_back("training accumulates " + steps +
                           " micro-steps: a trace recorded so has them; where each recorded step "
                           "is one, give --grad-accum-steps " +
                           steps);
  }
  AddNotes(LintConfig(config, root), config.notes);
  return config;
}

TrainingConfig ReadTrainingConfig(const std::string& path, const ConfigOptions& options) {
  return InterpretConfig(InputName(path), ReadConfigFile(path), options);
}

std::optional<std::string> ReadFormat(const ConfigBlock& block, std::string_view key) {
  const std::optional<std::string> text = block.Text(key);
  if (!text) return std::nullopt;
  std::string_view name = *text;
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "half") name = "fp16";
  try {
    return ParseFormat(name).name;
  } catch (const Error&) {
    block.Refuse(key, "unknown format", "a name such as float16 or bfloat16", Quoted(*text));
  }
}

}  // namespace dlsim::sim
