// SPDX-License-Identifier: Apache-2.0
// Fuzz targets of training configurations and of grids.
#include <algorithm>
#include <string_view>

#include "sim/config/config_file.h"
#include "sim/config/training_config.h"
#include "sim/sweep/grid.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/target_support.h"

namespace dlsim {

using namespace sim;

namespace {

int FuzzConfig(std::string_view text, ConfigLanguage language) {
  const auto read = [&] {
    const ConfigNode root = ParseConfig("fuzz", text, language);
    Require(SizeOf(root).nodes <= ConfigTreeBuilder::kMaxNodes);
    const TrainingConfig config = InterpretConfig("fuzz", root, {});
    Require(!config.kind.empty() && !(config.clipping.max_norm && config.clipping.max_value));
    for (const std::string& note : config.notes) Require(note.find('\n') == note.npos);
  };
  return RunTarget(read, {ErrorKind::kUsage, ErrorKind::kInput});  // of files that it names
}

}  // namespace

int FuzzConfigYaml(const uint8_t* bytes, size_t size) {
  return FuzzConfig(TextOf(bytes, size), ConfigLanguage::kYaml);
}

int FuzzConfigJson(const uint8_t* bytes, size_t size) {
  return FuzzConfig(TextOf(bytes, size), ConfigLanguage::kJson);
}

int FuzzConfigToml(const uint8_t* bytes, size_t size) {
  return FuzzConfig(TextOf(bytes, size), ConfigLanguage::kToml);
}

int FuzzConfigShell(const uint8_t* bytes, size_t size) {
  return FuzzConfig(TextOf(bytes, size), ConfigLanguage::kShell);
}

int FuzzGrid(const uint8_t* bytes, size_t size) {
  constexpr uint64_t kMaxPoints = 1000;
  const MemoryFile file(TextOf(bytes, size));
  const auto read = [&] {
    SweepGrid grid = ReadGridFile(file.path());
    grid.limit = std::min(grid.limit, kMaxPoints);
    SortAxes(grid);
    if (grid.formats.empty()) grid.formats = {"fp16"};
    if (grid.policies.empty()) grid.policies = {"torch"};
    if (grid.roundings.empty()) grid.roundings = {"rne"};
    const std::vector<GridPoint> points = PointsOf(grid);
    Require(points.size() <= grid.limit);
    for (const GridPoint& point : points) ParametersOf(grid, point);
  };
  return RunTarget(read, {ErrorKind::kUsage});
}

}  // namespace dlsim
