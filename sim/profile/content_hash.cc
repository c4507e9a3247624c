// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/content_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "dlsim/histogram.h"
#include "src/trace/read_only_file.h"

namespace dlsim::sim {
namespace {

constexpr uint64_t kHeadBytes = uint64_t{64} << 10;
constexpr uint64_t kSampleBytes = uint64_t{4} << 10;
constexpr uint64_t kSamples = 64;
constexpr uint64_t kWholeBytes = kHeadBytes + kSamples * kSampleBytes;

}  // namespace

uint64_t ContentHash(const std::string& path) {
  const std::shared_ptr<const ReadOnlyFile> file = ReadOnlyFile::Open(path);
  const uint64_t size = file->size();
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(size, kWholeBytes)));
  const std::span<std::byte> all(bytes);
  if (size <= kWholeBytes) {
    file->ReadAt(0, all);
  } else {
    file->ReadAt(0, all.first(kHeadBytes));
    const uint64_t last = size - kSampleBytes - kHeadBytes;  // where the last sample begins
    for (uint64_t i = 0; i < kSamples; ++i) {
      const auto offset = static_cast<uint64_t>(uint128_t{last} * i / (kSamples - 1));
      file->ReadAt(kHeadBytes + offset, all.subspan(kHeadBytes + i * kSampleBytes, kSampleBytes));
    }
  }
  return std::max<uint64_t>(XXH3_64bits_withSeed(bytes.data(), bytes.size(), size), 1);
}

}  // namespace dlsim::sim
