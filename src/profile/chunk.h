// SPDX-License-Identifier: Apache-2.0
// The frame of everything in the file of a profile: what it is, its size, and a checksum
// that also covers where it lies, so that no byte can change, no chunk move, and none be lost
// unseen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "dlsim/error.h"
#include "src/trace/byte_source.h"

namespace dlsim {

inline constexpr std::string_view kProfileMagic = "DLPROF";
inline constexpr uint64_t kProfileVersion = 2;  // of a whole trace
inline constexpr uint64_t kPartVersion = 3;     // of a part of a trace
inline constexpr size_t kMagicBytes = 8;        // with the version

// Four letters, the first in the lowest byte.
enum class ChunkType : uint32_t {
  kSettings = 0x54544553,    // SETT
  kEdges = 0x45474445,       // EDGE
  kPart = 0x54524150,        // PART
  kTensors = 0x534E4554,     // TENS
  kTotals = 0x50455453,      // STEP
  kHistograms = 0x54534948,  // HIST
  kIndex = 0x58444E49,       // INDX
};

inline constexpr size_t kChunkHeaderBytes = 12;               // type and size
inline constexpr size_t kChunkBytes = kChunkHeaderBytes + 8;  // and the checksum

// The first bytes of every file of a version.
std::string ProfileMagic(uint64_t version = kProfileVersion);

// Appends a chunk that is to lie at `offset` of the file.
void PutChunk(ChunkType type, std::string_view payload, uint64_t offset, std::string& out);

// The same in parts: appends what lies before `payload` bytes, and returns what lies behind all
// parts, which together are the chunk up to there.
void BeginChunk(ChunkType type, uint64_t payload, std::string& out);
std::string ChunkChecksum(std::initializer_list<std::string_view> parts, uint64_t offset);

struct ChunkHeader {
  ChunkType type = ChunkType::kIndex;
  uint64_t payload = 0;  // bytes
};
ChunkHeader ParseChunkHeader(std::string_view bytes);

// Returns the payload of a whole chunk read from `offset`. Throws InputError unless it is intact.
std::string_view ChunkPayload(const std::string& place, ChunkType type, std::string_view chunk,
                              uint64_t offset);

// Reads a part of a file.
std::string ReadBytes(const ByteSource& source, uint64_t offset, size_t size);

// Read a chunk whose payload has `payload` bytes, and one that lies before `end`; return the
// payload. Throw InputError unless the chunk is intact.
std::string ReadKnownChunk(const ByteSource& source, ChunkType type, uint64_t offset,
                           uint64_t payload);
std::string ReadChunk(const ByteSource& source, ChunkType type, uint64_t offset, uint64_t end);

// The last bytes of a complete file.
struct ProfileFooter {
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;  // payload
};
inline constexpr size_t kFooterBytes = 32;
std::string EncodeFooter(const ProfileFooter& footer);

// Throws InputError unless these are the last bytes of a complete file of `file_bytes`.
ProfileFooter DecodeFooter(const std::string& place, std::string_view bytes, uint64_t file_bytes);

}  // namespace dlsim
