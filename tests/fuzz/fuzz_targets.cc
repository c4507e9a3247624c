// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_targets.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "dlsim/error.h"
#include "sim/config/config_file.h"
#include "sim/config/training_config.h"
#include "src/profile/bytes.h"
#include "src/profile/chunk.h"
#include "src/profile/stored_profile.h"
#include "src/trace/npy.h"
#include "src/trace/npz.h"
#include "src/trace/safetensors.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {

using namespace sim;

namespace {

constexpr uint64_t kMaxBytesPerMember = 1 << 16;  // enough to reach every state, and fast

void Require(bool promise) {
  if (!promise) __builtin_trap();
}

// The only exception that may escape is an error of this kind on one line.
template <typename Action>
int Run(const Action& action, ErrorKind kind = ErrorKind::kInput) {
  try {
    action();
  } catch (const Error& error) {
    Require(error.kind() == kind);
    Require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}

void ReadMember(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member) {
  const NpyHeader header = ReadNpzHeader(archive, member);
  const auto read =
      NpzReader(std::make_shared<NpzStream>(archive, member), header.data_start, Skip::kByReading);
  const uint64_t bytes = std::min(header.elements * NpyTypeSize(header.type), kMaxBytesPerMember);
  std::array<std::byte, 1000> block;
  for (uint64_t begin = 0; begin < bytes; begin += block.size()) {
    read(begin, std::span(block).first(std::min<uint64_t>(block.size(), bytes - begin)));
  }
  if (bytes > 0) read(0, std::span(block).first(1));
}

// Returns the chunks of a profile with right checksums and footer.
std::string RepairProfile(std::string_view bytes) {
  std::string repaired(bytes.substr(0, kMagicBytes));
  bytes.remove_prefix(repaired.size());
  while (bytes.size() >= kChunkBytes) {
    const ChunkHeader header = ParseChunkHeader(bytes);
    const uint64_t size = std::min<uint64_t>(header.payload, bytes.size() - kChunkBytes);
    const uint64_t offset = repaired.size();
    PutChunk(header.type, bytes.substr(kChunkHeaderBytes, size), offset, repaired);
    bytes.remove_prefix(size + kChunkBytes);
    if (header.type == ChunkType::kIndex) return repaired + EncodeFooter({offset, size});
  }
  return repaired;
}

void RequireSound(const Histogram& histogram, const HistogramEdges& edges) {
  uint64_t elements = histogram.zeros + histogram.nan + histogram.inf;
  for (const SignHistogram& sign : histogram.signs) {
    size_t next = 0;
    for (const HistogramBin& bin : sign.bins) {
      Require(bin.bin >= next && bin.bin < edges.bin_count() && bin.count > 0);
      next = bin.bin + size_t{1};
      elements += bin.count;
    }
    Require(sign.bins.empty() || edges.BinOf(sign.largest) == sign.bins.back().bin);
  }
  Require(elements == histogram.elements);
}

}  // namespace

int FuzzProfile(const uint8_t* bytes, size_t size) {
  const std::string repaired = RepairProfile({reinterpret_cast<const char*>(bytes), size});
  return Run([&] {
    const StoredProfile profile(MemorySource("fuzz", std::as_bytes(std::span(repaired))));
    for (size_t i = 0; i < profile.entries().size(); ++i) {
      const auto require = [&](const Histogram& h) { RequireSound(h, profile.edges()); };
      Run([&] { std::ranges::for_each(profile.LoadTotals(i).gradients, require); });
      Run([&] {
        for (const auto& part : profile.Load(i).histograms) std::ranges::for_each(part, require);
      });
    }
  });
}

int FuzzSafetensors(const uint8_t* bytes, size_t size) {
  return Run([&] {
    const SafetensorsHeader header =
        ReadSafetensorsHeader(MemorySource("fuzz", std::as_bytes(std::span(bytes, size))));
    uint64_t position = 0;
    for (const SafetensorsTensor& tensor : header.tensors) {
      Require(tensor.begin == position);
      Require(tensor.end - tensor.begin == tensor.elements * DTypeSize(tensor.dtype));
      position = tensor.end;
    }
    Require(header.data_start + position == size);
  });
}

int FuzzNpy(const uint8_t* bytes, size_t size) {
  return Run([&] {
    const NpyHeader header =
        ReadNpyHeader(MemorySource("fuzz", std::as_bytes(std::span(bytes, size))));
    Require(header.data_start + header.elements * NpyTypeSize(header.type) == size);
    Require(ElementCount(header.shape, NpyTypeSize(header.type)) == header.elements);
  });
}

int FuzzNpz(const uint8_t* bytes, size_t size) {
  return Run([&] {
    const std::shared_ptr<NpzArchive> archive =
        NpzArchive::OpenMemory("fuzz", std::as_bytes(std::span(bytes, size)));
    for (const NpzMember& member : archive->members()) {
      Run([&] { ReadMember(archive, member); });
    }
  });
}

int FuzzConfig(const uint8_t* bytes, size_t size) {
  constexpr std::array kLanguages = {ConfigLanguage::kYaml, ConfigLanguage::kJson,
                                     ConfigLanguage::kToml};
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const auto read = [&] {
    const ConfigNode root = ParseConfig("fuzz", text, kLanguages[bytes[0] % kLanguages.size()]);
    Require(SizeOf(root).nodes <= ConfigTreeBuilder::kMaxNodes);
    const TrainingConfig config = InterpretConfig("fuzz", root, {});
    Require(!config.kind.empty() && !(config.clipping.max_norm && config.clipping.max_value));
    for (const std::string& note : config.notes) Require(note.find('\n') == note.npos);
  };
  return Run(read, ErrorKind::kUsage);
}

}  // namespace dlsim
