// SPDX-License-Identifier: Apache-2.0
#include "src/trace/shard_grid.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/feature_axes.h"
#include "src/trace/listed_names.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr uint64_t kMaxPieces = 1'000'000;

// What the name of a piece says.
struct PieceName {
  std::string whole;
  uint64_t index = 0;
  uint64_t count = 1;
};

// Reads `<stem>.shard-<index>-of-<count>.<role>`; any other name is that of a whole tensor.
PieceName ParsePieceName(const std::string& name) {
  constexpr std::string_view kShard = ".shard-", kOf = "-of-";
  const size_t role = name.rfind('.');
  const size_t begin = name.rfind(kShard);
  if (role == name.npos || begin == name.npos || begin >= role) return {name};
  const std::string_view part =
      std::string_view(name).substr(begin + kShard.size(), role - begin - kShard.size());
  const size_t of = part.find(kOf);
  if (of == part.npos) return {name};
  const std::optional<int64_t> index = ParseDigits(part.substr(0, of));
  const std::optional<int64_t> count = ParseDigits(part.substr(of + kOf.size()));
  if (!index || !count || *index >= *count) return {name};
  return {name.substr(0, begin) + name.substr(role), static_cast<uint64_t>(*index),
          static_cast<uint64_t>(*count)};
}

// What is known of a tensor while its pieces are gathered.
struct Gathered {
  WholeTensor tensor;
  uint64_t count = 1;
  std::string place;  // of the first piece
};

void Gather(const std::string& place, const PieceHeader& header, TensorPiece piece,
            std::map<std::string, size_t>& known, std::vector<Gathered>& found) {
  PieceName name = ParsePieceName(header.name);
  const auto [entry, is_new] = known.try_emplace(name.whole, found.size());
  if (is_new) {
    found.push_back({{header, {}}, name.count, place});
    found.back().tensor.header.name = std::move(name.whole);
  }
  Gathered& whole = found[entry->second];
  const auto same = [&](const TensorPiece& other) { return other.index == name.index; };
  if (std::ranges::any_of(whole.tensor.pieces, same)) {
    throw InputError(TensorPlace(place, header.name), "is in a shard before", "once");
  }
  if (name.count != whole.count || header.dtype != whole.tensor.header.dtype ||
      header.role != whole.tensor.header.role) {
    throw InputError(TensorPlace(place, header.name), "does not fit the piece in " + whole.place,
                     "the same number of pieces, type and role");
  }
  piece.index = name.index;
  piece.begin.assign(header.shape.size(), 0);
  piece.size = header.shape;
  whole.tensor.pieces.push_back(std::move(piece));
}

// A process may have had no such activations; a gradient or parameter without all of its elements
// is none.
void RequireAllPieces(const Gathered& found) {
  const std::vector<TensorPiece>& pieces = found.tensor.pieces;
  const Role role = found.tensor.header.role;
  if (role == Role::kActGrad || role == Role::kAct || pieces.size() == found.count) return;
  uint64_t missing = 0;
  while (missing < pieces.size() && pieces[missing].index == missing) ++missing;
  throw InputError(TensorPlace(found.place, found.tensor.header.name),
                   "a piece is missing in all shards", std::to_string(found.count) + " pieces",
                   "none of number " + std::to_string(missing));
}

uint64_t Elements(const TensorPiece& piece) {
  return *ElementCount(piece.size, 1);  // known to fit: the piece was read
}

// The pieces follow each other as they lie in memory, without dimensions.
void LayFlat(WholeTensor& tensor) {
  uint64_t begin = 0;
  for (TensorPiece& piece : tensor.pieces) {
    const uint64_t elements = Elements(piece);
    piece.begin = {begin};
    piece.size = {elements};
    begin += elements;
  }
  tensor.header.shape = {begin};
}

// The number of a piece among the intervals of one dimension.
uint64_t CoordinateOf(uint64_t index, std::span<const ShardCut> cuts, uint64_t dimension) {
  uint64_t coordinate = 0, parts = 1;
  for (const ShardCut& cut : cuts) parts *= cut.parts;
  for (const ShardCut& cut : cuts) {
    parts /= cut.parts;
    const uint64_t digit = index / parts % cut.parts;
    if (cut.dimension == dimension) coordinate = coordinate * cut.parts + digit;
  }
  return coordinate;
}

// Places all pieces along one dimension; returns whether their sizes agree.
bool LayAlong(uint64_t dimension, std::span<const ShardCut> cuts, WholeTensor& tensor) {
  std::map<uint64_t, uint64_t> sizes;  // by coordinate
  for (const TensorPiece& piece : tensor.pieces) {
    const uint64_t size = Elements(piece) == 0 ? 0 : piece.size[dimension];
    uint64_t& known = sizes[CoordinateOf(piece.index, cuts, dimension)];
    if (known != 0 && size != 0 && known != size) return false;
    known = std::max(known, size);
  }
  std::map<uint64_t, uint64_t> begins;
  uint64_t end = 0;
  for (const auto& [coordinate, size] : sizes) {
    begins[coordinate] = end;
    end += size;
  }
  for (TensorPiece& piece : tensor.pieces) {
    piece.begin[dimension] = begins[CoordinateOf(piece.index, cuts, dimension)];
  }
  tensor.header.shape[dimension] = end;
  return true;
}

// Places all pieces; returns whether they fill a whole of as many dimensions.
bool LayByCuts(std::span<const ShardCut> cuts, WholeTensor& tensor) {
  const auto is_full = [](const TensorPiece& piece) { return Elements(piece) > 0; };
  const auto first = std::ranges::find_if(tensor.pieces, is_full);
  if (first == tensor.pieces.end()) return false;
  const size_t dimensions = first->size.size();
  const auto fits = [&](const TensorPiece& piece) {
    return piece.size.size() == dimensions || Elements(piece) == 0;
  };
  const auto is_known = [&](const ShardCut& cut) { return cut.dimension < dimensions; };
  if (!std::ranges::all_of(tensor.pieces, fits) || !std::ranges::all_of(cuts, is_known)) {
    return false;
  }
  tensor.header.shape.assign(dimensions, 0);
  for (TensorPiece& piece : tensor.pieces) {
    if (Elements(piece) == 0) piece.size.assign(dimensions, 0);
    piece.begin.assign(dimensions, 0);
  }
  for (uint64_t dimension = 0; dimension < dimensions; ++dimension) {
    if (!LayAlong(dimension, cuts, tensor)) return false;
  }
  uint64_t elements = 0;
  for (const TensorPiece& piece : tensor.pieces) elements += Elements(piece);
  return ElementCount(tensor.header.shape, 1) == elements;  // no hole
}

void Place(const ShardGrids& grids, uint64_t count, WholeTensor& tensor) {
  const auto grid = grids.find(tensor.header.name);
  const std::vector<ShardCut> along_first = {{0, count}};
  const std::span<const ShardCut> cuts = grid == grids.end() ? along_first : grid->second;
  uint64_t parts = 1;
  for (const ShardCut& cut : cuts) parts *= cut.parts;
  if (parts != count || !LayByCuts(cuts, tensor)) LayFlat(tensor);
}

std::vector<ShardCut> ReadCuts(const std::string& place, const nlohmann::json& value) {
  std::vector<ShardCut> cuts;
  uint64_t parts = 1;
  bool good = value.is_array() && value.size() <= kMaxRank;
  for (size_t i = 0; good && i < value.size(); ++i) {
    const nlohmann::json& cut = value[i];
    good = cut.is_array() && cut.size() == 2 && cut[0].is_number_unsigned() &&
           cut[1].is_number_unsigned();
    if (!good) break;
    cuts.push_back({cut[0].get<uint64_t>(), cut[1].get<uint64_t>()});
    good = cuts.back().parts >= 1 && cuts.back().parts <= kMaxPieces / parts;
    if (good) parts *= cuts.back().parts;
  }
  if (!good) {
    throw InputError(place, "metadata 'shard_grid' has a wrong entry", "such as [[1, 4]]",
                     Printable(value.dump()));
  }
  return cuts;
}

}  // namespace

void AddShardGrids(const std::string& place, const std::map<std::string, std::string>& metadata,
                   ShardGrids& grids) {
  const auto entry = metadata.find(std::string(kShardGridKey));
  if (entry == metadata.end()) return;
  CheckStrictJson(place, entry->second);
  const nlohmann::json json = nlohmann::json::parse(entry->second);
  if (!json.is_object()) throw InputError(place, "metadata 'shard_grid' is not a JSON object");
  for (const auto& [name, value] : json.items()) {
    grids.try_emplace(name, ReadCuts(place, value));
  }
}

void JoinMetadata(const std::map<std::string, std::string>& shard,
                  std::map<std::string, std::string>& whole) {
  whole.insert(shard.begin(), shard.end());
  whole.erase(std::string(kShardGridKey));
  for (const std::string_view key : {kAutocastFloat32Key, kNoiseKey, kFeatureAxesKey}) {
    if (!shard.contains(std::string(key))) continue;
    std::set<std::string> pieces = ListedIn(whole, key), names;
    pieces.merge(ListedIn(shard, key));
    for (const std::string& name : pieces) names.insert(ParsePieceName(name).whole);
    whole[std::string(key)] = ListOf(names);
  }
}

std::vector<WholeTensor> WholeTensorsOf(std::span<const std::vector<PieceHeader>> shards,
                                        std::span<const std::string> places,
                                        const ShardGrids& grids) {
  std::map<std::string, size_t> known;
  std::vector<Gathered> found;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    for (size_t i = 0; i < shards[shard].size(); ++i) {
      Gather(places[shard], shards[shard][i], {shard, i, 0, {}, {}}, known, found);
    }
  }
  std::vector<WholeTensor> tensors;
  for (Gathered& one : found) {
    std::ranges::sort(one.tensor.pieces, {}, &TensorPiece::index);
    RequireAllPieces(one);
    if (one.count > 1) Place(grids, one.count, one.tensor);
    tensors.push_back(std::move(one.tensor));
  }
  return tensors;
}

}  // namespace dlsim
