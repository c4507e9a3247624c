// SPDX-License-Identifier: Apache-2.0
#include "src/probe/probe_index.h"

#include <algorithm>

#include "src/probe/probe_code.h"
#include "src/profile/bytes.h"
#include "src/profile/chunk.h"

namespace dlsim {
namespace {

constexpr uint64_t kProbeVersion = 1;

// Reads headers one after another.
class Scan {
 public:
  Scan(const ByteSource& source, ProbeIndex& index) : source_(source), index_(index) {
    gradients_bytes_ = GradientsBytes(index.head);
    at_ = index.end = index.opening;
  }

  // Takes a chunk; returns false behind the last whole one.
  bool Next() {
    constexpr size_t kPeek = kChunkHeaderBytes + kStepNumberBytes;  // less than any chunk has
    const uint64_t left = source_.size - at_;
    if (left < kPeek) return EndsHere();
    const std::string begin = ReadBytes(source_, at_, kPeek);
    const ChunkHeader header = ParseChunkHeader(begin);
    if (!IsKnown(header)) Fail();
    if (left < kChunkBytes || header.payload > left - kChunkBytes) return EndsHere();
    const uint64_t end = at_ + kChunkBytes + header.payload;
    Note(header.type, begin, end);
    at_ = end;
    return true;
  }

 private:
  [[noreturn]] void Fail() const {
    throw InputError(source_.place,
                     "damaged: no such chunk as expected at offset " + std::to_string(at_));
  }

  bool IsKnown(const ChunkHeader& header) const {
    if (header.type == ChunkType::kGradients) return header.payload == gradients_bytes_;
    return header.type == ChunkType::kGroups || header.type == ChunkType::kValues;
  }

  void Note(ChunkType type, std::string_view begin, uint64_t end) {
    // Groups are written with an update. A size that was changed may reach over some as a whole.
    if (unused_ && type != ChunkType::kGradients) Fail();
    unused_ = type == ChunkType::kGroups;
    if (unused_) {
      groups_ = at_;
      return;
    }
    if (type == ChunkType::kValues) {
      ReadChunk(source_, type, at_, end);  // its checksum: nobody may read it later
      index_.values[index_.steps.size()] = at_;
    } else {
      ByteReader number(source_.place, begin.substr(kChunkHeaderBytes));
      const int64_t step = static_cast<int64_t>(number.Word(kStepNumberBytes));
      const bool ascends = index_.steps.empty() || index_.steps.back().step <= step;
      if (groups_ == 0 || !index_.values.contains(0) || !ascends) Fail();
      index_.steps.push_back({step, at_, groups_});
    }
    index_.end = end;
  }

  // What a kill has left is no chunk as a whole. A size that was changed reaches over others.
  bool EndsHere() const {
    if (unused_) ReadChunk(source_, ChunkType::kGroups, groups_, at_);
    constexpr size_t kBlock = size_t{1} << 20;
    std::string header;
    BeginChunk(ChunkType::kGradients, gradients_bytes_, header);
    for (uint64_t offset = at_; offset < source_.size; offset += kBlock) {
      const uint64_t size = std::min<uint64_t>(kBlock + header.size() - 1, source_.size - offset);
      const std::string block = ReadBytes(source_, offset, static_cast<size_t>(size));
      const size_t found = block.find(header);
      if (found == block.npos) continue;
      if (source_.size - offset - found >= gradients_bytes_ + kChunkBytes) Fail();
    }
    return false;
  }

  const ByteSource& source_;
  ProbeIndex& index_;
  uint64_t gradients_bytes_ = 0;
  uint64_t groups_ = 0;  // those in force; 0 = none yet
  bool unused_ = false;  // they were the last chunk
  uint64_t at_ = 0;
};

void CheckMagic(const ByteSource& source) {
  const std::string magic = ReadBytes(source, 0, std::min<uint64_t>(source.size, kMagicBytes));
  if (magic.size() < kMagicBytes || !magic.starts_with(kProbeMagic)) {
    throw InputError(source.place, "is not a probe",
                     "a .dlprobe file of the recorder, which begins with " + Quoted(kProbeMagic),
                     Quoted(magic));
  }
  ByteReader after(source.place, std::string_view(magic).substr(kProbeMagic.size()));
  const uint64_t version = after.Word(kMagicBytes - kProbeMagic.size());
  if (version == kProbeVersion) return;
  throw InputError(source.place, "is a probe of another version", std::to_string(kProbeVersion),
                   std::to_string(version));
}

}  // namespace

std::string ProbeOpening(const std::string& place, const ProbeHead& head) {
  std::string bytes(kProbeMagic);
  PutWord(kProbeVersion, kMagicBytes - kProbeMagic.size(), bytes);
  PutChunk(ChunkType::kHead, EncodeProbeHead(place, head), bytes.size(), bytes);
  PutChunk(ChunkType::kElements, EncodeProbeTensors(head.tensors), bytes.size(), bytes);
  return bytes;
}

uint64_t ProbeIndex::EndOf(size_t i) const {
  return steps[i].gradients + kChunkBytes + GradientsBytes(head);
}

void ProbeIndex::Truncate(size_t i) {
  if (i >= steps.size()) return;
  end = i == 0 ? opening : EndOf(i - 1);
  steps.resize(i);
  // Values behind the last one that stays may lie behind an update that goes.
  std::erase_if(values, [&](const auto& entry) { return entry.second >= end; });
}

ProbeIndex IndexProbe(const ByteSource& source) {
  CheckMagic(source);
  ProbeIndex index;
  uint64_t offset = kMagicBytes;
  const std::string head = ReadChunk(source, ChunkType::kHead, offset, source.size);
  offset += kChunkBytes + head.size();
  const std::string tensors = ReadChunk(source, ChunkType::kElements, offset, source.size);
  index.opening = offset + kChunkBytes + tensors.size();
  index.head = DecodeProbeHead(source.place, head);
  index.head.tensors = DecodeProbeTensors(source.place, tensors);
  Scan scan(source, index);
  while (scan.Next()) continue;
  return index;
}

}  // namespace dlsim
