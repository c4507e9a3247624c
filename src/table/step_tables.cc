// SPDX-License-Identifier: Apache-2.0
// Tabulates the tensors of a recorded step.
#include "dlsim/step_tables.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>

#include "dlsim/measure.h"
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

// Tabulates the tensors of one pass of a step.
class PassTabulator {
 public:
  // `mantissas`: values are tabulated times each of them; channels are those of the values as they
  // are, if that is one of them.
  PassTabulator(const std::vector<TensorSources>& tensors, size_t parts, bool wants_sums,
                std::vector<float> mantissas, const StepOptions& options)
      : tensors_(tensors),
        parts_(parts),
        mantissas_(std::move(mantissas)),
        options_(options),
        tables_(mantissas_.size(), PartTables(parts, std::vector<TensorTable>(tensors.size()))),
        sums_(wants_sums ? tensors.size() : 0),
        channels_(parts) {
    for (size_t part = 0; part < parts; ++part) {
      channels_[part].reserve(tensors.size());
      for (const TensorSources& sources : tensors) {
        const TraceTensor* const tensor = Recorded(sources, part);
        const bool has_channels = tensor != nullptr && mantissas_.front() == 1;
        channels_[part].emplace_back(has_channels ? LayoutOf(sources, *tensor) : ChannelLayout());
      }
    }
  }

  void Run() {
    options_.device == nullptr ? RunOnHost() : RunOnDevice();
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
  void RunOnHost() {
    ForEachWave(tensors_,
                [&](std::span<const Block> wave) {
                  uint64_t elements = 0;
                  for (const Block& block : wave)
                    elements += block.count * parts_ * mantissas_.size();
                  const std::vector<std::span<const Block>> tasks = CutIntoTasks(wave);
                  ParallelFor(
                      tasks.size(), [&](size_t task) { Tabulate(tasks[task]); },
                      elements * kLooksPerValue);
                },
                {.memory_bytes = options_.memory_bytes});
  }

  void RunOnDevice() {
    const bool on_device = std::ranges::any_of(tensors_, [](const TensorSources& sources) {
      return std::ranges::any_of(sources.recordings, [](const Source& source) {
        return source.tensor != nullptr && source.tensor->device >= 0;
      });
    });
    for (size_t m = 0; m < mantissas_.size(); ++m) {
      DeviceTables found = TabulateOn(
          *options_.device, tensors_, parts_, !sums_.empty() && m == 0 && !on_device, mantissas_[m],
          options_, [&](size_t t, size_t part, uint64_t begin, std::span<const float> values) {
            ChannelMaxima& channels = channels_[part][t];
            if (m == 0 && !channels.empty()) channels.Add(begin, values);
          });
      tables_[m] = std::move(found.parts);
      if (m == 0 && !found.sums.empty()) sums_ = std::move(found.sums);
    }
  }

  // The tensor as a part has it; the sum of all has the shape of the first.
  const TraceTensor* Recorded(const TensorSources& sources, size_t part) const {
    return parts_ == sources.recordings.size() ? sources.recordings[part].tensor : sources.first;
  }

  void Tabulate(std::span<const Block> blocks) {
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
      ChannelMaxima& channels = channels_[part][block.tensor];
      if (!channels.empty()) channels.Add(block.begin, values);
    }
    if (!sums_.empty()) tabulators[parts_ * mantissas_.size()]->Add(loader.Sum());
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

  const std::vector<TensorSources>& tensors_;
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
void AddForward(const std::vector<TensorSources>& tensors, size_t recordings, StepOptions options,
                StepTables& tables) {
  if (tensors.empty()) return;
  options.accumulation = Accumulation::kQuantizeThenSum;
  PassTabulator tabulator(tensors, recordings, false, {1}, options);
  tabulator.Run();
  PartTables found = tabulator.Take(0);
  const size_t parts = tables.parts.size();
  for (size_t part = parts; part < found.size(); ++part) {
    for (size_t t = 0; t < tensors.size(); ++t) found[0][t].Add(std::move(found[part][t]));
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
  const std::vector<TensorSources> gradients = CollectTensors(step, Pass::kBackward);
  const std::vector<TensorSources> forward = CollectTensors(step, Pass::kForward);
  tables.tensors.reserve(gradients.size() + forward.size());
  std::ranges::transform(gradients, std::back_inserter(tables.tensors), Describe);
  std::ranges::transform(forward, std::back_inserter(tables.tensors), Describe);
  tables.gradients = gradients.size();
  std::vector<float> mantissas = {1};
  std::ranges::copy_if(options.mantissas, std::back_inserter(mantissas),
                       [](float mantissa) { return mantissa != 1; });
  const size_t parts = tables.micro_steps.size();
  PassTabulator tabulator(gradients, parts, parts > 1, mantissas, options);
  tabulator.Run();
  tables.parts = tabulator.Take(0);
  tables.sums = tabulator.TakeSums();
  for (size_t m = 1; m < mantissas.size(); ++m) {
    tables.by_mantissa[mantissas[m]] = tabulator.Take(m);
  }
  AddForward(forward, step.recordings.size(), options, tables);
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
  for (const Pass pass : {Pass::kBackward, Pass::kForward}) {
    std::ranges::transform(CollectTensors(step, pass), std::back_inserter(tensors), Describe);
  }
  return tensors;
}

}  // namespace dlsim
