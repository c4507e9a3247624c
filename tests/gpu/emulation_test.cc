// SPDX-License-Identifier: Apache-2.0
// The emulated device runs threads of a block as a device may: in any order between barriers.
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/base/launch.h"
#include "gpu/count/shared_memory.cuh"
#include "tests/gpu/emulated_test.h"

namespace dlsim::gpu {
namespace {

using emulation::ThreadOrder;

constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr ThreadOrder kOrders[] = {ThreadOrder::kAscending, ThreadOrder::kDescending,
                                   ThreadOrder::kShuffled};

class EmulationTest : public EmulatedTest {};

// Runs a kernel of one block and returns what it wrote for each thread.
std::vector<uint32_t> RunBlock(void (*kernel)(uint32_t*), uint32_t threads, ThreadOrder order) {
  emulation::SetThreadOrder(order, 1);
  const DeviceBuffer<uint32_t> results = ToDevice(std::vector<uint32_t>(threads, 77));
  Launch("kernel", kernel, {1, threads, threads * sizeof(uint32_t)}, nullptr, results.data());
  return ToHost(results);
}

// Returns what is said of a kernel that cannot end.
std::string Complaint(void (*kernel)(uint32_t*), uint32_t threads) {
  std::string complaint;
  try {
    RunBlock(kernel, threads, ThreadOrder::kAscending);
  } catch (const std::logic_error& error) {
    complaint = error.what();
  }
  emulation::Reset();
  return complaint;
}

__global__ void Reverse(uint32_t* results) {
  uint32_t* const shared = DynamicShared<uint32_t>();
  shared[threadIdx.x] = threadIdx.x;
  __syncthreads();
  results[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TEST_F(EmulationTest, ThreadsMeetAtBarriers) {
  for (const ThreadOrder order : kOrders) {
    for (const uint32_t threads : {1u, 31u, 512u, 1024u}) {
      const std::vector<uint32_t> results = RunBlock(Reverse, threads, order);
      for (uint32_t i = 0; i < threads; ++i) ASSERT_EQ(results[i], threads - 1 - i);
    }
  }
}

__global__ void ReverseWithoutBarrier(uint32_t* results) {
  uint32_t* const shared = DynamicShared<uint32_t>();
  shared[threadIdx.x] = threadIdx.x;
  results[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

TEST_F(EmulationTest, OrdersShowThatABarrierIsMissing) {
  const auto ascending = RunBlock(ReverseWithoutBarrier, 64, ThreadOrder::kAscending);
  const auto descending = RunBlock(ReverseWithoutBarrier, 64, ThreadOrder::kDescending);
  const auto shuffled = RunBlock(ReverseWithoutBarrier, 64, ThreadOrder::kShuffled);
  EXPECT_EQ(ascending[0], 0xA5A5A5A5u);  // shared memory that no one has written
  EXPECT_EQ(descending[0], 63u);
  EXPECT_NE(shuffled, ascending);
  EXPECT_NE(shuffled, descending);
}

__global__ void SumsOfThreadsThatGoOn(uint32_t* results) {
  __shared__ uint32_t sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (threadIdx.x % 2 == 1) return;
  atomicAdd(&sum, 1u);
  const int count = __syncthreads_count(threadIdx.x < 10);
  results[threadIdx.x] = sum * 100 + static_cast<uint32_t>(count);
}

TEST_F(EmulationTest, BarriersDoNotWaitForThreadsThatHaveEnded) {
  for (const ThreadOrder order : kOrders) {
    const std::vector<uint32_t> results = RunBlock(SumsOfThreadsThatGoOn, 64, order);
    for (uint32_t i = 0; i < 64; ++i) ASSERT_EQ(results[i], i % 2 == 1 ? 77u : 3205u);
  }
}

__global__ void Votes(uint32_t* results) {
  const uint32_t lane = threadIdx.x % 32;
  const bool is_odd = lane % 2 == 1;
  uint32_t failures = 0;
  failures |= __ballot_sync(kAllLanes, is_odd) == 0xaaaaaaaau ? 0 : 1;
  failures |= __any_sync(kAllLanes, lane == 7) && !__any_sync(kAllLanes, lane == 32) ? 0 : 2;
  failures |= __all_sync(kAllLanes, lane < 32) && !__all_sync(kAllLanes, lane < 31) ? 0 : 4;
  failures |= __match_any_sync(kAllLanes, lane / 8) == 0xffu << (lane / 8 * 8) ? 0 : 8;
  failures |= __reduce_add_sync(kAllLanes, lane) == 496 ? 0 : 16;
  failures |= __reduce_min_sync(kAllLanes, lane + 5) == 5 ? 0 : 32;
  failures |= __reduce_max_sync(kAllLanes, -static_cast<int>(lane)) == 0 ? 0 : 64;
  failures |= __reduce_or_sync(kAllLanes, 1u << lane) == kAllLanes ? 0 : 128;
  // The halves of a warp part and meet again.
  const uint32_t half = is_odd ? 0xaaaaaaaau : 0x55555555u;
  const uint32_t least = is_odd ? __reduce_min_sync(half, lane) : __reduce_min_sync(half, lane + 2);
  failures |= least == (is_odd ? 1u : 2u) ? 0 : 256;
  __syncwarp();
  results[threadIdx.x] = failures;
}

TEST_F(EmulationTest, LanesVote) {
  for (const ThreadOrder order : kOrders) {
    EXPECT_EQ(RunBlock(Votes, 96, order), std::vector<uint32_t>(96, 0));
  }
}

__global__ void Shuffles(uint32_t* results) {
  const uint32_t lane = threadIdx.x % 32;
  const double value = lane + 0.5;
  uint32_t failures = 0;
  failures |= __shfl_sync(kAllLanes, value, 3) == 3.5 ? 0 : 1;
  failures |= __shfl_sync(kAllLanes, value, 3, 8) == lane / 8 * 8 + 3.5 ? 0 : 2;
  failures |= __shfl_up_sync(kAllLanes, value, 2) == (lane < 2 ? value : value - 2) ? 0 : 4;
  failures |= __shfl_down_sync(kAllLanes, value, 2) == (lane >= 30 ? value : value + 2) ? 0 : 8;
  failures |= __shfl_xor_sync(kAllLanes, lane, 16) == (lane ^ 16) ? 0 : 16;
  failures |= __shfl_down_sync(kAllLanes, lane, 4, 8) == (lane % 8 < 4 ? lane + 4 : lane) ? 0 : 32;
  uint64_t sum = lane;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  failures |= sum == 496 ? 0 : 64;
  results[threadIdx.x] = failures;
}

TEST_F(EmulationTest, LanesShuffle) {
  for (const ThreadOrder order : kOrders) {
    EXPECT_EQ(RunBlock(Shuffles, 64, order), std::vector<uint32_t>(64, 0));
  }
}

__global__ void Atomics(uint32_t* results) {
  atomicAdd(&results[0], 2u);
  atomicMax(&results[1], threadIdx.x);
  atomicMin(&results[2], threadIdx.x);
  atomicOr(&results[3], 1u << (threadIdx.x % 32));
  uint32_t old = results[4];
  for (uint32_t seen = old + 1; seen != old;) {
    seen = old;
    old = atomicCAS(&results[4], seen, seen + 3);
  }
}

TEST_F(EmulationTest, AtomicsReadAndWriteAtOnce) {
  for (const ThreadOrder order : kOrders) {
    const std::vector<uint32_t> results = RunBlock(Atomics, 256, order);
    EXPECT_EQ(results[0], 77u + 512);
    EXPECT_EQ(results[1], 255u);
    EXPECT_EQ(results[2], 0u);
    EXPECT_EQ(results[3], kAllLanes);
    EXPECT_EQ(results[4], 77u + 3 * 256);
  }
}

__global__ void ShuffleAfterSomeLanesEnded(uint32_t* results) {
  if (threadIdx.x == 5) return;
  results[threadIdx.x] = __shfl_sync(kAllLanes, threadIdx.x, 0);
}
__global__ void ShuffleOfADivergedWarp(uint32_t* results) {
  if (threadIdx.x < 16) __syncthreads();
  results[threadIdx.x] = __shfl_sync(kAllLanes, threadIdx.x, 0);
  if (threadIdx.x >= 16) __syncthreads();
}
__global__ void VoteOfADivergedWarp(uint32_t* results) {
  results[threadIdx.x] =
      threadIdx.x % 2 == 0 ? __ballot_sync(kAllLanes, 1) : __shfl_sync(kAllLanes, threadIdx.x, 0);
}
__global__ void LaneOutsideItsMask(uint32_t* results) {
  results[threadIdx.x] = __ballot_sync(0xffffu, 1);
}
__global__ void MisalignedVector(uint32_t* results) {
  __stcs(reinterpret_cast<uint4*>(results + 1), uint4{1, 2, 3, 4});
}

TEST_F(EmulationTest, SaysWhyAKernelCannotGoOn) {
  const std::string complaint = Complaint(ShuffleAfterSomeLanesEnded, 64);
  EXPECT_EQ(complaint.find("launch 1 of a kernel with parameters "), 0u) << complaint;
  const std::string end =
      ", <<<1, 64>>>, block 0: thread 0 is at __shfl_sync with mask 0xffffffff, but thread 5 has "
      "ended";
  EXPECT_EQ(complaint.find(end), complaint.size() - end.size()) << complaint;
  EXPECT_NE(Complaint(ShuffleOfADivergedWarp, 32).find("but thread 0 is at __syncthreads"),
            std::string::npos);
  EXPECT_NE(Complaint(VoteOfADivergedWarp, 32).find("but thread 1 is at __shfl_sync"),
            std::string::npos);
  EXPECT_NE(Complaint(Votes, 33).find("but there is no thread 33"), std::string::npos);
  EXPECT_NE(Complaint(LaneOutsideItsMask, 32).find("thread 16 calls __ballot_sync with mask"),
            std::string::npos);
  EXPECT_NE(Complaint(MisalignedVector, 1).find("misaligned load or store of 16 bytes"),
            std::string::npos);
  // The next kernel runs as if nothing had been.
  EXPECT_EQ(RunBlock(Votes, 32, ThreadOrder::kAscending), std::vector<uint32_t>(32, 0));
}

__global__ void BlockNumbers(uint32_t* results, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) results[i] = i + 1000 * gridDim.x;
}

TEST_F(EmulationTest, BlocksOfAGridKnowTheirNumbers) {
  const DeviceBuffer<uint32_t> results(100);
  Launch("BlockNumbers", BlockNumbers, {4, 32}, nullptr, results.data(), 100u);
  std::vector<uint32_t> expected(100);
  std::iota(expected.begin(), expected.end(), 4000u);
  EXPECT_EQ(ToHost(results), expected);
}

// Whether the address sanitizer watches.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsWatched = true;
#elif defined(__has_feature)
constexpr bool kIsWatched = __has_feature(address_sanitizer);
#else
constexpr bool kIsWatched = false;
#endif

__global__ void WritePastTheEnd(uint32_t* results) { results[threadIdx.x + 1] = 1; }
__global__ void WritePastSharedMemory(uint32_t* results) {
  DynamicShared<uint32_t>()[threadIdx.x + blockDim.x] = results[threadIdx.x];
}

TEST_F(EmulationTest, TheAddressSanitizerSeesWhatKernelsAndTheHostMustNotTouch) {
  if (!kIsWatched) GTEST_SKIP() << "not built with the address sanitizer";
  const auto run = [](void (*kernel)(uint32_t*)) { RunBlock(kernel, 64, ThreadOrder::kAscending); };
  EXPECT_DEATH(run(WritePastTheEnd), "heap-buffer-overflow");
  EXPECT_DEATH(run(WritePastSharedMemory), "heap-buffer-overflow");
  const DeviceBuffer<uint32_t> buffer = ToDevice(std::vector<uint32_t>(4, 1));
  EXPECT_DEATH(buffer.data()[0] = 2, "use-after-poison");
}

}  // namespace
}  // namespace dlsim::gpu
