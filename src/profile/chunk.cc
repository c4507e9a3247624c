// SPDX-License-Identifier: Apache-2.0
#include "src/profile/chunk.h"

#include <xxhash.h>

#include <memory>
#include <new>
#include <span>

#include "src/profile/bytes.h"

namespace dlsim {
namespace {

constexpr std::string_view kFooterMagic = "DLPROF.\n";
constexpr size_t kWordBytes = 8;

uint64_t Checksum(std::initializer_list<std::string_view> parts, uint64_t offset) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset_withSeed(state.get(), offset);
  for (const std::string_view part : parts) {
    XXH3_64bits_update(state.get(), part.data(), part.size());
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace

std::string ProfileMagic(uint64_t version) {
  std::string bytes(kProfileMagic);
  PutWord(version, kMagicBytes - kProfileMagic.size(), bytes);
  return bytes;
}

void BeginChunk(ChunkType type, uint64_t payload, std::string& out) {
  PutWord(static_cast<uint32_t>(type), 4, out);
  PutWord(payload, kWordBytes, out);
}

std::string ChunkChecksum(std::initializer_list<std::string_view> parts, uint64_t offset) {
  std::string out;
  PutWord(Checksum(parts, offset), kWordBytes, out);
  return out;
}

void PutChunk(ChunkType type, std::string_view payload, uint64_t offset, std::string& out) {
  const size_t begin = out.size();
  BeginChunk(type, payload.size(), out);
  out.append(payload);
  out.append(ChunkChecksum({std::string_view(out).substr(begin)}, offset));
}

ChunkHeader ParseChunkHeader(std::string_view bytes) {
  const std::string place;
  ByteReader in(place, bytes);
  const uint32_t type = static_cast<uint32_t>(in.Word(4));
  return {static_cast<ChunkType>(type), in.Word(kWordBytes)};
}

std::string_view ChunkPayload(const std::string& place, ChunkType type, std::string_view chunk,
                              uint64_t offset) {
  ByteReader in(place, chunk);
  in.Require(chunk.size() >= kChunkBytes, "damaged: a chunk is cut off");
  const std::string_view covered = in.Take(chunk.size() - kWordBytes);
  const ChunkHeader header = ParseChunkHeader(covered);
  const std::string_view payload = covered.substr(kChunkHeaderBytes);
  if (header.type != type || header.payload != payload.size() ||
      in.Word(kWordBytes) != Checksum({covered}, offset)) {
    in.Fail("damaged: wrong checksum of the chunk at offset " + std::to_string(offset));
  }
  return payload;
}

std::string ReadBytes(const ByteSource& source, uint64_t offset, size_t size) {
  std::string bytes(size, '\0');
  source.read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::string ReadKnownChunk(const ByteSource& source, ChunkType type, uint64_t offset,
                           uint64_t payload) {
  std::string chunk = ReadBytes(source, offset, static_cast<size_t>(payload + kChunkBytes));
  const std::string_view intact = ChunkPayload(source.place, type, chunk, offset);
  chunk.resize(kChunkHeaderBytes + intact.size());
  chunk.erase(0, kChunkHeaderBytes);
  return chunk;
}

std::string ReadChunk(const ByteSource& source, ChunkType type, uint64_t offset, uint64_t end) {
  const uint64_t left = end > offset ? end - offset : 0;
  if (left < kChunkBytes) throw InputError(source.place, "damaged: a chunk is missing");
  const ChunkHeader header = ParseChunkHeader(ReadBytes(source, offset, kChunkHeaderBytes));
  if (header.type != type || header.payload > left - kChunkBytes) {
    throw InputError(source.place,
                     "damaged: no such chunk as expected at offset " + std::to_string(offset));
  }
  return ReadKnownChunk(source, type, offset, header.payload);
}

std::string EncodeFooter(const ProfileFooter& footer) {
  std::string bytes;
  PutWord(footer.index_offset, kWordBytes, bytes);
  PutWord(footer.index_bytes, kWordBytes, bytes);
  PutWord(Checksum({bytes}, 0), kWordBytes, bytes);
  return bytes.append(kFooterMagic);
}

ProfileFooter DecodeFooter(const std::string& place, std::string_view bytes, uint64_t file_bytes) {
  ByteReader in(place, bytes);
  const std::string_view covered = in.Take(2 * kWordBytes);
  const uint64_t checksum = in.Word(kWordBytes);
  in.Require(in.rest() == kFooterMagic,
             "does not end as a profile does: cut off, or not complete yet");
  in.Require(checksum == Checksum({covered}, 0), "damaged: wrong checksum of the footer");
  ByteReader words(place, covered);
  ProfileFooter footer;
  footer.index_offset = words.Word(kWordBytes);
  footer.index_bytes = words.Word(kWordBytes);
  const uint64_t around = kChunkBytes + kFooterBytes;
  in.Require(footer.index_bytes <= file_bytes - around &&
                 footer.index_offset == file_bytes - around - footer.index_bytes,
             "damaged: its size is not that of its footer");
  return footer;
}

}  // namespace dlsim
