// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/baselines.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "dlsim/error.h"
#include "sim/base/output_file.h"
#include "sim/bench/comparison.h"

namespace dlsim::sim {
namespace {

void RequireRepetitions(const BenchmarkFile& file) {
  if (file.kind == BenchKind::kInstructions) return;
  for (const KernelSamples& kernel : file.kernels) {
    if (kernel.cost.size() >= kMinRepetitions) continue;
    throw InputError(file.place + ": " + Printable(kernel.name), "too few repetitions",
                     "at least " + std::to_string(kMinRepetitions),
                     std::to_string(kernel.cost.size()));
  }
}

}  // namespace

std::string CpuSlug(std::string_view cpu_model) {
  std::string slug;
  for (const char letter : cpu_model) {
    const char lower = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter;
    const bool is_kept = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (is_kept) {
      slug += lower;
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
  }
  if (slug.ends_with('-')) slug.pop_back();
  return slug;
}

std::string BaselinePath(const std::string& directory, const BenchmarkFile& file) {
  const auto gpu = file.identity.find("gpu");
  const std::string slug = CpuSlug(gpu == file.identity.end() ? file.cpu_model : gpu->second);
  if (slug.empty()) {
    throw InputError(file.place, "does not tell its processor", "a file of dlsim bench run");
  }
  const auto suite = file.identity.find("suite");
  const std::string kind = file.kind == BenchKind::kInstructions ? ".instructions"
                           : suite == file.identity.end()        ? ""
                                                                 : "." + CpuSlug(suite->second);
  return directory + "/" + slug + kind + ".json";
}

BenchmarkFile ReadBaseline(const std::string& directory, const BenchmarkFile& file) {
  const std::string path = BaselinePath(directory, file);
  if (!std::filesystem::exists(path)) {
    throw InputError(Printable(path), "no baseline for this processor",
                     "one made by dlsim bench bless, or two files to compare");
  }
  return ReadBenchmarkFile(path);
}

std::string Bless(const std::string& path, const std::string& directory) {
  const BenchmarkFile file = ReadBenchmarkFile(path);
  const std::string baseline = BaselinePath(directory, file);
  RequireRepetitions(file);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw InputError(Printable(directory), "cannot be made (" + error.message() + ")");
  std::ifstream input(path, std::ios::binary);
  WriteOutput(baseline, {std::string(std::istreambuf_iterator<char>(input), {})});
  return baseline;
}

}  // namespace dlsim::sim
