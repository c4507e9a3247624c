// SPDX-License-Identifier: Apache-2.0
// Compared with megatron-core 0.19.2 (transformer_config.py, fp8_utils.py), Accelerate 1.15.0
// (commands/launch.py, utils/dataclasses.py, utils/ao.py), TransformerEngine (common/recipe),
// torchao 0.12 to 0.18 (float8/config.py, prototype/mx_formats/config.py) and torchtitan before 0.3
// (config/job_config.py).
#include "sim/config/scaled_recipes.h"

#include <algorithm>
#include <array>
#include <optional>

#include "dlsim/error.h"
#include "sim/config/half_precision.h"

namespace dlsim::sim {
namespace {

constexpr std::array<std::string_view, 2> kDecides = {"most_recent", "max"};
constexpr int64_t kMostHistory = 65536;  // what a scaled format takes
constexpr int64_t kMostMargin = 64;

std::string Delayed(std::string_view backward, int64_t history, std::string_view decides,
                    int64_t margin) {
  return "fp8-delayed:backward=" + std::string(backward) + ",history=" + std::to_string(history) +
         ",decides=" + std::string(decides) + ",margin=" + std::to_string(margin);
}

// The table fp8_config, whose keys may have the prefix of the command line's options.
class AccelerateFp8 {
 public:
  explicit AccelerateFp8(const ConfigBlock& file) : table_(TableOrEmpty(file, "fp8_config")) {}

  const ConfigBlock& table() const { return table_; }
  std::string Key(std::string_view name) const {
    const std::string prefixed = "fp8_" + std::string(name);
    return table_.Has(prefixed) ? prefixed : std::string(name);
  }
  bool Has(std::string_view name) const { return table_.Has(Key(name)); }
  int64_t Integer(std::string_view name, int64_t min, int64_t max, int64_t fallback) const {
    return table_.Integer(Key(name), min, max).value_or(fallback);
  }
  // In any case, as Accelerate takes it.
  std::string Choice(std::string_view name, std::span<const std::string_view> names,
                     std::string fallback) const {
    const std::string text = Lowered(table_.Text(Key(name)).value_or(std::move(fallback)));
    return std::ranges::count(names, text) > 0 ? text : *table_.Choice(Key(name), names);
  }

 private:
  ConfigBlock table_;
};

bool HasTrueItem(const ConfigNode* list) {
  return list != nullptr && std::ranges::any_of(list->entries, [](const ConfigEntry& entry) {
           return entry.value.text == "true";
         });
}

void NoteTransformerEngine(const AccelerateFp8& fp8, std::vector<std::string>& notes) {
  for (const std::string_view key : {"amax_history_length", "amax_compute_algorithm"}) {
    if (!fp8.Has(key)) continue;
    notes.push_back(std::string(key) +
                    ", which accelerate config writes, is ignored by accelerate launch: it reads " +
                    std::string(key.substr(0, 13) == "amax_history_" ? "amax_history_len"
                                                                     : "amax_compute_algo"));
  }
  if (fp8.Integer("interval", 0, kMostHistory, 1) != 1) {
    notes.push_back("interval is not simulated: TransformerEngine 2 does not have it");
  }
  if (HasTrueItem(fp8.table().Find(fp8.Key("override_linear_precision")))) {
    notes.push_back("override_linear_precision is not simulated: all three products are converted");
  }
}

// Accelerate passes on what differs from its own defaults, so that TransformerEngine's count where
// those of the two differ: max for amax_compute_algo, E4M3 for MXFP8.
std::string TransformerEngineFormat(const AccelerateFp8& fp8, std::vector<std::string>& notes) {
  constexpr std::array<std::string_view, 3> kFormats = {"hybrid", "e4m3", "e5m2"};
  constexpr int64_t kHistory = 1024;
  const std::string elements = fp8.Choice("fp8_format", kFormats, "hybrid");
  if (elements == "e5m2") {
    fp8.table().Refuse(fp8.Key("fp8_format"), "TransformerEngine does not train in E5M2 alone",
                       "HYBRID or E4M3");
  }
  const int64_t history = fp8.Integer("amax_history_len", 1, kMostHistory, kHistory);
  const bool is_max = fp8.Choice("amax_compute_algo", kDecides, "most_recent") == "max";
  const int64_t margin = fp8.Integer("margin", -kMostMargin, kMostMargin, 0);
  NoteTransformerEngine(fp8, notes);
  if (fp8.table().Bool(fp8.Key("use_mxfp8_block_scaling")).value_or(false)) {
    for (const std::string_view key : {"amax_compute_algo", "amax_history_len"}) {
      if (key == "amax_compute_algo" ? !is_max : history == kHistory) continue;
      fp8.table().Refuse(fp8.Key(key), "Accelerate refuses it with use_mxfp8_block_scaling");
    }
    return "mxfp8:backward=e4m3";
  }
  if (!is_max) {
    notes.push_back(
        "amax_compute_algo most_recent is Accelerate's default, which it does not pass on: "
        "TransformerEngine's own, max, counts");
  }
  return Delayed(elements == "hybrid" ? "e5m2" : "e4m3", history, "max", margin);
}

// True if the list, or the text with commas, of model.converters has the name.
bool IsConverter(const ConfigBlock& file, std::string_view name) {
  const ConfigNode* converters = file.node().FindPath("model.converters");
  if (converters == nullptr) return false;
  const auto is_name = [&](const ConfigEntry& entry) { return entry.value.text == name; };
  if (std::ranges::any_of(converters->entries, is_name)) return true;
  return ("," + converters->text + ",").find("," + std::string(name) + ",") != std::string::npos;
}

// The table of a converter of linear layers under its newer or its older name; none if it is off.
std::optional<ConfigBlock> Converter(const ConfigBlock& file, std::string_view name) {
  if (IsConverter(file, "quantize.linear." + std::string(name))) {
    return TableOrEmpty(TableOrEmpty(TableOrEmpty(file, "quantize"), "linear"), name);
  }
  const ConfigBlock older = TableOrEmpty(file, name);
  const bool is_on = name == "float8" && older.Bool("enable_float8_linear").value_or(false);
  return is_on || IsConverter(file, name) ? std::optional(older) : std::nullopt;
}

std::string Float8Format(const ConfigBlock& table, std::vector<std::string>& notes) {
  constexpr std::array<std::string_view, 3> kRecipes = {"tensorwise", "rowwise",
                                                        "rowwise_with_gw_hp"};
  for (const std::string_view of : {"input", "weight", "grad_output"}) {
    if (!table.Is("scaling_type_" + std::string(of), "delayed")) continue;
    notes.push_back("scaling_type_" + std::string(of) +
                    " delayed is not simulated: torchao deleted its delayed scaling");
    return "";
  }
  const std::string recipe = table.Choice("recipe_name", kRecipes).value_or("tensorwise");
  if (recipe == "tensorwise") return "fp8-current:backward=e5m2";
  if (recipe == "rowwise") return "fp8-rowwise";
  notes.push_back(
      "rowwise_with_gw_hp is not simulated: it keeps one of the three products in 16 bits; "
      "--format fp8-rowwise judges the recipe that converts all");
  return "";
}

std::string MxFormat(const ConfigBlock& table, std::vector<std::string>& notes) {
  const std::string recipe = table.Text("recipe_name").value_or("mxfp8_cublas");
  if (recipe == "mxfp8_cublas" || recipe == "mxfp8_emulated") return "mxfp8:rule=floor";
  if (recipe == "mxfp8_cublas_rceil") return "mxfp8";
  if (recipe == "mxfp4_cutlass" || recipe == "mxfp4_emulated") return "mxfp4";
  notes.push_back("recipe_name " + Printable(recipe) +
                  " is not simulated: torchao 0.12 to 0.15 have mxfp8_cublas, mxfp8_cublas_rceil, "
                  "mxfp8_emulated, mxfp4_cutlass and mxfp4_emulated");
  return "";
}

}  // namespace

std::string MegatronFp8(const ConfigBlock& arguments, std::string_view elements,
                        std::vector<std::string>& notes) {
  constexpr std::array<std::string_view, 5> kRecipes = {"delayed", "tensorwise", "mxfp8",
                                                        "blockwise", "custom"};
  const std::string backward = elements == "hybrid" ? "e5m2" : "e4m3";
  for (const std::string_view key : {"fp8_params", "fp8_param_gather"}) {  // NeMo's, Megatron-LM's
    if (!arguments.Bool(key).value_or(false)) continue;
    notes.push_back(std::string(key) + " is not simulated: it stores weights in FP8, too");
  }
  const std::string recipe = arguments.Choice("fp8_recipe", kRecipes).value_or("delayed");
  if (recipe == "tensorwise") return "fp8-current:backward=" + backward;
  if (recipe == "mxfp8") return "mxfp8:backward=" + backward;
  if (recipe == "blockwise") return "fp8-block:backward=" + backward;
  if (recipe == "custom") {
    notes.push_back("fp8_recipe custom is not simulated: it is code");
    return "";
  }
  return Delayed(backward, arguments.Integer("fp8_amax_history_len", 1, kMostHistory).value_or(1),
                 arguments.Choice("fp8_amax_compute_algo", kDecides).value_or("most_recent"),
                 arguments.Integer("fp8_margin", -kMostMargin, kMostMargin).value_or(0));
}

void ReadAccelerateFp8(const ConfigBlock& file, TrainingConfig& config) {
  constexpr std::array<std::string_view, 3> kBackends = {"TE", "AO", "MSAMP"};
  const AccelerateFp8 fp8(file);
  const std::string key = fp8.Key("backend");
  const std::optional<std::string> backend = fp8.table().Choice(key, kBackends);
  if (!backend) {
    config.notes.push_back(
        "fp8 without fp8_config.backend: Accelerate takes what is installed, so that no FP8 format "
        "is judged");
  } else if (*backend == "TE") {
    config.scaled = TransformerEngineFormat(fp8, config.notes);
  } else if (*backend == "AO") {
    config.scaled = "fp8-current:backward=e5m2";
    config.notes.push_back("Accelerate leaves the first and the last linear layer in bf16");
  } else {
    fp8.table().Refuse(key, "MS-AMP scales weights and states, too, which is not read", "TE or AO");
  }
}

void ReadTorchaoRecipes(const ConfigBlock& file, TrainingConfig& config) {
  for (const std::string_view name : {"float8", "mx"}) {
    const std::optional<ConfigBlock> table = Converter(file, name);
    if (!table) continue;
    config.scaled =
        name == "mx" ? MxFormat(*table, config.notes) : Float8Format(*table, config.notes);
    const ConfigNode* kept = table->Find("filter_fqns");
    if (kept != nullptr && !kept->entries.empty() && !config.scaled.empty()) {
      config.notes.push_back("filter_fqns leaves layers in bf16, which are judged all the same");
    }
  }
}

}  // namespace dlsim::sim
