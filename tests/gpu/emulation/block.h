// SPDX-License-Identifier: Apache-2.0
// Runs the thread blocks of a kernel: the threads of a block take turns, and wait for one another
// at barriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulated/vectors.h"
#include "emulated/warp.h"
#include "tests/gpu/emulation/fiber.h"

namespace dlsim::emulation {

struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;
  std::string name;  // of the launch, for messages
  std::function<void()> run_thread;
};

enum class BlockBarrier { kSync, kCount, kAnd, kOr };

class BlockRunner {
 public:
  // Runs all blocks of the grid. Throws what a thread throws, and std::logic_error if threads wait
  // for one another for ever.
  void Run(const Grid& grid);

  // For the thread whose turn it is.
  int MeetBlock(BlockBarrier barrier, int predicate);
  uint64_t MeetLanes(const WarpRequest& request);
  void* shared_memory() const { return shared_memory_; }
  bool is_running() const { return current_ != nullptr; }

 private:
  enum class State { kUnstarted, kReady, kAtBarrier, kAtWarpOperation, kDone };
  struct Thread {
    State state = State::kUnstarted;
    uint32_t index = 0;
    Fiber* fiber = nullptr;
    BlockBarrier barrier = BlockBarrier::kSync;
    WarpRequest request;
    uint64_t result = 0;
  };

  static void FiberBody();
  void RunBlock(uint32_t index);
  void RunThreads();
  void RunThread();
  void OrderThreads();
  Thread* NextThread();
  void MakeCurrent(Thread& thread, Fiber& fiber);
  void Leave();
  void Wait(State state);
  Fiber& FreshFiber();
  void FinishBarrier();
  bool FinishWarpOperation(const Thread& last);
  void CheckLanes(const Thread& thread) const;
  [[noreturn]] void Fail(const std::string& problem) const;
  std::string Describe(const Thread& thread) const;
  std::string DescribeDeadlock() const;

  const Grid* grid_ = nullptr;
  void* shared_memory_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<uint32_t> order_;  // in which threads get their turns
  size_t turn_ = 0;              // index in order_
  size_t live_count_ = 0;
  size_t waiting_count_ = 0;  // at the barrier of the block
  BlockBarrier barrier_ = BlockBarrier::kSync;
  int true_count_ = 0;
  int barrier_result_ = 0;
  Thread* current_ = nullptr;
  std::exception_ptr failure_;

  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_fibers_;
};

// The one whose threads run.
BlockRunner& Runner();

}  // namespace dlsim::emulation
