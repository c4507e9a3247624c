// SPDX-License-Identifier: Apache-2.0
#include "src/device/compute_device.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "dlsim/measure.h"
#include "src/base/check.h"
#include "src/base/parallel.h"
#include "src/measure/step_blocks.h"

namespace dlsim {
namespace {

// The sums of a table take as long to come from a device as some thousands of values to get there.
constexpr uint64_t kFewElements = 8192;
static_assert(kFewElements >= TensorTable::kMostValues && kFewElements <= kBlockElements);

bool IsOnDevice(const Source& source) {
  return source.tensor != nullptr && source.tensor->device >= 0;
}

class DeviceTabulator {
 public:
  DeviceTabulator(ComputeDevice& device, const std::vector<TensorSources>& tensors, size_t parts,
                  bool wants_sums, float mantissa, const StepOptions& options,
                  const OnValues& on_values)
      : device_(device),
        tensors_(tensors),
        parts_(parts),
        columns_(parts + (wants_sums ? 1 : 0)),
        mantissa_(mantissa),
        options_(options),
        on_values_(on_values),
        tables_(tensors.size() * columns_) {
    for (const TensorSources& sources : tensors) {
      for (const Source& source : sources.recordings) {
        DLSIM_CHECK(!IsOnDevice(source) || (!wants_sums && parts == sources.recordings.size()));
      }
    }
  }

  DeviceTables Run() {
    ForEachWave(tensors_, [&](std::span<const Block> wave) { Tabulate(wave); },
                {.memory_bytes = options_.memory_bytes});
    DeviceTables result;
    result.parts.resize(parts_);
    for (size_t t = 0; t < tensors_.size(); ++t) {
      for (size_t part = 0; part < parts_; ++part) {
        result.parts[part].push_back(std::move(tables_[t * columns_ + part]));
      }
      if (columns_ > parts_) result.sums.push_back(std::move(tables_[t * columns_ + parts_]));
    }
    return result;
  }

 private:
  // Hands the blocks of large tensors to the device, by tensor, and does the others here.
  void Tabulate(std::span<const Block> wave) {
    std::vector<DeviceBlock> of_device;
    std::vector<const Block*> small;
    for (const Block& block : wave) {
      if (IsSmall(tensors_[block.tensor])) {
        small.push_back(&block);
      } else {
        of_device.push_back(Describe(block));
      }
    }
    if (!of_device.empty()) {
      device_.Tabulate(of_device, mantissa_,
                       [&](size_t table, TableSums& sums) { tables_[table].Add(TableOf(sums)); });
    }
    for (const Block* const block : small) ReadFromDevice(*block);
    ParallelFor(small.size(), [&](size_t i) { TabulateHere(*small[i]); });
  }

  // Tables of few values have these instead of sums; a part may be much shorter than the tensor.
  static bool IsSmall(const TensorSources& sources) {
    return sources.elements <= kFewElements ||
           std::ranges::any_of(sources.recordings, [](const Source& source) {
             return source.tensor != nullptr && source.tensor->elements <= TensorTable::kMostValues;
           });
  }

  DeviceBlock Describe(const Block& block) {
    const TensorSources& sources = tensors_[block.tensor];
    DeviceBlock described;
    bool of_host = false;
    for (size_t column = 0; column < columns_; ++column) {
      DevicePiece& piece = described.pieces.emplace_back();
      piece.table = block.tensor * columns_ + column;
      piece.count = static_cast<uint32_t>(CountOf(block, column));
      if (IsByPart(sources) && column < parts_ && IsOnDevice(sources.recordings[column])) {
        const Source& source = sources.recordings[column];
        piece.dtype = source.tensor->info->dtype;
        piece.grad_scale = source.grad_scale;
        piece.on_device = source.tensor->memory + block.begin * DTypeSize(piece.dtype);
      }
      of_host |= piece.on_device == nullptr;
    }
    if (!of_host) return described;
    described.fill = [this, &block](std::span<const std::span<float>> to) {
      BlockLoader loader(options_.accumulation);
      loader.Read(tensors_[block.tensor], block);
      for (size_t column = 0; column < columns_; ++column) {
        if (to[column].empty()) continue;
        std::ranges::copy(ValuesOf(loader, block, column), to[column].begin());
      }
    };
    return described;
  }

  bool IsByPart(const TensorSources& sources) const { return parts_ == sources.recordings.size(); }

  size_t CountOf(const Block& block, size_t column) const {
    const TensorSources& sources = tensors_[block.tensor];
    const bool of_one = IsByPart(sources) && column < parts_;
    return of_one ? ElementsOf(sources.recordings[column], block) : block.count;
  }

  std::span<const float> ValuesOf(BlockLoader& loader, const Block& block, size_t column) const {
    if (column == parts_) return loader.Sum();
    const std::span<const float> values = loader.Values(column);
    if (on_values_) on_values_(block.tensor, column, block.begin, values);
    return values;
  }

  void ReadFromDevice(const Block& block) {
    const TensorSources& sources = tensors_[block.tensor];
    for (size_t part = 0; part < sources.recordings.size(); ++part) {
      const Source& source = sources.recordings[part];
      const size_t count = IsOnDevice(source) ? ElementsOf(source, block) : 0;
      if (count == 0) continue;
      const DType dtype = source.tensor->info->dtype;
      const size_t size = DTypeSize(dtype);
      std::vector<std::byte> bytes(count * size);
      device_.Read(source.tensor->memory + block.begin * size, bytes);
      std::vector<float> values(count);
      LoadFloats(dtype, bytes.data(), source.grad_scale, values);
      Add(values, block.tensor * columns_ + part);
    }
  }

  void TabulateHere(const Block& block) {
    const TensorSources& sources = tensors_[block.tensor];
    if (std::ranges::any_of(sources.recordings, IsOnDevice)) {
      DLSIM_CHECK(std::ranges::none_of(sources.recordings, [](const Source& source) {
        return source.tensor != nullptr && source.tensor->device < 0;
      }));
      return;
    }
    BlockLoader loader(options_.accumulation);
    loader.Read(sources, block);
    for (size_t column = 0; column < columns_; ++column) {
      Add(ValuesOf(loader, block, column), block.tensor * columns_ + column);
    }
  }

  void Add(std::span<const float> values, size_t table) {
    static thread_local Tabulator tabulator;
    static thread_local std::vector<float> scaled;
    if (mantissa_ != 1.0f) {
      scaled.assign(values.begin(), values.end());
      for (float& value : scaled) value *= mantissa_;
      values = scaled;
    }
    tabulator.Add(values);
    TensorTable found = tabulator.Take();
    const std::lock_guard lock(mutex_);
    tables_[table].Add(std::move(found));
  }

  ComputeDevice& device_;
  const std::vector<TensorSources>& tensors_;
  size_t parts_, columns_;  // parts, and the sum if it is wanted
  float mantissa_;
  const StepOptions& options_;
  const OnValues& on_values_;
  std::mutex mutex_;                 // of the tables, where threads add to them
  std::vector<TensorTable> tables_;  // [tensor * columns_ + column]
};

}  // namespace

DeviceTables TabulateOn(ComputeDevice& device, const std::vector<TensorSources>& tensors,
                        size_t parts, bool wants_sums, float mantissa, const StepOptions& options,
                        const OnValues& on_values) {
  return DeviceTabulator(device, tensors, parts, wants_sums, mantissa, options, on_values).Run();
}

}  // namespace dlsim
