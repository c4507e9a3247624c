// SPDX-License-Identifier: Apache-2.0
// Pieces of tensors that the processes of sharded training recorded: which piece of which tensor
// each is, and where its elements lie in the whole.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/trace.h"

namespace dlsim {

// A recorded tensor without its values.
struct PieceHeader {
  std::string name;
  Role role = Role::kGrad;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
};

// One piece of a tensor: an interval along each dimension of the whole.
struct TensorPiece {
  size_t shard = 0;   // which of the recordings holds it
  size_t tensor = 0;  // where in that recording
  uint64_t index = 0;
  std::vector<uint64_t> begin, size;  // of the interval
};

struct WholeTensor {
  PieceHeader header;
  std::vector<TensorPiece> pieces;  // ascending by index
};

// How a tensor was cut: into `parts` along `dimension`, each of these again by the next cut. Piece
// numbers count through all, the last cut fastest.
struct ShardCut {
  uint64_t dimension = 0;
  uint64_t parts = 1;
};

// The cuts of tensors by name. Others are cut along the first dimension, or have lost their shape
// and follow each other without dimensions.
using ShardGrids = std::map<std::string, std::vector<ShardCut>>;

// The metadata that says it: {"fc.weight.grad": [[1, 4]]}.
inline constexpr std::string_view kShardGridKey = "shard_grid";

// Adds the grids that the metadata of a recording states. Throws InputError that names `place`.
void AddShardGrids(const std::string& place, const std::map<std::string, std::string>& metadata,
                   ShardGrids& grids);

// Adds the metadata of a shard to that of the whole: what the first shard states counts, without
// its grid, and kAutocastFloat32Key, kNoiseKey and kFeatureAxesKey name what any shard names, as
// the whole is named.
void JoinMetadata(const std::map<std::string, std::string>& shard,
                  std::map<std::string, std::string>& whole);

// What recordings of several shards hold together, in the order in which tensors come first: pieces
// are named `<parameter>.shard-1-of-4.grad`. `places` name the recordings. Throws InputError if a
// tensor or piece is there twice, a piece of a parameter or of its gradient is missing, or pieces
// do not fit.
std::vector<WholeTensor> WholeTensorsOf(std::span<const std::vector<PieceHeader>> shards,
                                        std::span<const std::string> places,
                                        const ShardGrids& grids);

}  // namespace dlsim
