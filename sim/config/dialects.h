// SPDX-License-Identifier: Apache-2.0
// The dialects of training configurations, one file each. `file` is the whole file.
#pragma once

#include "sim/config/config_block.h"
#include "sim/config/training_config.h"

namespace dlsim::sim {

TrainingConfig ReadModelZoo(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadModelZooOld(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadTfTrainer(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadDeepSpeed(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadTorch(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadApex(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadHfTrainer(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadAccelerate(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadAccelerateRun(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadLightning(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadMegatron(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadFairseq(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadTorchtitan(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadVerl(const ConfigBlock& file, const ConfigOptions& options);
TrainingConfig ReadDlsimToml(const ConfigBlock& file, const ConfigOptions& options);

// True if the file has what only this dialect has.
bool LooksLikeModelZoo(const ConfigBlock& file);
bool LooksLikeTfTrainer(const ConfigBlock& file);
bool LooksLikeModelZooOld(const ConfigBlock& file);
bool LooksLikeDeepSpeed(const ConfigBlock& file);
bool LooksLikeTorch(const ConfigBlock& file);
bool LooksLikeApex(const ConfigBlock& file);
bool LooksLikeHfTrainer(const ConfigBlock& file);
bool LooksLikeAccelerate(const ConfigBlock& file);
bool LooksLikeLightning(const ConfigBlock& file);
bool LooksLikeAccelerateRun(const ConfigBlock& file);
bool LooksLikeMegatron(const ConfigBlock& file);
bool LooksLikeFairseq(const ConfigBlock& file);
bool LooksLikeTorchtitan(const ConfigBlock& file);
bool LooksLikeVerl(const ConfigBlock& file);
bool LooksLikeDlsimToml(const ConfigBlock& file);

// Returns the name of the number format that the value names; "torch.float16" is float16.
std::optional<std::string> ReadFormat(const ConfigBlock& block, std::string_view key);

}  // namespace dlsim::sim
