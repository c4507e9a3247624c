// SPDX-License-Identifier: Apache-2.0
#include "src/profile/step_index.h"

#include "src/profile/bytes.h"
#include "src/profile/chunk.h"
#include "src/profile/compress.h"

namespace dlsim {

uint64_t IndexEntry::FileBytes() const {
  const uint64_t list = tensors_bytes == 0 ? 0 : kChunkBytes + tensors_bytes;
  return list + kChunkBytes + totals_bytes + kChunkBytes + histograms_bytes;
}

std::string EncodeIndex(const std::vector<IndexEntry>& entries) {
  std::string columns, payload;
  uint64_t last = 0;
  for (const IndexEntry& entry : entries) {
    const uint64_t step = static_cast<uint64_t>(entry.step);
    PutVarint(ZigZag(static_cast<int64_t>(step - last)), columns);
    PutVarint(entry.trace_bytes, columns);
    PutVarint(entry.tensors_bytes, columns);
    PutVarint(entry.totals_bytes, columns);
    PutVarint(entry.histograms_bytes, columns);
    last = step;
  }
  PutVarint(entries.size(), payload);
  PutCompressed(columns, payload);
  return payload;
}

std::vector<IndexEntry> DecodeIndex(const std::string& place, std::string_view payload,
                                    uint64_t steps_bytes) {
  constexpr uint64_t kMaxEntry = 50;  // five numbers
  ByteReader packed(place, payload);
  const uint64_t count = packed.Varint();
  packed.Require(count <= steps_bytes / (2 * kChunkBytes), "damaged: too many steps");
  const std::string columns = TakeCompressed(packed, count * kMaxEntry);
  packed.RequireEnd();
  ByteReader in(place, columns);
  std::vector<IndexEntry> entries(static_cast<size_t>(count));
  uint64_t last = 0, left = steps_bytes;
  for (IndexEntry& entry : entries) {
    last += static_cast<uint64_t>(in.Signed());
    entry.step = static_cast<int64_t>(last);
    entry.trace_bytes = in.Varint();
    for (uint64_t* bytes : {&entry.tensors_bytes, &entry.totals_bytes, &entry.histograms_bytes}) {
      *bytes = in.Varint();
      in.Require(*bytes <= steps_bytes, "damaged: a step larger than its file");
    }
    const bool first = &entry == &entries.front();
    in.Require(!first || entry.tensors_bytes > 0, "damaged: steps without tensors");
    in.Require(first || entry.step > (&entry - 1)->step, "damaged: steps out of order");
    in.Require(entry.FileBytes() <= left, "damaged: steps reach beyond the file");
    left -= entry.FileBytes();
  }
  in.RequireEnd();
  in.Require(left == 0, "damaged: bytes that belong to no step");
  return entries;
}

}  // namespace dlsim
