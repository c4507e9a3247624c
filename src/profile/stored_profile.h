// SPDX-License-Identifier: Apache-2.0
// One file of a profile, read chunk by chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/profile_file.h"
#include "src/profile/chunk.h"
#include "src/profile/step_index.h"
#include "src/trace/byte_source.h"

namespace dlsim {

// The first bytes of a file: magic, settings, edges, and the part of a trace if it is one.
std::string ProfileOpening(const std::string& settings, const HistogramEdges& edges,
                           const std::optional<ProfilePart>& part = std::nullopt);

class StoredProfile {
 public:
  // Reads settings, edges and index. Throws InputError.
  explicit StoredProfile(ByteSource source);

  const std::string& place() const { return source_.place; }
  uint64_t file_bytes() const { return source_.size; }
  const std::string& settings_text() const { return settings_text_; }
  const ProfileSettings& settings() const { return settings_; }
  const HistogramEdges& edges() const { return *edges_; }
  const std::vector<IndexEntry>& entries() const { return entries_; }

  // Thread-safe; throw InputError.
  ProfileTotals LoadTotals(size_t i) const;
  ProfileStep Load(size_t i) const;
  EncodedStep LoadEncoded(size_t i) const;

 private:
  void ReadOpening();
  void ReadIndex();
  std::string PlaceOf(size_t i) const;
  std::string ReadTotals(size_t i) const;
  std::string ReadHistograms(size_t i) const;
  std::string ReadTensors(size_t i) const;
  std::shared_ptr<const std::vector<ProfileTensor>> TensorsOf(size_t i) const;

  // The tensors decoded last; most steps have the same.
  struct Decoded {
    std::mutex mutex;
    uint64_t offset = 0;
    std::shared_ptr<const std::vector<ProfileTensor>> tensors;
  };

  ByteSource source_;
  bool is_part_ = false;
  uint64_t steps_begin_ = 0, steps_end_ = 0;
  std::string settings_text_;
  ProfileSettings settings_;
  std::unique_ptr<const HistogramEdges> edges_;
  std::vector<IndexEntry> entries_;
  std::vector<uint64_t> offsets_;  // of the first chunk of each step
  std::vector<uint32_t> list_of_;  // the step that has the list of tensors of each
  std::unique_ptr<Decoded> decoded_ = std::make_unique<Decoded>();
};

}  // namespace dlsim
