// SPDX-License-Identifier: Apache-2.0
#include "src/trace/recording.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "src/base/file.h"
#include "src/trace/npy.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr uint64_t kMaxStepsPerFile = 1'000'000;

// Returns the first axis, which counts the steps. Steps cost time and memory even if their slices
// are empty or compress well, so a small file cannot hold many.
uint64_t StepsOf(const NpzArchive& archive, const NpzMember& member, const NpyHeader& header) {
  const std::string place = TensorPlace(archive.place(), member.name);
  if (header.shape.empty()) throw InputError(place, "has no axis of steps");
  if (header.fortran_order && header.shape.size() > 1) {
    throw InputError(place, "unsupported order of a dump", "C order", "Fortran order");
  }
  const uint64_t most = std::min(kMaxStepsPerFile, archive.size());
  if (header.shape[0] > most) {
    throw InputError(place, "too many steps for a file of this size",
                     "at most " + std::to_string(most), std::to_string(header.shape[0]));
  }
  return header.shape[0];
}

// Keys are <module>.fwd and <module>.bwd, with .<index> for each item of a tuple (PyTorch's
// backward hooks always give one), and <module>.bwd.<parameter>.
Role DumpRole(std::string_view key) {
  const std::string dotted = std::string(key) + ".";
  const size_t forward = dotted.rfind(".fwd.");
  const size_t backward = dotted.rfind(".bwd.");
  if (forward != dotted.npos && (backward == dotted.npos || forward > backward)) return Role::kAct;
  if (backward == dotted.npos) return RoleOfName(key);
  const std::string_view item = std::string_view(dotted).substr(backward + 5);
  const bool is_index = item.find_first_not_of("0123456789.") == item.npos;
  return is_index ? Role::kActGrad : Role::kGrad;
}

// Modules also give masks and numbers of tokens, which no format rounds.
bool IsLeftOut(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member) {
  return DumpRole(member.name) == Role::kAct && !HoldsFloats(SourceOf(archive, member));
}

}  // namespace

Dump ReadDump(const std::shared_ptr<NpzArchive>& archive, const TraceOptions* options) {
  Dump dump = {.file_bytes = archive->size()};
  bool is_first = true;
  for (const NpzMember& member : archive->members()) {
    if (IsLeftOut(archive, member)) {
      ++dump.left_out;
      continue;
    }
    const std::string place = TensorPlace(archive->place(), member.name);
    const NpyHeader header = ReadNpzHeader(archive, member);
    const uint64_t steps = StepsOf(*archive, member, header);
    if (!std::exchange(is_first, false) && steps != dump.steps) {
      throw InputError(place, "arrays differ in their number of steps", std::to_string(dump.steps),
                       std::to_string(steps));
    }
    dump.steps = steps;
    if (steps == 0 || options == nullptr || !IsSelected(member.name, *options)) continue;
    TensorInfo info = {member.name,
                       DumpRole(member.name),
                       TraceDType(place, header.descr, options->npy_void2),
                       {header.shape.begin() + 1, header.shape.end()}};
    dump.arrays.push_back(
        {.info = std::move(info),
         .elements = header.elements / steps,
         .source = std::make_shared<const ByteReader>(SourceOf(archive, member).read),
         .begin = header.data_start});
  }
  if (is_first) {
    throw InputError(archive->place(), "holds no values of a training",
                     "arrays named <module>.bwd... or <module>.fwd...");
  }
  return dump;
}

namespace {

std::shared_ptr<const ByteReader> SourceOf(std::shared_ptr<const ReadOnlyFile> file) {
  return std::make_shared<const ByteReader>(FileSource(std::move(file)).read);
}

// Returns the tensor of an array, but for what it is read from; `place` is for messages.
TraceTensor TensorOfArray(const std::string& name, const std::string& place,
                          const NpyHeader& header, const TraceOptions& options) {
  const DType dtype = TraceDType(place, header.descr, options.npy_void2);
  return {.info = TensorInfo{name, RoleOfName(name), dtype, header.shape},
          .elements = header.elements,
          .begin = header.data_start};
}

std::string StemOf(const std::string& path) { return std::filesystem::path(path).stem().string(); }

// Loads .npy files. Opens each of several when it is read, since a model has more tensors than a
// process has descriptors.
Recording LoadArrays(std::span<const std::string> paths, const TraceOptions& options) {
  Recording recording;
  const bool is_alone = paths.size() == 1;
  for (const std::string& path : paths) {
    const std::shared_ptr<const ReadOnlyFile> file = ReadOnlyFile::Open(path);
    recording.file_bytes += file->size();
    if (!IsSelected(StemOf(path), options)) continue;
    const NpyHeader header =
        ReadNpyHeader(FileSource(file), is_alone ? kFloatNpyTypes : kTraceNpyTypes);
    TraceTensor tensor = TensorOfArray(StemOf(path), file->place(), header, options);
    if (is_alone) {
      file->ReadAhead();
      tensor.source = SourceOf(file);
    } else {
      tensor.source =
          std::make_shared<const ByteReader>([path](uint64_t offset, std::span<std::byte> out) {
            ReadOnlyFile::Open(path)->ReadAt(offset, out);
          });
    }
    recording.tensors.push_back(std::move(tensor));
  }
  return recording;
}

Recording LoadNpz(const std::string& path, const TraceOptions& options) {
  const std::shared_ptr<NpzArchive> archive = NpzArchive::Open(path);
  Recording recording;
  recording.file_bytes = archive->size();
  for (const NpzMember& member : archive->members()) {
    if (!IsSelected(member.name, options)) continue;
    const NpyHeader header = ReadNpzHeader(archive, member);
    const std::string place = TensorPlace(archive->place(), member.name);
    TraceTensor tensor = TensorOfArray(member.name, place, header, options);
    tensor.source = std::make_shared<const ByteReader>(SourceOf(archive, member).read);
    recording.tensors.push_back(std::move(tensor));
  }
  return recording;
}

// Returns a recording of the tensors and the metadata of an opened safetensors file.
Recording MakeRecording(const std::shared_ptr<const ReadOnlyFile>& file,
                        const SafetensorsHeader& header, const TraceOptions& options) {
  file->ReadAhead();
  Recording recording;
  recording.file_bytes = file->size();
  recording.metadata = header.metadata;
  ApplyMetadata(file->place(), recording);
  recording.tensors.reserve(header.tensors->size());
  const std::shared_ptr<const ByteReader> source = SourceOf(file);
  for (const SafetensorsTensor& entry : *header.tensors) {
    if (!IsSelected(entry.info->name, options)) continue;
    if (!entry.unsupported.empty()) {
      throw InputError(TensorPlace(file->place(), entry.info->name), "unsupported dtype",
                       std::string(kReadableDTypes) + ", or --tensors with a pattern without it",
                       Quoted(entry.unsupported));
    }
    recording.tensors.push_back({.info = entry.info,
                                 .elements = entry.elements,
                                 .source = source,
                                 .begin = header.data_start + entry.begin});
  }
  return recording;
}

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
    if (missing.erase(tensor.info->name) == 1) continue;
    throw InputError(TensorPlace(place, tensor.info->name),
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

Recording LoadFile(const PlannedFile& file, const TraceOptions& options, OpenFiles& open) {
  if (IsIndex(file.path)) return LoadShards(file.path, options);
  if (!file.files.empty()) return LoadArrays(file.files, options);
  if (file.path.ends_with(".npy")) return LoadArrays({&file.path, 1}, options);
  if (file.path.ends_with(".safetensors")) {
    const std::shared_ptr<const ReadOnlyFile> opened = ReadOnlyFile::Open(file.path);
    return MakeRecording(opened, ReadSafetensorsHeader(FileSource(opened), &open.header), options);
  }
  if (!IsDump(file.path)) return LoadNpz(file.path, options);
  const std::lock_guard lock(open.mutex);
  if (!open.dump || file.path != open.dump_path) {
    open.dump.reset();
    open.dump = ReadDump(NpzArchive::Open(file.path), &options);
    open.dump_path = file.path;
  }
  if (file.slice >= open.dump->steps) {
    throw InputError(Printable(file.path), "was changed while being read");
  }
  Recording recording;
  recording.file_bytes = open.dump->file_bytes;
  recording.tensors = open.dump->arrays;
  for (TraceTensor& tensor : recording.tensors) {
    tensor.begin += file.slice * tensor.elements * DTypeSize(tensor.info->dtype);
  }
  return recording;
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

bool IsSelected(const std::string& name, const TraceOptions& options) {
  return options.tensors == "*" || fnmatch(options.tensors.c_str(), name.c_str(), 0) == 0;
}

Recording LoadRecording(const PlannedFile& file, const RoleMap* roles, const TraceOptions& options,
                        OpenFiles& open) {
  Recording recording = LoadFile(file, options, open);
  recording.place = Printable(file.path);
  recording.micro = file.micro;
  recording.rank = file.rank;
  if (roles == nullptr) return recording;
  for (TraceTensor& tensor : recording.tensors) {
    const auto role = roles->find(tensor.info->name);
    if (role == roles->end() || role->second == tensor.info->role) continue;
    TensorInfo info = *tensor.info;
    info.role = role->second;
    tensor.info = std::move(info);
  }
  return recording;
}

}  // namespace dlsim
