// SPDX-License-Identifier: Apache-2.0
#include "src/trace/shards.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/read_only_file.h"
#include "src/trace/recording.h"
#include "src/trace/safetensors.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

// A name that could leave the folder of the index would let it read any file.
void CheckShardName(const std::string& place, const std::string& file) {
  const bool is_plain = !file.empty() && file != "." && file != ".." &&
                        file.find_first_of(std::string_view("/\\\0", 3)) == file.npos;
  if (!is_plain) {
    throw InputError(place, "bad file name in weight_map", "a file next to the index",
                     Quoted(file));
  }
}

void CheckNames(const std::string& place, const SafetensorsHeader& header,
                const std::set<std::string>& expected) {
  std::set<std::string> missing = expected;
  for (const SafetensorsTensor& tensor : *header.tensors) {
    if (missing.erase(tensor.name) == 1) continue;
    throw InputError(TensorPlace(place, tensor.name),
                     "the index does not map this tensor to this file");
  }
  if (!missing.empty()) {
    throw InputError(TensorPlace(place, *missing.begin()),
                     "tensor is missing from the file that the index names");
  }
}

// A scale or a step that differs between shards would mix gradients that do not belong together.
void CheckSameMetadata(const std::string& place, const Recording& shard, const Recording& whole) {
  if (shard.grad_scale != whole.grad_scale) {
    throw InputError(place, "grad_scale differs from that of the first shard");
  }
  const auto step = shard.metadata.find("step");
  const auto first = whole.metadata.find("step");
  if (step != shard.metadata.end() && first != whole.metadata.end() &&
      step->second != first->second) {
    throw InputError(place, "step in the metadata differs from that of the first shard",
                     Quoted(first->second), Quoted(step->second));
  }
}

}  // namespace

ShardMap ReadShardIndex(const std::string& index_path) {
  const std::string place = Printable(index_path);
  const nlohmann::json json = ReadJsonFile(index_path);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw InputError(place, "is not an index of shards", "an object 'weight_map'");
  }
  ShardMap shards;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string()) {
      throw InputError(TensorPlace(place, name), "weight_map has a wrong value", "a file name",
                       file.type_name());
    }
    CheckShardName(TensorPlace(place, name), file.get_ref<const std::string&>());
    shards[file.get<std::string>()].insert(name);
  }
  if (shards.empty()) throw InputError(place, "weight_map is empty");
  return shards;
}

std::string ShardPath(const std::string& index_path, const std::string& file) {
  return (std::filesystem::path(index_path).parent_path() / file).string();
}

Recording LoadShards(const std::string& index_path, const TraceOptions& options) {
  Recording whole;
  whole.file_bytes = ReadOnlyFile::Open(index_path)->size();
  bool is_first = true;
  for (const auto& [file, names] : ReadShardIndex(index_path)) {
    const std::shared_ptr<const ReadOnlyFile> opened =
        ReadOnlyFile::Open(ShardPath(index_path, file));
    const SafetensorsHeader header = ReadSafetensorsHeader(FileSource(opened));
    CheckNames(opened->place(), header, names);
    Recording shard = MakeRecording(opened, header, options);
    if (std::exchange(is_first, false)) {
      whole.grad_scale = shard.grad_scale;
    } else {
      CheckSameMetadata(opened->place(), shard, whole);
    }
    whole.file_bytes += shard.file_bytes;
    whole.metadata.merge(shard.metadata);
    std::move(shard.tensors.begin(), shard.tensors.end(), std::back_inserter(whole.tensors));
  }
  return whole;
}

}  // namespace dlsim
