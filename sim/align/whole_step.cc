// SPDX-License-Identifier: Apache-2.0
#include "sim/align/whole_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/dtype.h"
#include "dlsim/error.h"
#include "sim/base/json_value.h"
#include "sim/base/output_file.h"
#include "src/trace/shard_grid.h"
#include "src/trace/tensor_rules.h"

namespace dlsim::sim {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

using Shards = std::vector<const Recording*>;

// The gradients of one step carry one loss scale.
std::map<std::string, std::string> WholeMetadata(const Shards& shards) {
  std::map<std::string, std::string> metadata;
  for (const Recording* shard : shards) {
    if (shard->grad_scale != shards.front()->grad_scale) {
      throw InputError(shard->place, "another grad_scale than in the first shard",
                       fmt::format("{}", shards.front()->grad_scale),
                       fmt::format("{}", shard->grad_scale));
    }
    JoinMetadata(shard->metadata, metadata);
  }
  return metadata;
}

std::vector<WholeTensor> TensorsOf(const Shards& shards) {
  std::vector<std::vector<PieceHeader>> headers;
  std::vector<std::string> places;
  ShardGrids grids;
  for (const Recording* shard : shards) {
    std::vector<PieceHeader>& of_shard = headers.emplace_back();
    for (const TraceTensor& tensor : shard->tensors) {
      of_shard.push_back({tensor.name, tensor.role, tensor.dtype, tensor.shape});
    }
    places.push_back(shard->place);
    AddShardGrids(shard->place, shard->metadata, grids);
  }
  std::vector<WholeTensor> tensors = WholeTensorsOf(headers, places, grids);
  // As the format's own writers do, so that each begins at a multiple of its element's size.
  std::ranges::stable_sort(tensors, std::greater<>(), [](const WholeTensor& tensor) {
    return DTypeSize(tensor.header.dtype);
  });
  return tensors;
}

uint64_t BytesIn(const PieceHeader& header) {
  const std::optional<uint64_t> elements = ElementCount(header.shape, DTypeSize(header.dtype));
  if (!elements) throw InputError(Quoted(header.name), "too many elements");
  return *elements * DTypeSize(header.dtype);
}

void WriteHeader(const std::vector<WholeTensor>& tensors,
                 const std::map<std::string, std::string>& metadata, OutputFile& file) {
  constexpr size_t kAlignment = 8;
  nlohmann::ordered_json json = {{"__metadata__", metadata}};
  uint64_t begin = 0;
  for (const WholeTensor& tensor : tensors) {
    const uint64_t end = begin + BytesIn(tensor.header);
    json[tensor.header.name] = {{"dtype", NameOf(tensor.header.dtype)},
                                {"shape", tensor.header.shape},
                                {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = json.dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  std::string length;
  for (size_t i = 0; i < sizeof(uint64_t); ++i) {
    length += static_cast<char>(uint64_t{text.size()} >> 8 * i & 0xff);
  }
  file.Write(length);
  file.Write(text);
}

void Copy(const TraceTensor& tensor, uint64_t begin, uint64_t bytes, std::vector<std::byte>& buffer,
          OutputFile& file) {
  while (bytes > 0) {
    const uint64_t count = std::min<uint64_t>(bytes, buffer.size());
    const std::byte* data = tensor.Bytes(begin, std::span(buffer).first(count));
    file.Write({reinterpret_cast<const char*>(data), static_cast<size_t>(count)});
    begin += count;
    bytes -= count;
  }
}

uint64_t Product(std::span<const uint64_t> sizes) {
  uint64_t product = 1;
  for (const uint64_t size : sizes) product *= size;
  return product;
}

// The last dimension along which the tensor is cut: beyond it, pieces lie in the file as they are.
size_t LastCut(const WholeTensor& whole) {
  for (size_t d = whole.header.shape.size(); d-- > 0;) {
    for (const TensorPiece& piece : whole.pieces) {
      if (piece.size[d] != whole.header.shape[d] && Product(piece.size) > 0) return d;
    }
  }
  return 0;
}

// Returns which row of a piece the `outer`-th of the whole is, counted over the dimensions before
// `cut`; nothing if it is in another one.
std::optional<uint64_t> RowOf(uint64_t outer, size_t cut, const WholeTensor& whole,
                              const TensorPiece& piece) {
  uint64_t row = 0, stride = 1;
  for (size_t d = cut; d-- > 0;) {
    const uint64_t at = outer % whole.header.shape[d];
    outer /= whole.header.shape[d];
    if (at < piece.begin[d] || at - piece.begin[d] >= piece.size[d]) return std::nullopt;
    row += (at - piece.begin[d]) * stride;
    stride *= piece.size[d];
  }
  return row;
}

void WriteTensor(const WholeTensor& whole, const Shards& shards, std::vector<std::byte>& buffer,
                 OutputFile& file) {
  const size_t cut = LastCut(whole);
  const std::span<const uint64_t> shape = whole.header.shape;
  std::vector<const TensorPiece*> pieces;
  for (const TensorPiece& piece : whole.pieces) {
    if (Product(piece.size) > 0) pieces.push_back(&piece);
  }
  if (pieces.empty()) return;
  if (!shape.empty()) {
    std::ranges::stable_sort(pieces, {},
                             [&](const TensorPiece* piece) { return piece->begin[cut]; });
  }
  const uint64_t rows = Product(shape.first(cut));
  for (uint64_t outer = 0; outer < rows; ++outer) {
    for (const TensorPiece* piece : pieces) {
      const std::optional<uint64_t> row = RowOf(outer, cut, whole, *piece);
      if (!row) continue;
      const uint64_t bytes =
          Product(std::span(piece->size).subspan(cut)) * DTypeSize(whole.header.dtype);
      Copy(shards[piece->shard]->tensors[piece->tensor], *row * bytes, bytes, buffer, file);
    }
  }
}

}  // namespace

void WriteWholeStep(const Shards& shards, const std::string& path) {
  const std::vector<WholeTensor> tensors = TensorsOf(shards);
  OutputFile file(path);
  WriteHeader(tensors, WholeMetadata(shards), file);
  std::vector<std::byte> buffer(kChunkBytes);
  for (const WholeTensor& tensor : tensors) WriteTensor(tensor, shards, buffer, file);
  file.Commit();
}

}  // namespace dlsim::sim
