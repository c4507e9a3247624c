// SPDX-License-Identifier: Apache-2.0
// The number of data-parallel ranks, where a configuration states or determines it.
#include "sim/config/data_ranks.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/config_test_util.h"

namespace dlsim::sim {
namespace {

// "64: nproc_per_node 8 x nnodes 8", or nothing.
std::string RanksOf(const std::string& text) {
  const std::optional<DataRanks> ranks = Interpret(text).ranks;
  return ranks ? std::to_string(ranks->count) + ": " + ranks->from : "";
}

constexpr std::string_view kTrainer =
    " train.py --output_dir o --learning_rate 1e-5 --bf16 --per_device_train_batch_size 1\n";

std::string Launched(const std::string& launcher) { return launcher + std::string(kTrainer); }

TEST(DataRanks, OfTorchrun) {
  EXPECT_EQ(RanksOf(Launched("torchrun --nproc_per_node 8 --nnodes=4")),
            "32: nproc_per_node 8 x nnodes 4");
  EXPECT_EQ(RanksOf(Launched("python -m torch.distributed.launch --nproc-per-node=8")),
            "8: nproc_per_node 8");
  EXPECT_EQ(RanksOf("#!/bin/bash\nGPUS=8\nARGS=(--nproc_per_node $GPUS --nnodes ${NNODES:-2})\n" +
                    Launched("torchrun ${ARGS[@]}")),
            "16: nproc_per_node 8 x nnodes 2");
  // Elastic, a choice of the machine, or of whoever runs the script.
  for (const std::string launcher :
       {"torchrun --nproc_per_node 8 --nnodes 1:4", "torchrun --nproc_per_node gpu",
        "torchrun --nproc_per_node $1", "torchrun --nnodes 4", "torchrun $@ --nproc_per_node 8",
        "python"}) {
    EXPECT_EQ(RanksOf(Launched(launcher)), "") << launcher;
  }
}

TEST(DataRanks, OfAScriptThatDoesNotDecide) {
  const std::string one = Launched("torchrun --nproc_per_node 8");
  EXPECT_EQ(RanksOf("#!/bin/bash\npip install --upgrade x\n" + one), "8: nproc_per_node 8");
  // Another program may be the training.
  EXPECT_EQ(RanksOf("#!/bin/bash\npython prepare.py --bf16\n" + one), "");
  EXPECT_EQ(RanksOf("#!/bin/bash\n" + Launched("torchrun --nproc_per_node 4") + one), "");
  EXPECT_EQ(RanksOf("#!/bin/bash\nif [ $X ]; then\n  N=4\nelse\n  N=8\nfi\n" +
                    Launched("torchrun --nproc_per_node $N")),
            "");
}

TEST(DataRanks, OfOtherLaunchers) {
  EXPECT_EQ(RanksOf(Launched("accelerate launch --num_machines 2 --num_processes 16")),
            "16: num_processes 16");
  EXPECT_EQ(RanksOf(Launched("deepspeed --num_gpus=8 --num_nodes 2")),
            "16: num_gpus 8 x num_nodes 2");
  EXPECT_EQ(RanksOf(Launched("deepspeed --hostfile h --num_gpus 8")), "");
}

TEST(DataRanks, ModelParallelismDividesThem) {
  const std::string megatron =
      "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 2 --hidden-size 8 "
      "--bf16 --tensor-model-parallel-size 4";
  EXPECT_EQ(RanksOf(megatron + "\n"),
            "8: nproc_per_node 8 x nnodes 4 / tensor_model_parallel_size 4");
  EXPECT_EQ(RanksOf(megatron + " --pipeline-model-parallel-size 2\n"),
            "4: nproc_per_node 8 x nnodes 4 / tensor_model_parallel_size 4 / "
            "pipeline_model_parallel_size 2");
  EXPECT_EQ(RanksOf(megatron + " --pipeline-model-parallel-size $PP\n"), "");
  EXPECT_EQ(RanksOf(megatron + " --pipeline-model-parallel-size 3\n"), "");
}

TEST(DataRanks, OfDeepSpeedsBatchSizes) {
  const auto file = [](const std::string& sizes) {
    return "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": true}" + sizes + "}";
  };
  EXPECT_EQ(RanksOf(file(", \"train_batch_size\": 256, \"train_micro_batch_size_per_gpu\": 4, "
                         "\"gradient_accumulation_steps\": 2")),
            "32: train_batch_size 256 / train_micro_batch_size_per_gpu 4 / "
            "gradient_accumulation_steps 2");
  // Two of the three leave the other and the ranks open.
  EXPECT_EQ(RanksOf(file(", \"train_batch_size\": 256, \"train_micro_batch_size_per_gpu\": 4")),
            "");
  EXPECT_EQ(RanksOf(file(", \"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": 4, "
                         "\"gradient_accumulation_steps\": 2")),
            "");
  EXPECT_EQ(RanksOf(file(", \"train_batch_size\": 100, \"train_micro_batch_size_per_gpu\": 3, "
                         "\"gradient_accumulation_steps\": 1")),
            "");
}

TEST(DataRanks, OfFiles) {
  EXPECT_EQ(RanksOf("mixed_precision: bf16\ndistributed_type: FSDP\nnum_processes: 8\n"),
            "8: num_processes 8");
  EXPECT_EQ(RanksOf("mixed_precision: bf16\ndistributed_type: 'NO'\nnum_processes: 8\n"), "");
  EXPECT_EQ(RanksOf("mixed_precision: bf16\ndistributed_type: FSDP\nnum_processes: 8\n"
                    "parallelism_config: {parallelism_config_tp_size: 2}\n"),
            "");
  const std::string lightning = "trainer: {max_steps: 1, precision: bf16-mixed, ";
  EXPECT_EQ(RanksOf(lightning + "devices: 8, num_nodes: 2}\n"), "16: devices 8 x num_nodes 2");
  EXPECT_EQ(RanksOf(lightning + "devices: [0, 1, 2]}\n"), "3: devices 3");
  EXPECT_EQ(RanksOf(lightning + "devices: '0,1,'}\n"), "2: devices 2");
  for (const std::string devices : {"auto", "-1", "0"}) {
    EXPECT_EQ(RanksOf(lightning + "devices: " + devices + "}\n"), "") << devices;
  }
  EXPECT_EQ(RanksOf(lightning + "devices: 8, strategy: {class_path: ModelParallelStrategy}}\n"),
            "");
  EXPECT_EQ(RanksOf(lightning + "devices: 8}\nmodel: {tensor_model_parallel_size: 2}\n"),
            "4: devices 8 / tensor_model_parallel_size 2");
  const std::string titan = "[job]\ndump_folder = \"x\"\n[training]\nsteps = 5\n[parallelism]\n";
  EXPECT_EQ(RanksOf(titan + "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 8\n"),
            "16: data_parallel_replicate_degree 2 x data_parallel_shard_degree 8");
  EXPECT_EQ(RanksOf(titan + "data_parallel_shard_degree = -1\n"), "");
  EXPECT_EQ(RanksOf(titan + "tensor_parallel_degree = 2\n"), "");
  EXPECT_EQ(RanksOf("fairseq-train d --arch a --criterion c --fp16 --distributed-world-size 16\n"),
            "16: distributed_world_size 16");
}

TEST(DataRanks, OfVerl) {
  const std::string run = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 ";
  EXPECT_EQ(RanksOf(run + "trainer.nnodes=2\n"), "16: n_gpus_per_node 8 x nnodes 2");
  EXPECT_EQ(RanksOf(run + "trainer.nnodes=$N\n"), "");
  EXPECT_EQ(RanksOf("python3 -m verl.trainer.main_ppo trainer.nnodes=2\n"), "");
  EXPECT_EQ(RanksOf(run + "--config-name=ppo_megatron_trainer "
                          "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4\n"),
            "2: n_gpus_per_node 8 / tensor_model_parallel_size 4");
}

}  // namespace
}  // namespace dlsim::sim
