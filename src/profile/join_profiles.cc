// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/profile_file.h"
#include "src/profile/write_profile.h"
#include "src/trace/shard_grid.h"

namespace dlsim {
namespace {

std::vector<PieceHeader> HeadersOf(const ProfileStep& step) {
  std::vector<PieceHeader> headers;
  for (const ProfileTensor& tensor : step.tensors) {
    headers.push_back({tensor.name, tensor.role, tensor.dtype, tensor.shape});
  }
  return headers;
}

void RequireSameParts(std::span<const ProfileStep> shards, std::span<const std::string> places) {
  for (size_t r = 1; r < shards.size(); ++r) {
    if (shards[r].step == shards[0].step && shards[r].micro_steps == shards[0].micro_steps)
      continue;
    throw InputError(places[r], "other steps than in the first profile",
                     std::to_string(shards[0].step), std::to_string(shards[r].step));
  }
}

// Returns what the shards of a step hold together; the metadata is that of the first which has it.
ProfileStep WholeStep(std::span<const ProfileStep> shards, std::span<const std::string> places) {
  RequireSameParts(shards, places);
  ShardGrids grids;
  std::vector<std::vector<PieceHeader>> headers;
  ProfileStep step;
  step.step = shards[0].step;
  step.micro_steps = shards[0].micro_steps;
  step.histograms.resize(step.micro_steps.size());
  step.scaled.resize(shards[0].scaled.size());
  for (size_t r = 0; r < shards.size(); ++r) {
    AddShardGrids(places[r], shards[r].metadata, grids);
    headers.push_back(HeadersOf(shards[r]));
    JoinMetadata(shards[r].metadata, step.metadata);
    step.files.insert(step.files.end(), shards[r].files.begin(), shards[r].files.end());
  }
  for (WholeTensor& whole : WholeTensorsOf(headers, places, grids)) {
    for (size_t part = 0; part < step.histograms.size(); ++part) {
      Histogram sum;
      for (const TensorPiece& piece : whole.pieces) {
        sum = MergeHistograms(sum, shards[piece.shard].histograms[part][piece.tensor]);
      }
      step.histograms[part].push_back(std::move(sum));
    }
    // Training converts each shard by itself, too.
    for (size_t f = 0; f < step.scaled.size(); ++f) {
      ScaledLoss& loss = step.scaled[f].emplace_back();
      for (const TensorPiece& piece : whole.pieces) {
        loss.Merge(shards[piece.shard].scaled[f][piece.tensor]);
      }
    }
    // What the channels of pieces lose together is not known.
    const TensorPiece& first = whole.pieces.front();
    const std::vector<ChannelCurves>& curves = shards[first.shard].channels;
    step.channels.push_back(whole.pieces.size() == 1 && !curves.empty() ? curves[first.tensor]
                                                                        : ChannelCurves());
    PieceHeader& header = whole.header;
    step.tensors.push_back(
        {std::move(header.name), header.role, header.dtype, std::move(header.shape)});
  }
  if (std::ranges::none_of(step.channels, &ChannelCurves::known)) step.channels.clear();
  return step;
}

std::vector<ProfileReader> OpenAlike(std::span<const std::string> paths) {
  std::vector<ProfileReader> readers;
  for (const std::string& path : paths) {
    readers.push_back(ProfileReader::Open(std::array<std::string, 1>{path}));
    const size_t steps = readers.back().step_count(), expected = readers.front().step_count();
    if (steps != expected) {
      throw InputError(Printable(path), "another number of steps than in the first profile",
                       std::to_string(expected), std::to_string(steps));
    }
    if (readers.back().edges() != readers.front().edges() ||
        readers.back().settings().scaled != readers.front().settings().scaled) {
      throw InputError(Printable(path), "answers other questions than the first profile");
    }
  }
  if (readers.empty()) throw UsageError("paths", "no profile to join", "one or more");
  return readers;
}

}  // namespace

void JoinProfiles(std::span<const std::string> paths, const std::string& output) {
  const std::vector<ProfileReader> readers = OpenAlike(paths);
  std::vector<std::string> places;
  for (const std::string& path : paths) places.push_back(Printable(path));
  const HistogramEdges& edges = readers.front().edges();
  WriteProfileLike(readers.front(), output, [&](size_t i) {
    std::vector<ProfileStep> shards;
    for (const ProfileReader& reader : readers) shards.push_back(reader.Load(i));
    return EncodeStep(WholeStep(shards, places), edges);
  });
}

}  // namespace dlsim
