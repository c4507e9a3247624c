// SPDX-License-Identifier: Apache-2.0
#include "src/probe/stored_probe.h"

#include <utility>

#include "src/probe/probe_code.h"

namespace dlsim {

StoredProbe::StoredProbe(ByteSource source)
    : source_(std::move(source)), index_(IndexProbe(source_)) {}

std::string StoredProbe::Read(ChunkType type, uint64_t offset) const {
  return ReadChunk(source_, type, offset, index_.end);
}

ProbeStep StoredProbe::ReadStep(size_t i) const {
  const ProbeIndex::Step& entry = index_.steps.at(i);
  const std::string place = source_.place + ": step " + std::to_string(entry.step);
  const std::string gradients = Read(ChunkType::kGradients, entry.gradients);
  ProbeStep step = DecodeGradients(place, gradients, head());
  DecodeProbeGroups(place, Read(ChunkType::kGroups, entry.groups), step);
  return step;
}

std::optional<ProbeValues> StoredProbe::ReadValues(size_t i) const {
  const auto found = index_.values.find(i);
  if (found == index_.values.end()) return std::nullopt;
  return DecodeProbeValues(source_.place, Read(ChunkType::kValues, found->second), head());
}

}  // namespace dlsim
