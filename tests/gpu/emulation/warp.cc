// SPDX-License-Identifier: Apache-2.0
// Operations of warps, and what is said of threads that wait for ever.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <stdexcept>

#include "tests/gpu/emulation/block.h"

namespace dlsim::emulation {
namespace {

constexpr uint64_t kUndefined = 0xA5A5A5A5A5A5A5A5u;

const char* Name(WarpOperation operation) {
  constexpr const char* kNames[] = {"__syncwarp",        "__shfl_sync",       "__shfl_up_sync",
                                    "__shfl_down_sync",  "__shfl_xor_sync",   "__ballot_sync",
                                    "__any_sync",        "__all_sync",        "__match_any_sync",
                                    "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
                                    "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync",
                                    "__reduce_or_sync",  "__reduce_xor_sync"};
  return kNames[static_cast<size_t>(operation)];
}

std::string Hex(uint32_t x) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", static_cast<unsigned>(x));
  return text;
}

// Returns the lane from which a shuffle reads.
uint32_t SourceLane(const WarpRequest& request, uint32_t lane) {
  const uint32_t in_group = lane & (request.width - 1);
  const uint32_t group = lane - in_group;
  switch (request.operation) {
    case WarpOperation::kShuffleUp:
      return in_group < request.lane_operand ? lane : lane - request.lane_operand;
    case WarpOperation::kShuffleDown:
      return in_group + request.lane_operand >= request.width ? lane : lane + request.lane_operand;
    case WarpOperation::kShuffleXor: {
      const uint32_t source = lane ^ (request.lane_operand & 31);
      return source < group + request.width ? source : lane;
    }
    default:
      return group + (request.lane_operand & (request.width - 1));
  }
}

uint32_t Combine(WarpOperation operation, uint32_t a, uint32_t b) {
  const bool signed_less = static_cast<int32_t>(b) < static_cast<int32_t>(a);
  switch (operation) {
    case WarpOperation::kMin:
      return std::min(a, b);
    case WarpOperation::kMax:
      return std::max(a, b);
    case WarpOperation::kMinSigned:
      return signed_less ? b : a;
    case WarpOperation::kMaxSigned:
      return signed_less ? a : b;
    case WarpOperation::kAnd:
    case WarpOperation::kAll:
      return a & b;
    case WarpOperation::kOr:
    case WarpOperation::kAny:
    case WarpOperation::kBallot:
      return a | b;
    case WarpOperation::kXor:
      return a ^ b;
    default:
      return a + b;
  }
}

bool IsShuffle(WarpOperation operation) {
  return operation >= WarpOperation::kShuffle && operation <= WarpOperation::kShuffleXor;
}

// Lanes of `mask` and what they brought.
struct Lanes {
  uint32_t mask = 0;
  uint64_t operands[32] = {};
};

// Returns what a reduction or vote gives to each lane.
uint32_t Reduce(WarpOperation operation, const Lanes& lanes) {
  uint32_t result = 0;
  bool is_first = true;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((lanes.mask >> lane & 1) == 0) continue;
    uint32_t operand = static_cast<uint32_t>(lanes.operands[lane]);
    if (operation == WarpOperation::kBallot) operand <<= lane;
    result = is_first ? operand : Combine(operation, result, operand);
    is_first = false;
  }
  return result;
}

uint64_t ResultOf(const WarpRequest& request, uint32_t lane, const Lanes& lanes, uint32_t reduced) {
  if (IsShuffle(request.operation)) {
    const uint32_t source = SourceLane(request, lane);
    return (lanes.mask >> source & 1) != 0 ? lanes.operands[source] : kUndefined;
  }
  if (request.operation != WarpOperation::kMatchAny) return reduced;
  uint32_t equal = 0;
  for (uint32_t other = 0; other < 32; ++other) {
    const bool is_equal = lanes.operands[other] == lanes.operands[lane];
    if ((lanes.mask >> other & 1) != 0 && is_equal) equal |= 1u << other;
  }
  return equal;
}

}  // namespace

uint64_t BlockRunner::MeetLanes(const WarpRequest& request) {
  Thread& self = *current_;
  if ((request.mask >> (self.index % 32) & 1) == 0) {
    Fail("thread " + std::to_string(self.index) + " calls " + Name(request.operation) +
         " with mask " + Hex(request.mask) + ", in which it is not");
  }
  if (!std::has_single_bit(request.width) || request.width > 32) {
    Fail("thread " + std::to_string(self.index) + " calls " + Name(request.operation) +
         " with width " + std::to_string(request.width));
  }
  self.request = request;
  self.state = State::kAtWarpOperation;
  if (FinishWarpOperation(self)) {
    self.state = State::kReady;
  } else {
    Wait(State::kAtWarpOperation);
  }
  return self.result;
}

bool BlockRunner::FinishWarpOperation(const Thread& last) {
  const uint32_t first = last.index / 32 * 32;
  const WarpRequest& request = last.request;
  Lanes lanes = {.mask = request.mask};
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((request.mask >> lane & 1) == 0) continue;
    if (first + lane >= threads_.size()) return false;
    const Thread& thread = threads_[first + lane];
    if (thread.state != State::kAtWarpOperation || thread.request.mask != request.mask) {
      return false;
    }
    if (thread.request.operation != request.operation) return false;
    lanes.operands[lane] = thread.request.operand;
  }
  const uint32_t reduced = Reduce(request.operation, lanes);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((request.mask >> lane & 1) == 0) continue;
    Thread& thread = threads_[first + lane];
    thread.result = ResultOf(thread.request, lane, lanes, reduced);
    thread.state = State::kReady;
  }
  return true;
}

std::string BlockRunner::Describe(const Thread& thread) const {
  const std::string name = "thread " + std::to_string(thread.index);
  if (thread.state == State::kDone) return name + " has ended";
  if (thread.state == State::kAtBarrier) return name + " is at __syncthreads";
  return name + " is at " + Name(thread.request.operation) + " with mask " +
         Hex(thread.request.mask);
}

std::string BlockRunner::DescribeDeadlock() const {
  for (const Thread& thread : threads_) {
    if (thread.state != State::kAtWarpOperation) continue;
    const std::string text = Describe(thread);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      if ((thread.request.mask >> lane & 1) == 0) continue;
      const uint32_t other = thread.index / 32 * 32 + lane;
      if (other >= threads_.size()) {
        return text + ", but there is no thread " + std::to_string(other);
      }
      const Thread& named = threads_[other];
      const bool is_same = named.state == State::kAtWarpOperation &&
                           named.request.mask == thread.request.mask &&
                           named.request.operation == thread.request.operation;
      if (!is_same) return text + ", but " + Describe(named);
    }
  }
  return "threads wait for one another";
}

uint64_t MeetLanes(const WarpRequest& request) { return Runner().MeetLanes(request); }

void* DynamicSharedMemory() { return Runner().shared_memory(); }

void CheckAlignment(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  throw std::logic_error("misaligned load or store of " + std::to_string(bytes) + " bytes");
}

}  // namespace dlsim::emulation

void __trap() { throw std::logic_error("__trap"); }

unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
  return reversed;
}

unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned choice = selector >> (4 * i) & 0xfu;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (choice & 7u))) & 0xffu;
    if ((choice & 8u) != 0) byte = (byte & 0x80u) != 0 ? 0xffu : 0;
    result |= byte << (8 * i);
  }
  return result;
}
