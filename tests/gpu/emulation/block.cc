// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/emulation/block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "tests/gpu/emulation/emulation.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace dlsim::emulation {
namespace {

constexpr int kPoison = 0xA5;

struct Order {
  ThreadOrder kind = ThreadOrder::kAscending;
  std::mt19937_64 random;
};

Order& CurrentOrder() {
  static Order order;
  return order;
}

}  // namespace

void SetThreadOrder(ThreadOrder order, uint64_t seed) {
  CurrentOrder().kind = order;
  CurrentOrder().random.seed(seed);
}

BlockRunner& Runner() {
  static BlockRunner runner;
  return runner;
}

void BlockRunner::Run(const Grid& grid) {
  grid_ = &grid;
  blockDim = grid.threads;
  gridDim = grid.blocks;
  // Of exactly this size, so that the address sanitizer finds what is out of bounds.
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, grid.shared_bytes) != 0) throw std::bad_alloc();
  const std::unique_ptr<void, decltype(&std::free)> shared(memory, &std::free);
  shared_memory_ = shared.get();
  for (uint32_t block = 0; block < grid.blocks.x; ++block) {
    // What is shared is not initialized.
    if (grid.shared_bytes > 0) std::memset(shared_memory_, kPoison, grid.shared_bytes);
    RunBlock(block);
  }
}

void BlockRunner::RunBlock(uint32_t index) {
  blockIdx = {index, 0, 0};
  threads_.assign(grid_->threads.x, {});
  for (uint32_t i = 0; i < threads_.size(); ++i) threads_[i].index = i;
  OrderThreads();
  live_count_ = threads_.size();
  waiting_count_ = 0;
  turn_ = 0;
  failure_ = nullptr;
  Fiber& fiber = FreshFiber();
  MakeCurrent(threads_[order_[0]], fiber);
  main_.SwitchTo(fiber);
  current_ = nullptr;
  if (!failure_) return;
  // Some threads never end: their stacks go with their fibers.
  idle_fibers_.clear();
  fibers_.clear();
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

void BlockRunner::OrderThreads() {
  order_.resize(threads_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  Order& order = CurrentOrder();
  if (order.kind == ThreadOrder::kDescending) std::reverse(order_.begin(), order_.end());
  if (order.kind == ThreadOrder::kShuffled) {
    std::shuffle(order_.begin(), order_.end(), order.random);
  }
}

Fiber& BlockRunner::FreshFiber() {
  if (idle_fibers_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(&FiberBody));
    return *fibers_.back();
  }
  Fiber* const fiber = idle_fibers_.back();
  idle_fibers_.pop_back();
  return *fiber;
}

void BlockRunner::FiberBody() { Runner().RunThreads(); }

// What a fiber does: it runs the thread that it is given, then others that have not begun, and lies
// idle when there are none.
void BlockRunner::RunThreads() {
  for (;;) {
    RunThread();
    Fiber& fiber = *current_->fiber;
    Thread* const next = failure_ ? nullptr : NextThread();
    if (next != nullptr && next->state == State::kUnstarted) {
      MakeCurrent(*next, fiber);
      continue;
    }
    idle_fibers_.push_back(&fiber);
    if (next != nullptr) {
      MakeCurrent(*next, *next->fiber);
      fiber.SwitchTo(*next->fiber);
    } else {
      fiber.SwitchTo(main_);
    }
  }
}

void BlockRunner::RunThread() {
  current_->state = State::kReady;
  try {
    grid_->run_thread();
    current_->state = State::kDone;
    --live_count_;
    if (live_count_ > 0 && waiting_count_ == live_count_) FinishBarrier();
    if (live_count_ > 0 && NextThread() == nullptr) Fail(DescribeDeadlock());
  } catch (...) {
    failure_ = std::current_exception();
  }
}

BlockRunner::Thread* BlockRunner::NextThread() {
  for (size_t step = 1; step <= order_.size(); ++step) {
    const size_t turn = (turn_ + step) % order_.size();
    Thread& thread = threads_[order_[turn]];
    if (thread.state == State::kUnstarted || thread.state == State::kReady) {
      return &thread;
    }
  }
  return nullptr;
}

void BlockRunner::MakeCurrent(Thread& thread, Fiber& fiber) {
  thread.fiber = &fiber;
  current_ = &thread;
  threadIdx = {thread.index, 0, 0};
  while (order_[turn_] != thread.index) turn_ = (turn_ + 1) % order_.size();
}

// Gives the turn to others until this thread can go on.
void BlockRunner::Wait(State state) {
  Thread& self = *current_;
  self.state = state;
  Thread* const next = NextThread();
  if (next == nullptr) Fail(DescribeDeadlock());
  Fiber& fiber = next->state == State::kUnstarted ? FreshFiber() : *next->fiber;
  MakeCurrent(*next, fiber);
  self.fiber->SwitchTo(fiber);
}

int BlockRunner::MeetBlock(BlockBarrier barrier, int predicate) {
  if (waiting_count_ > 0 && barrier != barrier_) Fail("threads are at different barriers");
  if (waiting_count_ == 0) true_count_ = 0;
  barrier_ = barrier;
  true_count_ += predicate != 0;
  ++waiting_count_;
  if (waiting_count_ < live_count_) {
    Wait(State::kAtBarrier);
  } else {
    FinishBarrier();
  }
  return barrier_result_;
}

void BlockRunner::FinishBarrier() {
  const bool all = static_cast<size_t>(true_count_) == waiting_count_;
  barrier_result_ = barrier_ == BlockBarrier::kCount ? true_count_
                    : barrier_ == BlockBarrier::kAnd ? all
                                                     : true_count_ > 0;
  waiting_count_ = 0;
  for (Thread& thread : threads_) {
    if (thread.state == State::kAtBarrier) thread.state = State::kReady;
  }
}

void BlockRunner::Fail(const std::string& problem) const {
  throw std::logic_error(grid_->name + ", block " + std::to_string(blockIdx.x) + ": " + problem);
}

}  // namespace dlsim::emulation

void __syncthreads() {
  dlsim::emulation::Runner().MeetBlock(dlsim::emulation::BlockBarrier::kSync, 0);
}
int __syncthreads_count(int predicate) {
  return dlsim::emulation::Runner().MeetBlock(dlsim::emulation::BlockBarrier::kCount, predicate);
}
int __syncthreads_and(int predicate) {
  return dlsim::emulation::Runner().MeetBlock(dlsim::emulation::BlockBarrier::kAnd, predicate);
}
int __syncthreads_or(int predicate) {
  return dlsim::emulation::Runner().MeetBlock(dlsim::emulation::BlockBarrier::kOr, predicate);
}
