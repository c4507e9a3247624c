// SPDX-License-Identifier: Apache-2.0
// Compared with torchrun of PyTorch 2.15, DeepSpeed 0.19.8 (runtime/config.py), accelerate 1.15.0
// (commands/launch.py), megatron-core 0.19.2 (parallel_state.py), Lightning 2.6.6, verl 0.9.1 and
// torchtitan before 0.3 (distributed/parallel_dims.py).
#include "sim/config/data_ranks.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/config/half_precision.h"
#include "sim/config/update_formats.h"

namespace dlsim::sim {
namespace {

using Kind = ConfigNode::Kind;

// More ranks than any cluster has.
constexpr double kMost = 1e6;

bool IsCount(const std::optional<double>& number) {
  return number && *number >= 1 && *number <= kMost && *number == std::floor(*number);
}

// Factors and divisors of the number of ranks, each the value of a key.
class RankProduct {
 public:
  RankProduct& Times(const ConfigBlock& block, std::string_view key,
                     std::optional<double> fallback = std::nullopt) {
    const ClearKeys keys(block);
    return Times(keys.Has(key) ? key : "", keys.NumberOr(key, fallback));
  }
  // An empty key is not named.
  RankProduct& Times(std::string_view key, std::optional<double> number) {
    return Take(key, number, factors_, " x ");
  }
  RankProduct& Over(const ConfigBlock& block, std::string_view key,
                    std::optional<double> fallback = std::nullopt) {
    const ClearKeys keys(block);
    return Take(keys.Has(key) ? key : "", keys.NumberOr(key, fallback), divisors_, " / ");
  }
  RankProduct& OverModelParallel(const ConfigBlock& block) {
    return Over(block, "tensor_model_parallel_size", 1)
        .Over(block, "pipeline_model_parallel_size", 1);
  }

  std::optional<DataRanks> Found() const {
    const double ranks = factors_ / divisors_;
    if (!is_clear_ || from_.empty() || !IsCount(ranks)) return std::nullopt;
    return DataRanks{static_cast<int64_t>(ranks), from_};
  }

 private:
  RankProduct& Take(std::string_view key, const std::optional<double>& number, double& product,
                    std::string_view sign) {
    is_clear_ = is_clear_ && IsCount(number);
    if (!is_clear_) return *this;
    product *= *number;
    if (key.empty()) return *this;
    if (!from_.empty()) from_ += sign;
    from_ += std::string(key) + " " + std::to_string(static_cast<int64_t>(*number));
    return *this;
  }

  double factors_ = 1, divisors_ = 1;
  bool is_clear_ = true;
  std::string from_;
};

// Lightning takes a number, a list of devices, or either as text; "auto" and -1 are all there are.
std::optional<double> DeviceCount(const ConfigBlock& trainer, std::string_view key) {
  const ConfigNode& devices = *trainer.Find(key);
  if (devices.kind == Kind::kList) return static_cast<double>(devices.entries.size());
  const std::string& text = devices.text;
  if (text.find(',') == text.npos) return ClearKeys(trainer).Number(key);
  const bool is_trailing = text.find_last_not_of(' ') == text.rfind(',');
  return static_cast<double>(std::ranges::count(text, ',')) + (is_trailing ? 0 : 1);
}

// Strategies with a rank of all data per device; NeMo's models divide them further.
bool IsDataParallel(const ConfigNode* strategy) {
  if (strategy == nullptr || strategy->kind == Kind::kText) return true;
  const ConfigNode* name = strategy->Find("_target_");
  if (name == nullptr) name = strategy->Find("class_path");
  return name != nullptr && (name->text.find("DDP") != std::string::npos ||
                             name->text.find("FSDP") != std::string::npos);
}

}  // namespace

std::string_view LauncherNamed(std::string_view word) {
  const std::string_view name = word.substr(word.rfind('/') + 1);
  for (const std::string_view launcher : {"torchrun", "accelerate", "deepspeed"}) {
    if (name == launcher) return launcher;
  }
  const bool module = name == "torch.distributed.run" || name == "torch.distributed.launch";
  return module ? "torchrun" : "";
}

bool IsOfRanks(std::string_view key) {
  constexpr std::array<std::string_view, 8> kParts = {
      "nproc",      "nnodes",   "num_processes", "num-processes",
      "n_gpus_per", "num_gpus", "num_nodes",     "-parallel-size"};
  const auto is_in = [&](std::string_view part) { return key.find(part) != key.npos; };
  return std::ranges::any_of(kParts, is_in) || key.ends_with("_parallel_size") ||
         key.ends_with("world-size");
}

std::optional<DataRanks> LaunchedRanks(const ConfigBlock& arguments) {
  const std::optional<std::string> launcher = arguments.Text(kLauncherKey);
  if (!launcher) return std::nullopt;
  RankProduct ranks;
  if (launcher == "torchrun") {
    ranks.Times(arguments, "nproc_per_node").Times(arguments, "nnodes", 1);
  } else if (launcher == "accelerate") {
    ranks.Times(arguments, "num_processes").Over(arguments, "parallelism_config_tp_size", 1);
  } else {
    const auto is_given = [&](std::string_view key) { return arguments.Has(key); };
    constexpr std::array<std::string_view, 3> kOtherHosts = {"hostfile", "include", "exclude"};
    if (std::ranges::any_of(kOtherHosts, is_given)) return std::nullopt;
    ranks.Times(arguments, "num_gpus").Times(arguments, "num_nodes", 1);
  }
  return ranks.OverModelParallel(arguments).Found();
}

std::optional<DataRanks> DeepSpeedRanks(const ConfigBlock& file) {
  if (file.Has("sequence_parallel_size")) return std::nullopt;
  return RankProduct()
      .Times(file, "train_batch_size")
      .Over(file, "train_micro_batch_size_per_gpu")
      .Over(file, "gradient_accumulation_steps")
      .Found();
}

std::optional<DataRanks> AccelerateRanks(const ConfigBlock& file) {
  if (file.Has("parallelism_config") || !file.Has("distributed_type")) return std::nullopt;
  const ConfigNode& type = *file.Find("distributed_type");
  if (type.text == "false" || Lowered(type.text) == "no") return std::nullopt;  // one process
  return RankProduct().Times(file, "num_processes").Found();
}

std::optional<DataRanks> FairseqRanks(const ConfigBlock& common, const ConfigBlock& distributed) {
  return RankProduct()
      .Times(distributed, "distributed_world_size")
      .Over(common, "model_parallel_size", 1)
      .Found();
}

std::optional<DataRanks> LightningRanks(const ConfigBlock& file) {
  const ConfigBlock trainer = TableOrEmpty(file, "trainer");
  const std::string_view key = trainer.Has("devices") ? "devices" : "gpus";
  if (!trainer.Has(key) || !IsDataParallel(trainer.Find("strategy"))) return std::nullopt;
  return RankProduct()
      .Times(key, DeviceCount(trainer, key))
      .Times(trainer, "num_nodes", 1)
      .OverModelParallel(TableOrEmpty(file, "model"))
      .Found();
}

std::optional<DataRanks> TorchtitanRanks(const ConfigBlock& file) {
  const ConfigBlock parallelism = TableOrEmpty(file, "parallelism");
  return RankProduct()
      .Times(parallelism, "data_parallel_replicate_degree", 1)
      .Times(parallelism, "data_parallel_shard_degree")
      .Times(parallelism, "context_parallel_degree", 1)
      .Found();
}

std::optional<DataRanks> VerlRanks(const ConfigBlock& file, const ConfigBlock* megatron) {
  const ConfigBlock trainer = TableOrEmpty(file, "trainer");
  RankProduct ranks;
  ranks.Times(trainer, "n_gpus_per_node").Times(trainer, "nnodes", 1);
  if (megatron != nullptr) ranks.OverModelParallel(*megatron);
  return ranks.Found();
}

}  // namespace dlsim::sim
