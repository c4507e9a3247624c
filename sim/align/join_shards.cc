// SPDX-License-Identifier: Apache-2.0
#include "sim/align/join_shards.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "dlsim/error.h"
#include "dlsim/profile_file.h"
#include "dlsim/trace.h"
#include "sim/align/whole_step.h"
#include "sim/base/output_file.h"
#include "src/trace/layout.h"
#include "src/trace/strict_json.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDescription = "trace.json";

void RefuseOtherTrace(const std::string& output) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(output, error)) {
    if (!LooksLikeStepName(entry.path().filename().string())) continue;
    throw UsageError("-o", "holds a trace already", "another directory", Quoted(output));
  }
}

// The files of a result that is complete or not there.
class TraceOutput {
 public:
  explicit TraceOutput(const std::string& directory) : directory_(directory) {
    std::error_code error;
    is_new_ = fs::create_directories(directory, error);
    if (error) throw InputError(Printable(directory), "cannot be created: " + error.message());
  }
  TraceOutput(const TraceOutput&) = delete;
  TraceOutput& operator=(const TraceOutput&) = delete;

  ~TraceOutput() {
    std::error_code error;
    for (const std::string& path : written_) fs::remove(path, error);
    if (is_new_) fs::remove(directory_, error);
  }

  // Returns the path of a file that goes if the result is not complete.
  std::string Add(std::string_view name) {
    written_.push_back((fs::path(directory_) / name).string());
    return written_.back();
  }

  void Commit() {
    written_.clear();
    is_new_ = false;
  }

 private:
  std::string directory_;
  std::vector<std::string> written_;
  bool is_new_ = false;
};

std::vector<TraceReader> OpenAlike(const std::vector<std::string>& shards) {
  std::vector<TraceReader> readers;
  for (const std::string& shard : shards) {
    readers.push_back(TraceReader::Open(std::array<std::string, 1>{shard}, {}));
    const TraceReader &first = readers.front(), &last = readers.back();
    bool alike = first.step_count() == last.step_count();
    for (size_t i = 0; alike && i < first.step_count(); ++i) {
      alike = first.step_number(i) == last.step_number(i);
    }
    if (!alike) {
      throw InputError(Printable(shard), "other steps than in the first shard", "the same");
    }
  }
  return readers;
}

bool NamesProfile(const std::string& path) { return fs::path(path).extension() == ".dlprof"; }

std::string FileNameOf(const std::string& path) { return fs::path(path).filename().string(); }

// What the first shard says of itself, with the files of the whole, which have its names.
std::string Description(const std::string& shard, const TraceReader& first) {
  const fs::path path = fs::path(shard) / kDescription;
  nlohmann::ordered_json json = {{"trace_format", 1}};
  if (fs::exists(path)) json.update(nlohmann::ordered_json(ReadJsonFile(path.string())));
  json["steps"] = nlohmann::json::array();
  json["files"] = nlohmann::json::array();
  for (size_t i = 0; i < first.step_count(); ++i) {
    json["steps"].push_back(first.step_number(i));
    for (const std::string& file : first.files(i)) json["files"].push_back(FileNameOf(file));
  }
  return json.dump(1) + "\n";
}

// Writes the i-th step: one file, or one for each micro-step.
void JoinStep(std::span<const TraceReader> readers, size_t i, TraceOutput& output) {
  std::vector<TraceStep> steps;
  for (const TraceReader& reader : readers) {
    steps.push_back(reader.Load(i));
    if (steps.back().recordings.size() == steps.front().recordings.size()) continue;
    throw InputError(steps.back().recordings.front().place,
                     "other micro-steps than in the first shard",
                     std::to_string(steps.front().recordings.size()),
                     std::to_string(steps.back().recordings.size()));
  }
  const std::vector<std::string> files = readers.front().files(i);
  for (size_t micro = 0; micro < files.size(); ++micro) {
    std::vector<const Recording*> shards;
    for (const TraceStep& step : steps) shards.push_back(&step.recordings[micro]);
    WriteWholeStep(shards, output.Add(FileNameOf(files[micro])));
  }
}

void JoinTraces(const std::vector<std::string>& shards, const std::string& output) {
  RefuseOtherTrace(output);
  const std::vector<TraceReader> readers = OpenAlike(shards);
  TraceOutput files(output);
  // First, so that what is left by a process that is killed lacks files and is refused.
  WriteOutput(files.Add(kDescription), Description(shards.front(), readers.front()));
  for (size_t i = 0; i < readers.front().step_count(); ++i) JoinStep(readers, i, files);
  files.Commit();
}

}  // namespace

JoinedShards JoinShards(const std::string& path, const std::string& output) {
  const bool is_profile = NamesProfile(path);
  if (is_profile != NamesProfile(output)) {
    throw UsageError(Printable(output), "is of another kind than the shards",
                     "both directories, or both FILE.dlprof", Quoted(path));
  }
  const std::vector<std::string> shards = FindShards(path);
  if (is_profile) {
    JoinProfiles(shards, output);
  } else {
    JoinTraces(shards, output);
  }
  return {shards.size(), is_profile};
}

}  // namespace dlsim::sim
