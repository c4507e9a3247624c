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

// Whether values that have no cells are counted, or were so before.
enum class Others { kCount, kSkip };

__device__ uint32_t WarpSum(uint32_t value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// A function of its own, as it is rarely called.
__device__ __attribute__((noinline)) void AddAside(uint32_t bits, uint32_t table, uint32_t count) {
  AddToTable(bits, Arguments().edges, Arguments().tables, table, count);
}

// What one thread does with its values.
class WindowThread {
 public:
  __device__ WindowThread()
      : lane_base_(SharedBase() + threadIdx.x % 32 * 4),
        queue_(lane_base_ + 4 * WindowLayout::QueueOf(threadIdx.x / 32)),
        queue_end_(queue_) {}

  // All threads of a warp call this with 4 values each, of which those in `valid` count.
  template <Change kChange>
  __device__ void Add(const FourBits& four, uint32_t valid, const WindowTarget& target,
                      Others others) {
    uint32_t parts[4];
    for (uint32_t i = 0; i < 4; ++i) {
      parts[i] =
          LoadShared<WindowLayout::kParts>(lane_base_ + (four.bits[i] >> 9 & 0x7F * kRowBytes));
    }
    for (uint32_t i = 0; i < 4; ++i) {
      AddOne<kChange>(four.bits[i], parts[i], (valid >> i & 1) != 0, target.window);
    }
    if (__any_sync(~0u, HasManyQueued())) Drain<kChange>(kFewestAtOnce, target, others);
  }

  // Counts the values that wait, as long as at least `fewest` lanes have some or one has many.
  template <Change kChange>
  __device__ void Drain(int fewest, const WindowTarget& target, Others others) {
    while (__popc(__ballot_sync(~0u, queue_end_ != queue_)) >= fewest ||
           __any_sync(~0u, HasManyQueued())) {
      if (queue_end_ == queue_) continue;
      queue_end_ -= kRowBytes;
      AddRare<kChange>(LoadShared<0>(queue_end_), target, others);
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
    AddRange(range_, Arguments().tables.heads[target.table]);
    range_ = {};
  }

  __device__ uint32_t TakeOthers() {
    const uint32_t taken = others_;
    others_ = 0;
    return taken;
  }

 private:
  static constexpr uint32_t kRowBytes = WindowLayout::kRow * 4;
  static constexpr int kFewestAtOnce = 20;

  // Whether there may be no room for 4 more.
  __device__ bool HasManyQueued() const {
    return queue_end_ > queue_ + (WindowLayout::kQueue * 4 - 4 * kRowBytes);
  }

  // Without branches: what has no cell of a slot is added to cells that nobody reads.
  template <Change kChange>
  __device__ void AddOne(uint32_t bits, uint32_t part, bool is_valid, const Window& window) {
    const uint32_t packed = bits * 512 + part;  // the distance, and 9 bits for the slot
    const uint32_t relative = bits - window.low;
    const bool has_slot = ((packed & WindowPlan::kNoSlot) | (relative & Window::kOutside)) == 0;
    const uint32_t cell = SlotCell(relative, packed & 3);
    const uint32_t trash = lane_base_ + 4 * WindowLayout::kTrash;
    ChangeCell<kChange>(has_slot && is_valid ? cell : trash, static_cast<int32_t>(packed) >> 9);
    StoreShared(queue_end_, bits);
    if (!has_slot && is_valid) queue_end_ += kRowBytes;
  }

  __device__ uint32_t SlotCell(uint32_t bits_less_low, uint32_t slot) const {
    return (bits_less_low >> 23) * kRowBytes + (slot * (4 * WindowLayout::kSlot) + lane_base_);
  }

  template <Change kChange>
  __device__ void AddRare(uint32_t bits, const WindowTarget& target, Others others) {
    if (target.window.Has(bits)) {
      const uint32_t mantissa = bits & codec::kMantissaMask;
      const uint32_t rank = RankOf(Words() + WindowLayout::kPhases, mantissa);
      const uint32_t code = Words()[WindowLayout::kCodes + rank];
      if (code < WindowPlan::kNoCell) {
        const uint32_t relative = bits - target.window.low;
        const uint32_t shared_cell =
            SharedBase() + 4 * WindowLayout::SharedCell(relative, code - WindowPlan::kFirstShared);
        const uint32_t centre = Words()[WindowLayout::kCentres + rank];
        return ChangeCell<kChange>(
            code < WindowPlan::kSlots ? SlotCell(relative, code) : shared_cell,
            static_cast<int32_t>(mantissa - centre));
      }
    }
    ++others_;
    if (others == Others::kCount && HasBin(bits, range_)) {
      AddAside(bits, target.table, 1);
    }
  }

  uint32_t lane_base_;  // addresses of shared memory, here and below
  uint32_t queue_;      // of this lane; its entries are a row apart
  uint32_t queue_end_;
  uint32_t others_ = 0;  // values without cells
  int32_t positive_ = 0;
  uint32_t negative_ = codec::kSignBit;
  ValueRange range_;
};

// What a block does with the pieces of one tensor after the other.
class WindowBlock {
 public:
  __device__ void BeginTensor(uint32_t table) {
    target_.table = table;
    target_.window = {};
    level_ = 0;
  }

  __device__ void EndTensor() {
    EmptyAll();
    thread_.EndTensor(target_);
  }

  __device__ void CountPiece(const Piece& piece) {
    const AnyReader reader(piece);
    PlaceWindow(reader);
    uint32_t tried = 0;  // values up to here were counted if they have no cells
    for (uint32_t first = 0; first < piece.count;) {
      const uint32_t most = first < tried ? tried : piece.count;
      const uint32_t size = RangeSize(level_);
      const uint32_t end = most - first < size ? most : first + size;
      const Others others = first < tried ? Others::kSkip : Others::kCount;
      const bool is_counted = CountRange(piece, first, end, others);
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
    uint32_t* largest = Words() + WindowLayout::kSums + 2;
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
  __device__ bool CountRange(const Piece& piece, uint32_t first, uint32_t end, Others others) {
    AddRange(piece, first, end, others);
    __syncthreads();
    const uint32_t gained = share_.Scan(level_ == 0 ? kWaiting : 1) + thread_.TakeOthers();
    const uint32_t of_warp = WarpSum(gained);
    uint32_t* sum = Words() + WindowLayout::kSums + turn_;
    if (threadIdx.x % 32 == 0) atomicAdd(sum, of_warp);
    __syncthreads();
    const bool is_counted = *sum == end - first;
    if (is_counted) {
      share_.Empty(target_);
    } else {
      PassParts<Change::kRemove>(piece, first, end, Others::kSkip);
      thread_.Drain<Change::kRemove>(1, target_, Others::kSkip);
      thread_.TakeOthers();
    }
    __syncthreads();
    if (threadIdx.x == 0) *sum = 0;  // the next range has another one
    turn_ ^= 1;
    return is_counted;
  }

  __device__ void AddRange(const Piece& piece, uint32_t first, uint32_t end, Others others) {
    const uint32_t whole_first = (first + kStride - 1) / kStride * kStride;
    const uint32_t whole_end = end / kStride * kStride;
    if (whole_first < whole_end) {
      PassParts<Change::kAdd>(piece, first, whole_first, others);
      DispatchDType(piece.dtype, [&](auto dtype) {
        const FourReader<decltype(dtype)::value> reader(piece);
        if (reader.is_aligned()) {
          PassWhole(reader, whole_first, whole_end, others);
        } else {
          PassParts<Change::kAdd>(piece, whole_first, whole_end, others);
        }
      });
      PassParts<Change::kAdd>(piece, whole_end, end, others);
    } else {
      PassParts<Change::kAdd>(piece, first, end, others);
    }
    thread_.Drain<Change::kAdd>(1, target_, others);
  }

  // Elements i of one thread have i / 4 modulo kWindowThreads in common, here and below.
  template <class Reader>
  __device__ void PassWhole(const Reader& reader, uint32_t first, uint32_t end, Others others) {
    uint32_t at = first + threadIdx.x * 4;
    auto elements = reader.Fetch(at);
#ifdef __CUDACC__
#pragma unroll 2  // copies no registers
#endif
    for (; at < end; at += kStride) {
      const auto current = elements;
      if (at + kStride < end) elements = reader.Fetch(at + kStride);
      const FourBits four = reader.Convert(current);
      thread_.TrackLargest(four);
      thread_.Add<Change::kAdd>(four, 0xF, target_, others);
    }
  }

  template <Change kChange>
  __device__ void PassParts(const Piece& piece, uint32_t first, uint32_t end, Others others) {
    const AnyReader reader(piece);
    for (uint32_t base = first / kStride * kStride; base < end; base += kStride) {
      const uint32_t at = base + threadIdx.x * 4;
      const FourBits four = reader.Read(at);
      if (kChange == Change::kAdd) thread_.TrackLargest(four);
      uint32_t valid = 0;
      for (uint32_t i = 0; i < 4; ++i) {
        valid |= (at + i >= first && at + i < end ? 1u : 0u) << i;
      }
      thread_.Add<kChange>(four, valid, target_, others);
    }
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
        AddAside(of_leader, target_.table, count);
      }
    } else if (has) {
      AddAside(bits, target_.table, 1);
    }
  }

  WindowThread thread_;
  CellShare share_;
  WindowTarget target_;
  uint32_t level_ = 0;
  uint32_t turn_ = 0;
};

__device__ void FillShared(const WindowArguments& arguments) {
  uint32_t* words = Words();
  for (uint32_t i = threadIdx.x; i < WindowLayout::kWords; i += kWindowThreads) words[i] = 0;
  __syncthreads();
  const WindowPlan& plan = *arguments.edges.plan;
  for (uint32_t i = threadIdx.x; i < WindowPlan::kCells * 32; i += kWindowThreads) {
    words[WindowLayout::kParts + i] = plan.cells[i / 32];
  }
  if (threadIdx.x < WindowPlan::kRanks) {
    words[WindowLayout::kPhases + threadIdx.x] = plan.phases[threadIdx.x];
    words[WindowLayout::kCentres + threadIdx.x] = plan.centres[threadIdx.x];
    words[WindowLayout::kCodes + threadIdx.x] = plan.codes[threadIdx.x];
  }
  if (threadIdx.x == 0) {
    *reinterpret_cast<WindowArguments*>(words + WindowLayout::kArguments) = arguments;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kWindowThreads, 1) CountWindowKernel(WindowArguments arguments) {
  FillShared(arguments);
  const uint64_t piece_count = arguments.piece_count;
  const uint32_t begin = static_cast<uint32_t>(blockIdx.x * piece_count / gridDim.x);
  const uint32_t end = static_cast<uint32_t>((blockIdx.x + 1) * piece_count / gridDim.x);
  WindowBlock block;
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
    if (piece.count > 0) block.CountPiece(piece);
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
  const WindowArguments arguments = {pieces, table_of_piece, piece_count, edges, tables};
  const uint32_t blocks = piece_count < edges.blocks ? piece_count : edges.blocks;
  Launch("counting of pieces", CountWindowKernel,
         {blocks, kWindowThreads, 4 * WindowLayout::kWords}, stream, arguments);
}

}  // namespace dlsim::gpu
