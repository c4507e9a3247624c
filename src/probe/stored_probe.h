// SPDX-License-Identifier: Apache-2.0
// The file of a probe, read chunk by chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "dlsim/probe.h"
#include "src/probe/probe_index.h"
#include "src/profile/chunk.h"
#include "src/trace/byte_source.h"

namespace dlsim {

// As ProbeReader.
class StoredProbe {
 public:
  explicit StoredProbe(ByteSource source);

  const ProbeHead& head() const { return index_.head; }
  size_t step_count() const { return index_.steps.size(); }
  uint64_t cut_bytes() const { return source_.size - index_.end; }
  ProbeStep ReadStep(size_t i) const;
  std::optional<ProbeValues> ReadValues(size_t i) const;

 private:
  std::string Read(ChunkType type, uint64_t offset) const;

  ByteSource source_;
  ProbeIndex index_;
};

}  // namespace dlsim
