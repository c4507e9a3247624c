// SPDX-License-Identifier: Apache-2.0
// Fuzz targets of profiles and of what an interrupted run leaves of them.
#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>

#include "dlsim/profile_file.h"
#include "src/profile/bytes.h"
#include "src/profile/chunk.h"
#include "src/profile/settings_json.h"
#include "src/profile/stored_profile.h"
#include "src/trace/read_only_file.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/target_support.h"
#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

// Appends the chunks of `bytes` with right checksums; behind an index, a footer.
void AppendRepaired(std::string_view bytes, std::string& repaired) {
  while (bytes.size() >= kChunkBytes) {
    const ChunkHeader header = ParseChunkHeader(bytes);
    const uint64_t size = std::min<uint64_t>(header.payload, bytes.size() - kChunkBytes);
    const uint64_t offset = repaired.size();
    PutChunk(header.type, bytes.substr(kChunkHeaderBytes, size), offset, repaired);
    bytes.remove_prefix(size + kChunkBytes);
    if (header.type != ChunkType::kIndex) continue;
    repaired += EncodeFooter({offset, size});
    return;
  }
}

std::string RepairProfile(std::string_view bytes) {
  std::string repaired(bytes.substr(0, kMagicBytes));
  bytes.remove_prefix(repaired.size());
  AppendRepaired(bytes, repaired);
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

void ReadSteps(const StoredProfile& profile) {
  const auto require = [&](const Histogram& h) { RequireSound(h, profile.edges()); };
  for (size_t i = 0; i < profile.entries().size(); ++i) {
    RunTarget([&] { std::ranges::for_each(profile.LoadTotals(i).gradients, require); });
    RunTarget([&] {
      for (const auto& part : profile.Load(i).histograms) std::ranges::for_each(part, require);
    });
  }
}

// The settings of the profile that continues what the input left; those of the corpus.
struct SmallProfile {
  EncodedStep Step(int64_t number) const {
    ProfileStep step;
    step.step = number;
    step.micro_steps = {-1};
    step.tensors = {{"a", Role::kGrad, DType::kF32, {2, 1}}};
    HistogramCounter counter(edges);
    counter.Add(std::array{1.5f, -0.25f});
    step.histograms.push_back({counter.Take()});
    return EncodeStep(step, edges);
  }

  static ProfileSettings Settings() {
    ProfileSettings settings;
    settings.ladder = {{ParseFormat("fp16")},
                       {Rounding::kNearestEven},
                       {Subnormals::kKeep, Subnormals::kFlushToZero},
                       {1.0f}};
    return settings;
  }

  ProfileSettings settings = Settings();
  HistogramEdges edges = EdgesOf(settings.ladder);
  std::string opening = ProfileOpening(SettingsText("fuzz", settings), edges);
  TempDir dir;
};

// Goes on behind what is there and returns the number of steps that the profile must have then.
size_t Continue(const SmallProfile& small, const std::string& path) {
  ProfileWriter writer(path, small.settings, small.edges, ProfileWriter::Existing::kReplace);
  const size_t done = writer.done().size();
  if (done > 1) writer.Truncate(done - 1);
  const size_t kept = std::min<size_t>(done, done > 1 ? done - 1 : 1);
  const int64_t last = kept > 0 ? writer.done()[kept - 1].step : -1;
  const bool fits = last < std::numeric_limits<int64_t>::max();
  if (fits) writer.Append(small.Step(last + 1));
  writer.Commit();
  return kept + (fits ? 1 : 0);
}

}  // namespace

int FuzzProfile(const uint8_t* bytes, size_t size) {
  const std::string repaired = RepairProfile(TextOf(bytes, size));
  return RunTarget(
      [&] { ReadSteps(StoredProfile(MemorySource("fuzz", std::as_bytes(std::span(repaired))))); });
}

// The first byte says whether the opening stands before the rest or is the rest's own.
int FuzzPartial(const uint8_t* bytes, size_t size) {
  static const SmallProfile small;
  if (size == 0) return 0;
  const std::string_view rest = TextOf(bytes, size).substr(1);
  std::string left = bytes[0] % 2 == 0 ? small.opening : "";
  bytes[0] % 2 == 0 ? AppendRepaired(rest, left) : void(left = RepairProfile(rest));
  const std::string path = small.dir.path() + "/p";
  small.dir.Write("p.partial", left);
  size_t steps = 0;
  bool committed = false;
  RunTarget([&] {
    steps = Continue(small, path);
    committed = true;
  });
  if (!committed) return 0;
  const StoredProfile whole(FileSource(ReadOnlyFile::Open(path)));
  Require(whole.entries().size() == steps);
  ReadSteps(whole);
  return 0;
}

}  // namespace dlsim
