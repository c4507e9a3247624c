// SPDX-License-Identifier: Apache-2.0
// Made-up benchmark results: a model of the noise of real runs, and files to put them in.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "sim/bench/benchmark_file.h"

namespace dlsim::sim {

// Relative sizes of what disturbs a repetition.
struct NoiseModel {
  double run_shift;      // between two runs, standard deviation
  double process_shift;  // between two processes, standard deviation
  double repetition;     // between two repetitions, standard deviation
  double drift;          // from the first repetition of a run to the last
  double tail_share;     // how many repetitions something else disturbs
  double tail;           // by how much, mean of an exponential distribution
};

// CPU times of real runs on a shared virtual machine of two cores: kernels in the L2 cache, and the
// decoder in memory, the noisiest. Drift and shifts between runs are taken twice as large.
inline constexpr NoiseModel kCacheNoise = {0.004, 0.003, 0.004, 0.004, 0.1, 0.03};
inline constexpr NoiseModel kMemoryNoise = {0.01, 0.015, 0.02, 0.01, 0.2, 0.12};

inline std::vector<double> NoisyTimes(const NoiseModel& noise, double mean, size_t repetitions,
                                      size_t processes, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> tail(1 / noise.tail);
  std::bernoulli_distribution is_disturbed(noise.tail_share);
  const double run = noise.run_shift * normal(random);
  std::vector<double> shift(processes), times;
  for (double& value : shift) value = noise.process_shift * normal(random);
  for (size_t i = 0; i < repetitions; ++i) {
    const double drift = noise.drift * static_cast<double>(i) / static_cast<double>(repetitions);
    double log_time = run + drift + shift[i * processes / repetitions];
    log_time += noise.repetition * normal(random);
    if (is_disturbed(random)) log_time += tail(random);
    times.push_back(mean * std::exp(log_time));
  }
  return times;
}

inline BenchmarkFile FileOf(std::vector<KernelSamples> kernels, BenchKind kind = BenchKind::kTime) {
  BenchmarkFile file;
  file.place = "made.json";
  file.kind = kind;
  file.identity = {{"cpu_model", "x"}};
  file.kernels = std::move(kernels);
  return file;
}

// A document of dlsim bench run with these kernels, each with its times in nanoseconds.
inline nlohmann::json BenchDocument(
    const std::vector<std::pair<std::string, std::vector<double>>>& kernels) {
  nlohmann::json document;
  document["context"] = {{"num_cpus", 2}, {"mhz_per_cpu", 2600}, {"library_build_type", "release"}};
  document["dlsim"] = {{"schema", "dlsim.bench/1"},
                       {"kind", "time"},
                       {"cpu_model", "Some CPU (R) 1.0"},
                       {"simd_target", "AVX2"},
                       {"compiler", "GNU 12.2.0"},
                       {"compiler_flags", "-O3"},
                       {"threads", "1"},
                       {"dram_mib", "512"},
                       {"processes", 11}};
  document["benchmarks"] = nlohmann::json::array();
  for (const auto& [name, times] : kernels) {
    for (const double time : times) {
      document["benchmarks"].push_back({{"name", name},
                                        {"run_name", name},
                                        {"run_type", "iteration"},
                                        {"real_time", 2 * time},
                                        {"cpu_time", time},
                                        {"time_unit", "ns"},
                                        {"bytes_per_second", 1e9},
                                        {"fraction_of_stream", 0.5}});
    }
  }
  return document;
}

// The same for counts of instructions.
inline nlohmann::json InstructionDocument(
    const std::vector<std::pair<std::string, double>>& kernels) {
  nlohmann::json document = BenchDocument({});
  document["dlsim"]["kind"] = "instructions";
  for (const auto& [name, count] : kernels) {
    document["benchmarks"].push_back({{"name", name}, {"instructions", count}});
  }
  return document;
}

}  // namespace dlsim::sim
