// SPDX-License-Identifier: Apache-2.0
// How many data-parallel ranks sum their gradients, where a configuration states or determines it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/config/config_block.h"

namespace dlsim::sim {

struct DataRanks {
  int64_t count = 0;
  std::string from;  // the keys that say it: "nproc_per_node 8 x nnodes 2"
};

// The key of a script's table with the program that launches all of its trainings: "torchrun",
// "accelerate" or "deepspeed"; no such key where they differ.
inline constexpr std::string_view kLauncherKey = "launcher of the script";

// Returns the name of a launcher if a word of a command is one, else "".
std::string_view LauncherNamed(std::string_view word);

// True for keys that the functions below read: where a script chooses their value, it is unclear.
bool IsOfRanks(std::string_view key);

// Each returns nothing where one of the numbers is missing without a default, unclear or no count.

// Of the options of a script: what its launcher gets, over Megatron's model parallelism.
std::optional<DataRanks> LaunchedRanks(const ConfigBlock& arguments);

// DeepSpeed requires batch = micro-batch x micro-steps x ranks.
std::optional<DataRanks> DeepSpeedRanks(const ConfigBlock& file);

std::optional<DataRanks> AccelerateRanks(const ConfigBlock& file);
std::optional<DataRanks> FairseqRanks(const ConfigBlock& common, const ConfigBlock& distributed);
std::optional<DataRanks> LightningRanks(const ConfigBlock& file);
std::optional<DataRanks> TorchtitanRanks(const ConfigBlock& file);

// `megatron`: the table of that engine, or null for FSDP, which sums over all GPUs.
std::optional<DataRanks> VerlRanks(const ConfigBlock& file, const ConfigBlock* megatron);

}  // namespace dlsim::sim
