// SPDX-License-Identifier: Apache-2.0
#include "src/profile/stored_profile.h"

#include <utility>

#include "src/profile/bytes.h"
#include "src/profile/edges_code.h"
#include "src/profile/part_code.h"
#include "src/profile/settings_json.h"
#include "src/profile/step_code.h"

namespace dlsim {

std::string ProfileOpening(const std::string& settings, const HistogramEdges& edges,
                           const std::optional<ProfilePart>& part) {
  std::string bytes = ProfileMagic(part ? kPartVersion : kProfileVersion);
  PutChunk(ChunkType::kSettings, settings, bytes.size(), bytes);
  PutChunk(ChunkType::kEdges, EncodeEdges(edges), bytes.size(), bytes);
  if (part) PutChunk(ChunkType::kPart, EncodePart(*part), bytes.size(), bytes);
  return bytes;
}

StoredProfile::StoredProfile(ByteSource source) : source_(std::move(source)) {
  if (source_.size < kMagicBytes) throw InputError(source_.place, "is not a profile: too short");
  const std::string magic = ReadBytes(source_, 0, kMagicBytes);
  if (!magic.starts_with(kProfileMagic)) throw InputError(source_.place, "is not a profile");
  ByteReader after_magic(source_.place, std::string_view(magic).substr(kProfileMagic.size()));
  const uint64_t version = after_magic.Word(kMagicBytes - kProfileMagic.size());
  if (version != kProfileVersion && version != kPartVersion) {
    throw InputError(source_.place, "is a profile of another version",
                     std::to_string(kProfileVersion) + " or " + std::to_string(kPartVersion),
                     std::to_string(version));
  }
  is_part_ = version == kPartVersion;
  if (source_.size < kMagicBytes + kChunkBytes + kFooterBytes) {
    throw InputError(source_.place, "damaged: the profile is cut off");
  }
  ReadIndex();
}

// The footer first: it tells a file that is cut off from one that is damaged.
void StoredProfile::ReadIndex() {
  const uint64_t footer_offset = source_.size - kFooterBytes;
  const ProfileFooter footer =
      DecodeFooter(source_.place, ReadBytes(source_, footer_offset, kFooterBytes), source_.size);
  steps_end_ = footer.index_offset;
  ReadOpening();
  const std::string index =
      ReadKnownChunk(source_, ChunkType::kIndex, footer.index_offset, footer.index_bytes);
  entries_ = DecodeIndex(source_.place, index, steps_end_ - steps_begin_);
  uint64_t offset = steps_begin_;
  uint32_t list = 0;
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].tensors_bytes > 0) list = i;
    offsets_.push_back(offset);
    list_of_.push_back(list);
    offset += entries_[i].FileBytes();
  }
}

void StoredProfile::ReadOpening() {
  uint64_t offset = kMagicBytes;
  settings_text_ = ReadChunk(source_, ChunkType::kSettings, offset, steps_end_);
  offset += kChunkBytes + settings_text_.size();
  const std::string edges = ReadChunk(source_, ChunkType::kEdges, offset, steps_end_);
  steps_begin_ = offset + kChunkBytes + edges.size();
  settings_ = ParseSettings(source_.place, settings_text_);
  edges_ = std::make_unique<const HistogramEdges>(DecodeEdges(source_.place, edges));
  if (!is_part_) return;
  const std::string part = ReadChunk(source_, ChunkType::kPart, steps_begin_, steps_end_);
  steps_begin_ += kChunkBytes + part.size();
  settings_.part = DecodePart(source_.place, part);
}

std::string StoredProfile::PlaceOf(size_t i) const {
  return source_.place + ": step " + std::to_string(entries_[i].step);
}

std::string StoredProfile::ReadTotals(size_t i) const {
  const IndexEntry& entry = entries_[i];
  const uint64_t list = entry.tensors_bytes == 0 ? 0 : kChunkBytes + entry.tensors_bytes;
  return ReadKnownChunk(source_, ChunkType::kTotals, offsets_[i] + list, entry.totals_bytes);
}

std::string StoredProfile::ReadHistograms(size_t i) const {
  const IndexEntry& entry = entries_[i];
  const uint64_t end = offsets_[i] + entry.FileBytes();
  return ReadKnownChunk(source_, ChunkType::kHistograms, end - kChunkBytes - entry.histograms_bytes,
                        entry.histograms_bytes);
}

std::string StoredProfile::ReadTensors(size_t i) const {
  const size_t list = list_of_[i];
  return ReadKnownChunk(source_, ChunkType::kTensors, offsets_[list], entries_[list].tensors_bytes);
}

std::shared_ptr<const std::vector<ProfileTensor>> StoredProfile::TensorsOf(size_t i) const {
  const uint64_t offset = offsets_[list_of_[i]];
  {
    const std::lock_guard lock(decoded_->mutex);
    if (decoded_->offset == offset) return decoded_->tensors;
  }
  auto tensors =
      std::make_shared<const std::vector<ProfileTensor>>(DecodeTensors(PlaceOf(i), ReadTensors(i)));
  const std::lock_guard lock(decoded_->mutex);
  decoded_->offset = offset;
  decoded_->tensors = tensors;
  return tensors;
}

ProfileTotals StoredProfile::LoadTotals(size_t i) const {
  const std::string place = PlaceOf(i);
  ProfileTotals totals = DecodeTotals(place, ReadTotals(i), *edges_);
  if (totals.step == entries_[i].step) return totals;
  throw InputError(place, "damaged: the number of another step");
}

ProfileStep StoredProfile::Load(size_t i) const {
  const std::string place = PlaceOf(i);
  const std::string totals = ReadTotals(i), histograms = ReadHistograms(i);
  ProfileStep step =
      DecodeStep(place, {totals, histograms}, *TensorsOf(i), *edges_, settings_.scaled.size());
  if (step.step == entries_[i].step) return step;
  throw InputError(place, "damaged: the number of another step");
}

EncodedStep StoredProfile::LoadEncoded(size_t i) const {
  const std::string totals = ReadTotals(i), histograms = ReadHistograms(i);
  return {entries_[i].step, ReadTensors(i), JoinStep({totals, histograms})};
}

}  // namespace dlsim
