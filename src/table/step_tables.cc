// SPDX-License-Identifier: Apache-2.0
// Tabulates the tensors of a recorded step.
#include "dlsim/step_tables.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <deque>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>

#include "dlsim/measure.h"
#include "src/base/check.h"
#include "src/base/parallel.h"
#include "src/device/compute_device.h"
#include "src/measure/step_blocks.h"
#include "src/table/tabulate.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

// A tensor as outer x channels x inner elements in memory order. The channels of a parameter are
// its rows (the first axis); those of an activation are its features: the second axis of four or
// more, else the last, unless the recording names another. A vector is one channel: of a bias some
// elements may be but rounding noise, as those of keys in attention, and a sample of a tensor is a
// vector.
struct ChannelLayout {
  uint64_t channels = 1, inner = 1;
};

ChannelLayout LayoutAlong(const std::vector<uint64_t>& shape, size_t axis) {
  if (axis >= shape.size() || shape.size() < 2) return {};
  return {shape[axis], std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                                       shape.end(), uint64_t{1}, std::multiplies<>())};
}

// Returns how the channels of a gradient lie; one channel where that is not known.
ChannelLayout LayoutOf(const TensorSources& sources, const TraceTensor& tensor) {
  constexpr size_t kImage = 4;
  const std::vector<uint64_t>& shape = tensor.info->shape;
  if (IsForward(tensor.info->role)) return {};
  if (sources.features) {
    return *sources.features ? LayoutAlong(shape, **sources.features) : ChannelLayout();
  }
  if (tensor.info->role == Role::kGrad) return LayoutAlong(shape, 0);
  return LayoutAlong(shape, shape.size() >= kImage ? 1 : shape.size() - 1);
}

// The largest magnitude of each channel of a tensor in one part. Threads raise it at once.
class ChannelMaxima {
 public:
  ChannelMaxima(const ChannelLayout& layout)
      : layout_(layout), maxima_(layout.channels > 1 ? layout.channels : 0) {}

  bool empty() const { return maxima_.empty(); }

  // Adds the values from element `begin` of the tensor on.
  void Add(uint64_t begin, std::span<const float> values) {
    if (layout_.inner == 1) return AddFeatures(begin, values);
    for (size_t i = 0; i < values.size();) {
      const uint64_t run = (begin + i) / layout_.inner;
      const size_t end = std::min<uint64_t>(values.size(), (run + 1) * layout_.inner - begin);
      Raise(run % layout_.channels, LargestBits(values.subspan(i, end - i)));
      i = end;
    }
  }

  // Returns TensorTable::channels.
  std::vector<std::pair<uint32_t, uint64_t>> Count() const {
    constexpr int kQuarters = 21;
    std::map<uint32_t, uint64_t> counts;
    for (const std::atomic<uint32_t>& maximum : maxima_) {
      if (maximum != 0) ++counts[maximum >> kQuarters];
    }
    return {counts.begin(), counts.end()};
  }

 private:
  // Of rows that follow each other.
  void AddFeatures(uint64_t begin, std::span<const float> values) {
    static thread_local std::vector<uint32_t> maxima;
    maxima.assign(layout_.channels, 0);
    for (size_t i = 0; i < values.size();) {
      const uint64_t channel = (begin + i) % layout_.channels;
      const size_t count = std::min<uint64_t>(values.size() - i, layout_.channels - channel);
      RaiseMagnitudes(values.subspan(i, count), maxima.data() + channel);
      i += count;
    }
    for (uint64_t c = 0; c < layout_.channels; ++c) Raise(c, maxima[c]);
  }

  void Raise(uint64_t channel, uint32_t magnitude) {
    std::atomic<uint32_t>& maximum = maxima_[channel];
    uint32_t before = maximum.load(std::memory_order_relaxed);
    while (before < magnitude &&
           !maximum.compare_exchange_weak(before, magnitude, std::memory_order_relaxed)) {
    }
  }

  ChannelLayout layout_;
  std::vector<std::atomic<uint32_t>> maxima_;
};

// Consecutive blocks of one tensor that a thread tabulates in one go: taking a table costs as much
// as some thousands of values.
constexpr size_t kMostTaskElements = size_t{1} << 18, kFewestTaskElements = size_t{1} << 14;
constexpr size_t kTasksPerWave = 16;

std::vector<std::span<const Block>> CutIntoTasks(std::span<const Block> blocks) {
  size_t elements = 0;
  for (const Block& block : blocks) elements += block.count;
  const size_t enough =
      std::clamp(elements / kTasksPerWave, kFewestTaskElements, kMostTaskElements);
  std::vector<std::span<const Block>> tasks;
  while (!blocks.empty()) {
    size_t count = 0, of_task = 0;
    while (count < blocks.size() && of_task < enough) of_task += blocks[count++].count;
    tasks.push_back(blocks.first(count));
    blocks = blocks.subspan(count);
  }
  return tasks;
}

// How many elements are looked at in the time in which one is tabulated.
constexpr uint64_t kLooksPerValue = 4;

bool IsOnDevice(const Source& source) {
  return source.tensor != nullptr && source.tensor->device >= 0;
}

// Whether the host tabulates a tensor though there is a device: the sums of a table take as long to
// come from there as some thousands of values to get there. Tables of few values have these instead
// of sums; a part may be much shorter than the tensor.
bool IsForHost(const TensorSources& sources) {
  constexpr uint64_t kFewElements = 8192;
  static_assert(kFewElements >= TensorTable::kMostValues && kFewElements <= kBlockElements);
  return sources.elements <= kFewElements ||
         std::ranges::any_of(sources.recordings, [](const Source& source) {
           return source.tensor != nullptr && source.tensor->elements <= TensorTable::kMostValues;
         });
}

// Tabulates the tensors of one pass of a step. A device, if there is one, takes the large ones.
class PassTabulator {
 public:
  // `mantissas`: values are tabulated times each of them; channels are those of the values as they
  // are, if that is one of them. Tensors that lie on the device have neither channels nor sums.
  PassTabulator(std::vector<TensorSources> tensors, size_t parts, bool wants_sums,
                std::vector<float> mantissas, const StepOptions& options)
      : tensors_(std::move(tensors)),
        parts_(parts),
        mantissas_(std::move(mantissas)),
        options_(options),
        tables_(mantissas_.size(), PartTables(parts, std::vector<TensorTable>(tensors_.size()))),
        sums_(wants_sums ? tensors_.size() : 0),
        channels_(parts) {
    for (size_t part = 0; part < parts; ++part) {
      channels_[part].reserve(tensors_.size());
      for (const TensorSources& sources : tensors_) {
        const TraceTensor* const tensor = Recorded(sources, part);
        const bool has_channels =
            tensor != nullptr && tensor->device < 0 && mantissas_.front() == 1;
        channels_[part].emplace_back(has_channels ? LayoutOf(sources, *tensor) : ChannelLayout());
      }
    }
  }

  void Run() {
    if (options_.device != nullptr) FetchSmall();
    ForEachWave(tensors_, [&](std::span<const Block> wave) { Tabulate(wave); });
    for (size_t part = 0; part < parts_; ++part) {
      for (size_t t = 0; t < tensors_.size(); ++t) {
        if (channels_[part][t].empty()) continue;
        tables_.front()[part][t].channels = channels_[part][t].Count();
      }
    }
  }

  // Returns the tables of a mantissa, and those of the sums; once.
  PartTables Take(size_t mantissa) { return std::move(tables_[mantissa]); }
  std::vector<TensorTable> TakeSums() { return std::move(sums_); }

 private:
  // Copies from the device what the host tabulates.
  void FetchSmall() {
    for (TensorSources& sources : tensors_) {
      for (Source& source : sources.recordings) {
        if (!IsOnDevice(source)) continue;
        DLSIM_CHECK(sums_.empty() && parts_ == sources.recordings.size());
        if (!IsForHost(sources)) continue;
        TraceTensor& copy = fetched_.emplace_back(*source.tensor);
        std::vector<std::byte>& bytes =
            fetched_bytes_.emplace_back(copy.elements * DTypeSize(copy.info->dtype));
        options_.device->Read(copy.memory, bytes);
        copy.memory = bytes.data();
        copy.device = -1;
        source.tensor = &copy;
      }
    }
  }

  void Tabulate(std::span<const Block> wave) {
    const auto is_for_host = [&](const Block& block) {
      return options_.device == nullptr || IsForHost(tensors_[block.tensor]);
    };
    std::vector<std::span<const Block>> tasks;
    std::vector<const Block*> of_device;
    uint64_t elements = 0;
    while (!wave.empty()) {
      const auto end = std::ranges::find(wave, !is_for_host(wave.front()), is_for_host);
      const std::span<const Block> alike(wave.begin(), end);
      if (is_for_host(wave.front())) {
        std::ranges::move(CutIntoTasks(alike), std::back_inserter(tasks));
        for (const Block& block : alike) elements += block.count * parts_ * mantissas_.size();
      } else {
        for (const Block& block : alike) of_device.push_back(&block);
      }
      wave = wave.subspan(alike.size());
    }
    for (size_t m = 0; m < mantissas_.size() && !of_device.empty(); ++m) {
      TabulateOnDevice(of_device, m);
    }
    ParallelFor(
        tasks.size(), [&](size_t task) { TabulateHere(tasks[task]); }, elements * kLooksPerValue);
  }

  void TabulateOnDevice(std::span<const Block* const> blocks, size_t m) {
    std::vector<DeviceBlock> described;
    for (const Block* const block : blocks) described.push_back(Describe(*block, m));
    options_.device->Tabulate(described, mantissas_[m], [&](size_t table, TableSums& sums) {
      const size_t column = table / tensors_.size(), t = table % tensors_.size();
      (column < parts_ ? tables_[m][column][t] : sums_[t]).Add(TableOf(sums));
    });
  }

  // Describes the parts of a block, and their sum if it is wanted.
  DeviceBlock Describe(const Block& block, size_t m) {
    const TensorSources& sources = tensors_[block.tensor];
    const size_t columns = parts_ + (m == 0 && !sums_.empty() ? 1 : 0);
    DeviceBlock described;
    bool of_host = false;
    for (size_t column = 0; column < columns; ++column) {
      const bool is_recorded = column < parts_ && parts_ == sources.recordings.size();
      const Source source = is_recorded ? sources.recordings[column] : Source();
      DevicePiece& piece = described.pieces.emplace_back();
      piece.table = column * tensors_.size() + block.tensor;
      piece.count = static_cast<uint32_t>(is_recorded ? ElementsOf(source, block) : block.count);
      if (IsOnDevice(source)) {
        piece.dtype = source.tensor->info->dtype;
        piece.grad_scale = source.grad_scale;
        piece.on_device = source.tensor->memory + block.begin * DTypeSize(piece.dtype);
      }
      of_host |= piece.on_device == nullptr;
    }
    if (!of_host) return described;
    described.fill = [this, &block, m](std::span<const std::span<float>> to) {
      BlockLoader loader(options_.accumulation);
      loader.Read(tensors_[block.tensor], block);
      for (size_t column = 0; column < to.size(); ++column) {
        if (to[column].empty()) continue;
        const std::span<const float> values =
            column == parts_ ? loader.Sum() : loader.Values(column);
        std::ranges::copy(values, to[column].begin());
        if (column < parts_ && m == 0) AddChannels(block, column, values);
      }
    };
    return described;
  }

  // The tensor as a part has it; the sum of all has the shape of the first.
  const TraceTensor* Recorded(const TensorSources& sources, size_t part) const {
    return parts_ == sources.recordings.size() ? sources.recordings[part].tensor : sources.first;
  }

  void TabulateHere(std::span<const Block> blocks) {
    // Of each part at each mantissa, and of the sum. A failure leaves none behind.
    static thread_local std::vector<std::unique_ptr<Tabulator>> tabulators;
    while (tabulators.size() < parts_ * mantissas_.size() + 1) {
      tabulators.push_back(std::make_unique<Tabulator>());
    }
    BlockLoader loader(options_.accumulation);
    try {
      for (size_t b = 0; b < blocks.size(); ++b) {
        const Block& block = blocks[b];
        loader.Read(tensors_[block.tensor], block);
        AddBlock(block, loader, tabulators);
        if (b + 1 < blocks.size() && blocks[b + 1].tensor == block.tensor) continue;
        TakeTables(block.tensor, tabulators);
      }
    } catch (...) {
      tabulators.clear();
      throw;
    }
  }

  // Of few values the other tables follow from the first.
  bool IsOfFew(size_t t) const { return tensors_[t].elements <= TensorTable::kMostValues; }

  void AddBlock(const Block& block, BlockLoader& loader,
                std::span<const std::unique_ptr<Tabulator>> tabulators) {
    for (size_t part = 0; part < parts_; ++part) {
      const std::span<const float> values = loader.Values(part);
      for (size_t m = 0; m < (IsOfFew(block.tensor) ? 1 : mantissas_.size()); ++m) {
        AddScaled(values, mantissas_[m], *tabulators[m * parts_ + part]);
      }
      AddChannels(block, part, values);
    }
    if (!sums_.empty()) tabulators[parts_ * mantissas_.size()]->Add(loader.Sum());
  }

  void AddChannels(const Block& block, size_t part, std::span<const float> values) {
    ChannelMaxima& channels = channels_[part][block.tensor];
    if (!channels.empty()) channels.Add(block.begin, values);
  }

  void TakeTables(size_t t, std::span<const std::unique_ptr<Tabulator>> tabulators) {
    const std::lock_guard lock(mutexes_[t % mutexes_.size()]);
    for (size_t m = 0; m < mantissas_.size(); ++m) {
      for (size_t part = 0; part < parts_; ++part) {
        TensorTable& table = tables_[m][part][t];
        if (m > 0 && IsOfFew(t)) {
          table = *tables_[0][part][t].Times(mantissas_[m]);
        } else {
          table.Add(tabulators[m * parts_ + part]->Take());
        }
      }
    }
    if (!sums_.empty()) sums_[t].Add(tabulators[parts_ * mantissas_.size()]->Take());
  }

  // Adds the values times a mantissa, in float32.
  static void AddScaled(std::span<const float> values, float mantissa, Tabulator& tabulator) {
    if (mantissa == 1) return tabulator.Add(values);
    constexpr size_t kAtOnce = 8192;  // which the cache holds
    std::array<float, kAtOnce> scaled;
    for (size_t begin = 0; begin < values.size(); begin += kAtOnce) {
      const size_t count = std::min(kAtOnce, values.size() - begin);
      for (size_t i = 0; i < count; ++i) scaled[i] = values[begin + i] * mantissa;
      tabulator.Add(std::span(scaled).first(count));
    }
  }

  std::vector<TensorSources> tensors_;
  std::deque<TraceTensor> fetched_;                    // of the device's memory ...
  std::vector<std::vector<std::byte>> fetched_bytes_;  // ... and what they hold
  size_t parts_;
  std::vector<float> mantissas_;
  const StepOptions& options_;
  std::vector<PartTables> tables_;                    // by mantissa
  std::vector<TensorTable> sums_;                     // by tensor, if they are wanted
  std::vector<std::vector<ChannelMaxima>> channels_;  // by part and tensor
  std::array<std::mutex, 64> mutexes_;                // each of some tensors
};

// Forward tensors of micro-steps have no sum: all are tabulated, and added up where the gradients
// have one part.
void AddForward(std::vector<TensorSources> tensors, size_t recordings, StepOptions options,
                StepTables& tables) {
  if (tensors.empty()) return;
  options.accumulation = Accumulation::kQuantizeThenSum;
  const size_t count = tensors.size();
  PassTabulator tabulator(std::move(tensors), recordings, false, {1}, options);
  tabulator.Run();
  PartTables found = tabulator.Take(0);
  const size_t parts = tables.parts.size();
  for (size_t part = parts; part < found.size(); ++part) {
    for (size_t t = 0; t < count; ++t) found[0][t].Add(std::move(found[part][t]));
  }
  for (size_t part = 0; part < parts; ++part) {
    std::ranges::move(found[part], std::back_inserter(tables.parts[part]));
  }
}

TensorRef Describe(const TensorSources& sources) { return sources.first->info; }

}  // namespace

TensorTable StepTables::Sum(size_t gradient) const {
  if (!sums.empty()) return sums[gradient];
  TensorTable all = parts.front()[gradient];
  for (size_t part = 1; part < parts.size(); ++part) all.Add(parts[part][gradient]);
  return all;
}

double StepTables::SumOfSquares(size_t gradient) const {
  if (!sums.empty()) return sums[gradient].sum_of_squares;
  double squares = 0;
  for (const std::vector<TensorTable>& part : parts) squares += part[gradient].sum_of_squares;
  return squares;
}

std::optional<double> StepTables::SquaredNorm(size_t gradient) const {
  if (!HasSums()) return std::nullopt;
  const TensorTable& table = sums.empty() ? parts.front()[gradient] : sums[gradient];
  if (table.nan > 0) return std::numeric_limits<double>::quiet_NaN();
  return table.inf > 0 ? std::numeric_limits<double>::infinity() : table.sum_of_squares;
}

StepTables TabulateStep(const TraceStep& step, const StepOptions& options) {
  StepTables tables;
  tables.step = step.step;
  tables.micro_steps = PartNumbers(step, options.accumulation);
  if (!step.recordings.empty()) tables.metadata = step.recordings.front().metadata;
  for (const Recording* file : RecordedFiles(step)) {
    const std::string name = std::filesystem::path(file->place).filename().string();
    tables.files.push_back({name, file->file_bytes});
  }
  std::vector<TensorSources> gradients = CollectTensors(step, Pass::kBackward);
  std::vector<TensorSources> forward = CollectTensors(step, Pass::kForward);
  tables.tensors.reserve(gradients.size() + forward.size());
  std::ranges::transform(gradients, std::back_inserter(tables.tensors), Describe);
  std::ranges::transform(forward, std::back_inserter(tables.tensors), Describe);
  tables.gradients = gradients.size();
  std::vector<float> mantissas = {1};
  std::ranges::copy_if(options.mantissas, std::back_inserter(mantissas),
                       [](float mantissa) { return mantissa != 1; });
  const size_t parts = tables.micro_steps.size();
  PassTabulator tabulator(std::move(gradients), parts, parts > 1, mantissas, options);
  tabulator.Run();
  tables.parts = tabulator.Take(0);
  tables.sums = tabulator.TakeSums();
  for (size_t m = 1; m < mantissas.size(); ++m) {
    tables.by_mantissa[mantissas[m]] = tabulator.Take(m);
  }
  AddForward(std::move(forward), step.recordings.size(), options, tables);
  if (!options.scaled.empty()) tables.scaled = MeasureScaledStep(step, options.scaled);
  return tables;
}

PartTables TabulateAt(float mantissa, const PartTables& parts, const TraceStep& step,
                      const StepOptions& options) {
  std::vector<TensorSources> gradients = CollectTensors(step, Pass::kBackward);
  // Of few values nothing is read again.
  for (size_t t = 0; t < gradients.size(); ++t) {
    const bool few = std::ranges::all_of(
        parts, [&](const std::vector<TensorTable>& part) { return part[t].binades.empty(); });
    if (few) gradients[t].elements = 0;
  }
  PassTabulator tabulator(gradients, parts.size(), false, {mantissa}, options);
  tabulator.Run();
  PartTables products = tabulator.Take(0);
  for (size_t t = 0; t < gradients.size(); ++t) {
    for (size_t part = 0; part < parts.size() && gradients[t].elements == 0; ++part) {
      products[part][t] = *parts[part][t].Times(mantissa);
    }
  }
  return products;
}

std::vector<TensorRef> DescribeTensors(const TraceStep& step) {
  std::vector<TensorRef> tensors;
  const bool repeats = step.recordings.size() > 1;  // names of one recording are distinct
  for (const Pass pass : {Pass::kBackward, Pass::kForward}) {
    std::set<std::string_view> names;
    for (const Recording& recording : step.recordings) {
      for (const TraceTensor& tensor : recording.tensors) {
        const TensorInfo& info = *tensor.info;
        if (!IsOf(pass, info.role) || (repeats && !names.insert(info.name).second)) continue;
        tensors.push_back(tensor.info);
      }
    }
  }
  return tensors;
}

}  // namespace dlsim
