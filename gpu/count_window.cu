// SPDX-License-Identifier: Apache-2.0
// Counts values between edges that repeat from binade to binade. A block counts a range of values
// into cells in shared memory, which are so small that values which are too much alike overflow
// them. Then the counts add up to less than the number of values, for every overflow loses 128 of a
// count and carries less into it; the range is removed from the cells, modulo 2^32 as it was added,
// and counted again in smaller ranges.
#include "count_kernels.h"
#include "launch.h"
#include "window_cells.cuh"
#include "window_reader.cuh"

namespace dlsim::gpu {
namespace {

constexpr uint32_t kStride = 4 * kWindowThreads;
// Values that are counted before cells are looked at, by level. The last is safe for the cells of
// slots: each lane's number of cells gets at most 96 of 3072 values.
__device__ inline uint32_t RangeSize(uint32_t level) {
  return level == 0 ? 32768 : level == 1 ? 8192 : 3072;
}
constexpr uint32_t kLastLevel = 2;
// Cells with fewer values than this wait, in the first level.
constexpr uint32_t kWaiting = 40;

struct WindowArguments {
  const Piece* pieces = nullptr;
  const uint32_t* table_of_piece = nullptr;
  uint32_t piece_count = 0;
  const WindowPlan* plan = nullptr;
  const uint32_t* bins = nullptr;
  DeviceEdges edges;
  CountTables tables;
};

// Whether values that have no cells are counted, or were so before.
enum class Others { kCount, kSkip };

__device__ uint32_t WarpSum(uint32_t value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// What one thread does with its values.
class WindowThread {
 public:
  __device__ WindowThread(uint32_t* words, const WindowArguments& arguments)
      : words_(words),
        arguments_(arguments),
        lane_(threadIdx.x % 32),
        queue_(words + WindowLayout::QueueOf(threadIdx.x / 32) + threadIdx.x % 32) {}

  // All threads of a warp call this with 4 values each, of which those in `valid` count.
  template <Change kChange>
  __device__ void Add(const FourBits& four, uint32_t valid, const WindowTarget& target,
                      Others others) {
    for (uint32_t i = 0; i < 4; ++i) {
      if ((valid >> i & 1) != 0) AddOne<kChange>(four.bits[i], target.window);
    }
    if (__any_sync(~0u, queued_ > kMostQueued - 4)) Drain<kChange>(kFewestAtOnce, target, others);
  }

  // Counts the values that wait, as long as at least `fewest` lanes have some or one has many.
  template <Change kChange>
  __device__ void Drain(int fewest, const WindowTarget& target, Others others) {
    while (__popc(__ballot_sync(~0u, queued_ > 0)) >= fewest ||
           __any_sync(~0u, queued_ > kMostQueued - 4)) {
      if (queued_ > 0) AddRare<kChange>(queue_[--queued_ * WindowLayout::kRow], target, others);
    }
  }

  __device__ void TrackLargest(const FourBits& four) {
    for (const uint32_t bits : four.bits) {
      const int32_t positive = static_cast<int32_t>(bits);
      positive_ = positive > positive_ ? positive : positive_;
      negative_ = bits > negative_ ? bits : negative_;
    }
  }

  // Ends a piece; `reader` reads it again if there were values that are not finite.
  template <class Reader>
  __device__ void EndPiece(const Reader& reader, uint32_t count) {
    if (positive_ >= static_cast<int32_t>(codec::kInfinityBits) ||
        negative_ >= (codec::kSignBit | codec::kInfinityBits)) {
      for (uint32_t i = threadIdx.x * 4; i < count; i += kStride) {
        for (const uint32_t bits : reader.Read(i).bits) {
          if ((bits & ~codec::kSignBit) < codec::kInfinityBits) UpdateLargest(bits, range_);
        }
      }
    } else {
      UpdateLargest(static_cast<uint32_t>(positive_), range_);
      UpdateLargest(negative_, range_);
    }
    positive_ = 0;
    negative_ = codec::kSignBit;
  }

  __device__ void EndTensor(const WindowTarget& target) {
    AddRange(range_, target.tables.heads[target.table]);
    range_ = {};
  }

  __device__ uint32_t TakeOthers() {
    const uint32_t taken = others_;
    others_ = 0;
    return taken;
  }

 private:
  static constexpr uint32_t kMostQueued = WindowLayout::kQueue / WindowLayout::kRow;
  static constexpr int kFewestAtOnce = 20;

  template <Change kChange>
  __device__ void AddOne(uint32_t bits, const Window& window) {
    const uint32_t part = words_[WindowLayout::kParts + (bits >> 11 & 0xFE0) + lane_];
    const uint32_t packed = (bits << 9) + part;  // the distance, and 9 bits for the slot
    if (window.Has(bits) && (packed & WindowPlan::kNoSlot) == 0) {
      const uint32_t row = (bits - window.low) >> 18 & 0x3FE0;
      ChangeCell<kChange>(words_, (packed & 3) * WindowLayout::kSlot + row + lane_,
                          static_cast<int32_t>(packed) >> 9);
    } else {
      queue_[queued_++ * WindowLayout::kRow] = bits;
    }
  }

  template <Change kChange>
  __device__ void AddRare(uint32_t bits, const WindowTarget& target, Others others) {
    if (target.window.Has(bits)) {
      const uint32_t mantissa = bits & codec::kMantissaMask;
      const uint32_t rank = RankOf(words_ + WindowLayout::kPhases, mantissa);
      const uint32_t code = words_[WindowLayout::kCodes + rank];
      if (code < WindowPlan::kNoCell) {
        const uint32_t relative = bits - target.window.low;
        const uint32_t at =
            code < WindowPlan::kSlots
                ? code * WindowLayout::kSlot + (relative >> 18 & 0x3FE0) + lane_
                : WindowLayout::SharedCell(relative, code - WindowPlan::kFirstShared);
        const uint32_t centre = words_[WindowLayout::kCentres + rank];
        return ChangeCell<kChange>(words_, at, static_cast<int32_t>(mantissa - centre));
      }
    }
    ++others_;
    if (others == Others::kCount && HasBin(bits, range_)) {
      AddToTable(bits, arguments_.edges, target.tables, target.table);
    }
  }

  uint32_t* words_;
  const WindowArguments& arguments_;
  uint32_t lane_;
  uint32_t* queue_;  // of this lane; its entries are a row apart
  uint32_t queued_ = 0;
  uint32_t others_ = 0;  // values without cells
  int32_t positive_ = 0;
  uint32_t negative_ = codec::kSignBit;
  ValueRange range_;
};

// What a block does with the pieces of one tensor after the other.
class WindowBlock {
 public:
  __device__ WindowBlock(uint32_t* words, const WindowArguments& arguments)
      : words_(words),
        arguments_(arguments),
        thread_(words, arguments),
        share_(words, arguments.plan->ranks_of_codes) {
    target_.bins = arguments.bins;
    target_.tables = arguments.tables;
    target_.bin_count = arguments.edges.bin_count;
  }

  __device__ void BeginTensor(uint32_t table) {
    target_.table = table;
    target_.window = {};
    level_ = 0;
  }

  __device__ void EndTensor() {
    EmptyAll();
    thread_.EndTensor(target_);
  }

  template <DType kDType>
  __device__ void CountPiece(const Piece& piece) {
    const FourReader<kDType> reader(piece);
    PlaceWindow(reader);
    uint32_t tried = 0;  // values up to here were counted if they have no cells
    for (uint32_t first = 0; first < piece.count;) {
      const uint32_t most = first < tried ? tried : piece.count;
      const uint32_t size = RangeSize(level_);
      const uint32_t end = most - first < size ? most : first + size;
      const Others others = first < tried ? Others::kSkip : Others::kCount;
      const bool is_counted = CountRange(reader, first, end, others);
      tried = end > tried ? end : tried;
      if (!is_counted && level_ < kLastLevel) {
        EmptyAll();
        ++level_;
        continue;
      }
      if (!is_counted) CountInTable(reader, first, end);
      first = end;
    }
    thread_.EndPiece(reader, piece.count);
  }

 private:
  // Chooses the window by the first values.
  template <class Reader>
  __device__ void PlaceWindow(const Reader& reader) {
    uint32_t* largest = words_ + WindowLayout::kSums + 2;
    if (threadIdx.x == 0) *largest = 0;
    __syncthreads();
    uint32_t exponent = 0;
    for (const uint32_t bits : reader.Read(threadIdx.x * 4).bits) {
      const uint32_t of_bits = bits >> 23 & 0xFF;
      if (of_bits < 255 && of_bits > exponent) exponent = of_bits;
    }
    for (int step = 16; step > 0; step /= 2) {
      const uint32_t other = __shfl_xor_sync(~0u, exponent, step);
      exponent = other > exponent ? other : exponent;
    }
    if (threadIdx.x % 32 == 0) atomicMax(largest, exponent);
    __syncthreads();
    const Window window = Window::Below(*largest);
    constexpr uint32_t kMostAbove = 16u << 23;
    if (window.low > target_.window.low || window.low + kMostAbove < target_.window.low) {
      EmptyAll();
      target_.window = window;
    }
  }

  __device__ void EmptyAll() {
    share_.Scan(1);
    share_.Empty(target_);
    __syncthreads();
  }

  // Counts the values from `first` to `end`, but for those without cells if they are to be skipped.
  // Returns whether no cell overflowed; otherwise the cells are as they were.
  template <class Reader>
  __device__ bool CountRange(const Reader& reader, uint32_t first, uint32_t end, Others others) {
    Pass<Change::kAdd>(reader, first, end, others);
    __syncthreads();
    const uint32_t gained = share_.Scan(level_ == 0 ? kWaiting : 1) + thread_.TakeOthers();
    const uint32_t of_warp = WarpSum(gained);
    uint32_t* sum = words_ + WindowLayout::kSums + turn_;
    if (threadIdx.x % 32 == 0) atomicAdd(sum, of_warp);
    __syncthreads();
    const bool is_counted = *sum == end - first;
    if (is_counted) {
      share_.Empty(target_);
    } else {
      Pass<Change::kRemove>(reader, first, end, Others::kSkip);
      thread_.TakeOthers();
    }
    __syncthreads();
    if (threadIdx.x == 0) *sum = 0;  // the next range has another one
    turn_ ^= 1;
    return is_counted;
  }

  // Elements i of one thread have i / 4 modulo kWindowThreads in common.
  template <Change kChange, class Reader>
  __device__ void Pass(const Reader& reader, uint32_t first, uint32_t end, Others others) {
    uint32_t base = first / kStride * kStride;
    FourBits four = reader.Read(base + threadIdx.x * 4);
    for (; base < end; base += kStride) {
      const uint32_t at = base + threadIdx.x * 4;
      const FourBits next = reader.Read(at + kStride);
      if (kChange == Change::kAdd) thread_.TrackLargest(four);
      if (base >= first && base + kStride <= end) {
        thread_.Add<kChange>(four, 0xF, target_, others);
      } else {
        uint32_t valid = 0;
        for (uint32_t i = 0; i < 4; ++i) {
          valid |= (at + i >= first && at + i < end ? 1u : 0u) << i;
        }
        thread_.Add<kChange>(four, valid, target_, others);
      }
      four = next;
    }
    thread_.Drain<kChange>(1, target_, others);
  }

  // Adds the values in the window to the table; the others were counted before.
  template <class Reader>
  __device__ void CountInTable(const Reader& reader, uint32_t first, uint32_t end) {
    for (uint32_t base = first / 4 * 4; base < end; base += kStride) {
      const uint32_t at = base + threadIdx.x * 4;
      const FourBits four = reader.Read(at);
      for (uint32_t i = 0; i < 4; ++i) {
        const bool has = at + i >= first && at + i < end && target_.window.Has(four.bits[i]);
        AddAlike(four.bits[i], has);
      }
    }
  }

  // Mostly, the values of a warp are all the same when this is called.
  __device__ void AddAlike(uint32_t bits, bool has) {
    const uint32_t mask = __ballot_sync(~0u, has);
    if (mask == 0) return;
    const int leader = __ffs(static_cast<int>(mask)) - 1;
    const uint32_t of_leader = __shfl_sync(~0u, bits, leader);
    if (!__any_sync(~0u, has && bits != of_leader)) {
      const uint32_t count = static_cast<uint32_t>(__popc(mask));
      if (threadIdx.x % 32 == 0) {
        AddToTable(of_leader, arguments_.edges, target_.tables, target_.table, count);
      }
    } else if (has) {
      AddToTable(bits, arguments_.edges, target_.tables, target_.table, 1);
    }
  }

  uint32_t* words_;
  const WindowArguments& arguments_;
  WindowThread thread_;
  CellShare share_;
  WindowTarget target_;
  uint32_t level_ = 0;
  uint32_t turn_ = 0;
};

__device__ void FillShared(uint32_t* words, const WindowPlan& plan) {
  for (uint32_t i = threadIdx.x; i < WindowLayout::kWords; i += kWindowThreads) words[i] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < WindowPlan::kCells * 32; i += kWindowThreads) {
    words[WindowLayout::kParts + i] = plan.cells[i / 32];
  }
  if (threadIdx.x < WindowPlan::kRanks) {
    words[WindowLayout::kPhases + threadIdx.x] = plan.phases[threadIdx.x];
    words[WindowLayout::kCentres + threadIdx.x] = plan.centres[threadIdx.x];
    words[WindowLayout::kCodes + threadIdx.x] = plan.codes[threadIdx.x];
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kWindowThreads, 1) CountWindowKernel(WindowArguments arguments) {
  uint32_t* words = DynamicShared<uint32_t>();
  FillShared(words, *arguments.plan);
  const auto share_of = [&](uint64_t block) {
    return static_cast<uint32_t>(block * arguments.piece_count / gridDim.x);
  };
  const uint32_t begin = share_of(blockIdx.x), end = share_of(blockIdx.x + 1);
  WindowBlock block(words, arguments);
  uint32_t table = 0;
  for (uint32_t p = begin; p < end; ++p) {
    const Piece piece = arguments.pieces[p];
    const uint32_t of_piece =
        arguments.table_of_piece == nullptr ? piece.tensor : arguments.table_of_piece[p];
    if (p == begin || of_piece != table) {
      if (p != begin) block.EndTensor();
      block.BeginTensor(of_piece);
      table = of_piece;
    }
    if (piece.count == 0) continue;
    DispatchDType(piece.dtype,
                  [&](auto dtype) { block.CountPiece<decltype(dtype)::value>(piece); });
  }
  if (begin < end) block.EndTensor();
}

}  // namespace

bool WindowFits() {
  int device = 0, bytes = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
            "cudaDeviceGetAttribute");
  if (static_cast<size_t>(bytes) < 4 * WindowLayout::kWords) return false;
  CheckCuda(cudaFuncSetAttribute(CountWindowKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(4 * WindowLayout::kWords)),
            "cudaFuncSetAttribute");
  return true;
}

void LaunchCountWindow(const Piece* pieces, const uint32_t* table_of_piece, uint32_t piece_count,
                       const DeviceEdges& edges, const CountTables& tables, Stream stream) {
  const WindowArguments arguments = {pieces,          table_of_piece, piece_count, edges.plan,
                                     edges.plan_bins, edges,          tables};
  const uint32_t blocks = piece_count < edges.blocks ? piece_count : edges.blocks;
  Launch("counting of pieces", CountWindowKernel,
         {blocks, kWindowThreads, 4 * WindowLayout::kWords}, stream, arguments);
}

}  // namespace dlsim::gpu
