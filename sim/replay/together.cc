// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/together.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/layout.h"
#include "src/trace/strict_json.h"
#include "src/trace/tensor_rules.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShardGridKey = "shard_grid";
constexpr uint64_t kMaxPieces = 1'000'000;

struct Fraction {
  uint64_t index = 0;
  uint64_t count = 1;
};

// Reads "<index>-of-<count>".
std::optional<Fraction> ParseFraction(std::string_view text) {
  constexpr std::string_view kOf = "-of-";
  const size_t of = text.find(kOf);
  if (of == text.npos) return std::nullopt;
  const std::optional<int64_t> index = ParseDigits(text.substr(0, of));
  const std::optional<int64_t> count = ParseDigits(text.substr(of + kOf.size()));
  if (!index || !count || *index >= *count) return std::nullopt;
  return Fraction{static_cast<uint64_t>(*index), static_cast<uint64_t>(*count)};
}

// Reads the name of a rank's folder.
std::optional<Fraction> ParseFolder(const fs::path& path) {
  constexpr std::string_view kShard = "shard-";
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  if (!name.starts_with(kShard)) return std::nullopt;
  return ParseFraction(std::string_view(name).substr(kShard.size()));
}

// What the name of a tensor says: `<stem>.shard-<index>-of-<count>.<role>` is a piece of
// `<stem>.<role>`, any other name that of a whole tensor.
struct PieceName {
  std::string whole;
  Fraction piece;
};

PieceName ParseName(const std::string& name) {
  constexpr std::string_view kShard = ".shard-";
  const size_t role = name.rfind('.'), begin = name.rfind(kShard);
  if (role == name.npos || begin == name.npos || begin >= role) return {name, {}};
  const size_t text = begin + kShard.size();
  const std::optional<Fraction> piece =
      role < text ? std::nullopt : ParseFraction(std::string_view(name).substr(text, role - text));
  if (!piece) return {name, {}};
  return {name.substr(0, begin) + name.substr(role), *piece};
}

// A tensor of one rank that is a piece, or all, of one of the run.
struct Piece {
  size_t rank = 0;
  size_t tensor = 0;
  uint64_t index = 0;
  std::vector<uint64_t> shape;
};

struct Whole {
  TensorInfo info;
  uint64_t count = 1;
  std::vector<Piece> pieces;  // ascending by index
};

// A tensor is cut into `parts` along `dimension`.
struct Cut {
  uint64_t dimension = 0;
  uint64_t parts = 1;
};

using Cuts = std::map<std::string, std::vector<Cut>, std::less<>>;  // by tensor

std::vector<Cut> ReadCuts(const std::string& place, const nlohmann::json& value) {
  std::vector<Cut> cuts;
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
  if (good) return cuts;
  throw InputError(place, "metadata 'shard_grid' has a wrong entry", "such as [[1, 4]]",
                   Printable(value.dump()));
}

void AddCuts(const std::string& place, const std::map<std::string, std::string>& metadata,
             Cuts& cuts) {
  const auto entry = metadata.find(kShardGridKey);
  if (entry == metadata.end()) return;
  const nlohmann::json json = ParseStrictJson(place, entry->second);
  if (!json.is_object()) throw InputError(place, "metadata 'shard_grid' is not a JSON object");
  for (const auto& [name, value] : json.items()) cuts.try_emplace(name, ReadCuts(place, value));
}

// Which of the intervals along a dimension a piece is in.
uint64_t IntervalOf(uint64_t index, std::span<const Cut> cuts, uint64_t dimension) {
  uint64_t interval = 0, parts = 1;
  for (const Cut& cut : cuts) parts *= cut.parts;
  for (const Cut& cut : cuts) {
    parts /= cut.parts;
    if (cut.dimension == dimension) interval = interval * cut.parts + index / parts % cut.parts;
  }
  return interval;
}

uint64_t ElementsOf(const std::vector<uint64_t>& shape) {
  return ElementCount(shape, 1).value_or(0);  // known to fit: the piece was read
}

// Returns the shape of the whole, or its number of elements where the pieces do not fill one.
std::vector<uint64_t> ShapeOf(const Whole& whole, const Cuts& cuts) {
  uint64_t elements = 0;
  for (const Piece& piece : whole.pieces) elements += ElementsOf(piece.shape);
  const std::vector<uint64_t> flat = {elements};
  const std::vector<Cut> along_first = {{0, whole.count}};
  const auto stated = cuts.find(whole.info.name);
  const std::vector<Cut>& of = stated == cuts.end() ? along_first : stated->second;
  uint64_t parts = 1;
  for (const Cut& cut : of) parts *= cut.parts;
  std::vector<std::map<uint64_t, uint64_t>> sizes;  // [dimension], by interval
  for (const Piece& piece : whole.pieces) {
    if (ElementsOf(piece.shape) == 0) continue;
    if (sizes.empty()) sizes.resize(piece.shape.size());
    if (piece.shape.size() != sizes.size()) return flat;
    for (size_t d = 0; d < sizes.size(); ++d) {
      const uint64_t interval = IntervalOf(piece.index, of, d);
      if (sizes[d].try_emplace(interval, piece.shape[d]).first->second != piece.shape[d]) {
        return flat;
      }
    }
  }
  std::vector<uint64_t> shape;
  for (const std::map<uint64_t, uint64_t>& of_dimension : sizes) {
    uint64_t& size = shape.emplace_back(0);
    for (const auto& [interval, length] : of_dimension) size += length;
  }
  const bool fits =
      parts == whole.count && !shape.empty() &&
      std::ranges::all_of(of, [&](const Cut& cut) { return cut.dimension < shape.size(); });
  return fits && ElementCount(shape, 1) == elements ? shape : flat;
}

// A process may have had no such activations; a gradient or parameter without all of its elements
// is none.
void RequireAllPieces(const std::string& place, const Whole& whole) {
  const Role role = whole.info.role;
  if (role == Role::kActGrad || role == Role::kAct || whole.pieces.size() == whole.count) return;
  uint64_t missing = 0;
  while (missing < whole.pieces.size() && whole.pieces[missing].index == missing) ++missing;
  throw InputError(TensorPlace(place, whole.info.name), "a piece is missing in all shards",
                   std::to_string(whole.count) + " pieces",
                   "none of number " + std::to_string(missing));
}

using Ranks = std::vector<std::unique_ptr<Step>>;

// Returns the tensors of the run, gradients first.
std::vector<Whole> WholesOf(const Ranks& ranks, std::span<const std::string> places) {
  std::map<std::string, size_t> known;
  std::vector<Whole> wholes;
  Cuts cuts;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const StepTables& step = ranks[rank]->tables();
    AddCuts(places[rank], step.metadata, cuts);
    for (size_t t = 0; t < step.tensors.size(); ++t) {
      const TensorInfo& info = *step.tensors[t];
      const PieceName name = ParseName(info.name);
      const auto [found, is_new] = known.try_emplace(name.whole, wholes.size());
      if (is_new) {
        wholes.push_back({info, name.piece.count, {}});
        wholes.back().info.name = name.whole;
      }
      Whole& whole = wholes[found->second];
      if (std::ranges::count(whole.pieces, name.piece.index, &Piece::index) > 0) {
        throw InputError(TensorPlace(places[rank], info.name), "is in a shard before", "once");
      }
      if (name.piece.count != whole.count || info.dtype != whole.info.dtype ||
          info.role != whole.info.role) {
        throw InputError(TensorPlace(places[rank], info.name),
                         "does not fit the piece in " + places[whole.pieces.front().rank],
                         "the same number of pieces, type and role");
      }
      whole.pieces.push_back({rank, t, name.piece.index, info.shape});
    }
  }
  for (Whole& whole : wholes) {
    const std::string& place = places[whole.pieces.front().rank];
    std::ranges::sort(whole.pieces, {}, &Piece::index);
    RequireAllPieces(place, whole);
    if (whole.count > 1) whole.info.shape = ShapeOf(whole, cuts);
  }
  std::ranges::stable_partition(wholes,
                                [](const Whole& whole) { return IsGradient(whole.info.role); });
  return wholes;
}

void AddMetadata(const std::map<std::string, std::string>& rank,
                 std::map<std::string, std::string>& all) {
  all.insert(rank.begin(), rank.end());
  all.erase(kShardGridKey);
  for (const std::string_view key : {kAutocastFloat32Key, kNoiseKey, kFeatureAxesKey}) {
    std::set<std::string> names;
    names.merge(ListedIn(all, key));
    names.merge(ListedIn(rank, key));
    std::set<std::string> wholes;
    for (const std::string& name : names) wholes.insert(ParseName(name).whole);
    if (!wholes.empty()) all[std::string(key)] = ListOf(wholes);
  }
}

// Adds up what `of` gives of each rank: parts of all tensors, or of the first ones.
PartTables AddParts(const Ranks& ranks, std::span<const Whole> wholes,
                    const std::function<const PartTables&(const StepTables& rank)>& of) {
  PartTables parts(of(ranks.front()->tables()).size());
  for (size_t part = 0; part < parts.size(); ++part) {
    for (const Whole& whole : wholes) {
      TensorTable& sum = parts[part].emplace_back();
      for (const Piece& piece : whole.pieces) {
        sum.Add(of(ranks[piece.rank]->tables())[part][piece.tensor]);
      }
    }
  }
  return parts;
}

// Adds up the tables of a step; of steps that are only described there are none.
StepTables Join(const Ranks& ranks, std::span<const std::string> places) {
  StepTables all;
  all.step = ranks.front()->number();
  all.micro_steps = ranks.front()->tables().micro_steps;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const StepTables& step = ranks[rank]->tables();
    if (step.step != all.step) {
      throw InputError(places[rank], "other steps than in the first shard",
                       std::to_string(all.step), std::to_string(step.step));
    }
    if (step.micro_steps != all.micro_steps) {
      throw InputError(places[rank], "other micro-steps than in the first shard",
                       std::to_string(all.micro_steps.size()),
                       std::to_string(step.micro_steps.size()));
    }
    AddMetadata(step.metadata, all.metadata);
    all.files.insert(all.files.end(), step.files.begin(), step.files.end());
  }
  const std::vector<Whole> wholes = WholesOf(ranks, places);
  for (const Whole& whole : wholes) {
    all.tensors.push_back(whole.info);
    all.gradients += IsGradient(whole.info.role);
  }
  const std::span<const Whole> gradients = std::span(wholes).first(all.gradients);
  const StepTables& first = ranks.front()->tables();
  all.parts = AddParts(ranks, wholes,
                       [](const StepTables& rank) -> const PartTables& { return rank.parts; });
  for (const auto& [mantissa, parts] : first.by_mantissa) {
    all.by_mantissa[mantissa] = AddParts(
        ranks, gradients,
        [&](const StepTables& rank) -> const PartTables& { return rank.by_mantissa.at(mantissa); });
  }
  const bool knows_sums =
      std::ranges::none_of(ranks, [](const auto& rank) { return rank->tables().sums.empty(); });
  for (const Whole& whole : knows_sums ? gradients : gradients.first(0)) {
    TensorTable& sum = all.sums.emplace_back();
    for (const Piece& piece : whole.pieces) {
      sum.Add(ranks[piece.rank]->tables().sums[piece.tensor]);
    }
  }
  for (size_t format = 0; format < first.scaled.size(); ++format) {
    std::vector<ScaledLoss>& losses = all.scaled.emplace_back();
    for (const Whole& whole : wholes) {
      ScaledLoss& loss = losses.emplace_back();
      for (const Piece& piece : whole.pieces) {
        loss.Merge(ranks[piece.rank]->tables().scaled[format][piece.tensor]);
      }
    }
  }
  return all;
}

SourceFacts FactsOf(std::span<const StepSource> ranks) {
  SourceFacts facts = ranks.front().facts;
  for (const StepSource& rank : ranks.subspan(1)) {
    facts.file_bytes += rank.facts.file_bytes;
    if (facts.profile && rank.facts.profile) {
      facts.profile->trace_bytes += rank.facts.profile->trace_bytes;
    }
    for (const std::string& note : rank.facts.notes) {
      if (std::ranges::count(facts.notes, note) == 0) facts.notes.push_back(note);
    }
  }
  return facts;
}

}  // namespace

std::vector<std::string> FindShards(const std::vector<std::string>& paths) {
  std::vector<std::string> folders = paths;
  if (paths.size() == 1 && !ParseFolder(paths.front())) {
    folders.clear();
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(paths.front(), error)) {
      const std::string name = entry.path().filename().string();
      if (LooksLikeStepName(name) || name == "profile.json") return {};  // no shards of a run
      if (ParseFolder(entry.path()) && entry.is_directory(error)) {
        folders.push_back(entry.path().string());
      }
    }
  }
  std::map<uint64_t, std::string> found;  // by rank
  uint64_t ranks = 0;
  for (const std::string& folder : folders) {
    const std::optional<Fraction> rank = ParseFolder(folder);
    // One of them alone is read as it is.
    if (!rank || (paths.size() == 1 && folder == paths.front())) return {};
    if (ranks != 0 && ranks != rank->count) {
      throw InputError(Printable(folder), "is a shard of another run",
                       "one of " + std::to_string(ranks), "one of " + std::to_string(rank->count));
    }
    ranks = rank->count;
    if (!found.emplace(rank->index, folder).second) {
      throw InputError(Printable(folder), "is given twice", "each shard once");
    }
  }
  std::vector<std::string> shards;
  for (auto& [rank, folder] : found) {
    if (rank == shards.size()) shards.push_back(std::move(folder));
  }
  if (shards.size() < ranks) {
    throw InputError(Printable(paths.front()), "missing shard",
                     std::to_string(ranks) + " shards from 0 on",
                     "none of number " + std::to_string(shards.size()));
  }
  return shards;
}

StepSource Together(std::vector<StepSource> ranks, std::vector<std::string> places) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].step_count == ranks.front().step_count) continue;
    throw InputError(places[rank], "other steps than in the first shard",
                     std::to_string(ranks.front().step_count) + " steps",
                     std::to_string(ranks[rank].step_count));
  }
  StepSource all;
  all.facts = FactsOf(ranks);
  all.step_count = ranks.front().step_count;
  all.small_steps = std::ranges::all_of(ranks, &StepSource::small_steps);
  const auto of = std::make_shared<const std::vector<StepSource>>(std::move(ranks));
  const auto join = [of, places = std::move(places)](const auto& open, const StepOptions& options) {
    Ranks opened;
    for (const StepSource& rank : *of) opened.push_back(open(rank));
    StepOptions held = options;
    if (of->front().facts.profile) held.scaled = of->front().facts.profile->settings.scaled;
    return std::make_unique<Step>(Join(opened, places), nullptr, held);
  };
  all.load = [join](size_t i, const StepOptions& options) {
    return join([&](const StepSource& rank) { return rank.load(i, options); }, options);
  };
  all.describe = [join](size_t i) {
    return join([&](const StepSource& rank) { return rank.describe(i); }, StepOptions());
  };
  all.read_ahead = [of](size_t i) {
    for (const StepSource& rank : *of) {
      if (rank.read_ahead) rank.read_ahead(i);
    }
  };
  return all;
}

}  // namespace dlsim::sim
