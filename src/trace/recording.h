// SPDX-License-Identifier: Apache-2.0
// Turns one planned file, or the shards of one step, into a Recording: opens it and validates it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "src/trace/layout.h"
#include "src/trace/npz.h"
#include "src/trace/safetensors.h"

namespace dlsim {

// True if the user's glob selects the tensor.
bool IsSelected(const std::string& name, const TraceOptions& options);

// The names of the tensors of each shard, by file name.
using ShardMap = std::map<std::string, std::set<std::string>>;

// Reads a *.safetensors.index.json, which maps every tensor to the file that holds it. Every file
// name in it is a plain name. Throws InputError.
ShardMap ReadShardIndex(const std::string& index_path);

// Returns the path of the shard `file`, next to the index.
std::string ShardPath(const std::string& index_path, const std::string& file);

// Returns the tensors of all shards as one recording. Throws InputError.
Recording LoadShards(const std::string& index_path, const TraceOptions& options);

// The act_dumps*.npz files of the Cerebras Model Zoo's DumpContext: several steps per file, stacked
// along the first axis of every array.

struct DumpSummary {
  uint64_t steps = 0;
  uint64_t left_out = 0;  // arrays of the forward pass that are not floating-point numbers
};

// Reads the directory and the headers that it needs. Throws InputError.
DumpSummary SummarizeDump(const std::shared_ptr<NpzArchive>& archive);

// A dump whose headers have been read. Its steps share one stream per array, so that reading them
// in order decompresses every array once.
class DumpFile {
 public:
  // Throws InputError.
  DumpFile(std::shared_ptr<NpzArchive> archive, const TraceOptions& options);

  uint64_t file_bytes() const { return file_bytes_; }

  // Returns the tensors of one step, which keep the archive open. Throws InputError.
  std::vector<TraceTensor> Slice(uint64_t slice) const;

 private:
  struct Array {
    TraceTensor slice;  // the first step of the array, without what it is read from
    bool is_stored = true;
    std::shared_ptr<NpzStream> stream;
  };

  std::string place_;
  uint64_t file_bytes_;
  uint64_t steps_ = 0;
  std::vector<Array> arrays_;
};

// Keeps the last dump open, as the steps of a trace are loaded in order. Thread-safe.
class DumpCache {
 public:
  // Returns the opened dump at `path`. Throws InputError.
  std::shared_ptr<const DumpFile> Open(const std::string& path, const TraceOptions& options);

 private:
  std::mutex mutex_;
  std::string path_;
  std::shared_ptr<const DumpFile> dump_;
};

// What files that are loaded one after another have in common.
struct OpenFiles {
  DumpCache dumps;
  LatestHeader header;
};

// Throws InputError.
Recording LoadRecording(const PlannedFile& file, const RoleMap* roles, const TraceOptions& options,
                        OpenFiles& open);

}  // namespace dlsim
