// SPDX-License-Identifier: Apache-2.0
// Contexts of execution that take turns on one thread of the CPU.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>

namespace dlsim::emulation {

class Fiber {
 public:
  // The context in which the caller runs; it can be switched away from.
  Fiber() = default;

  // A context of its own that begins with `body`, which never returns.
  explicit Fiber(void (*body)());

  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Continues `to`; returns when something switches back to this one.
  void SwitchTo(Fiber& to);

 private:
  static void Begin();
  void Arrived();

  ucontext_t context_ = {};  // where it begins
  [[maybe_unused]] jmp_buf jump_ = {};
  [[maybe_unused]] bool is_suspended_ = false;  // in jump_
  void (*body_)() = nullptr;
  void* mapping_ = nullptr;
  // For the address sanitizer, which must know on which stack a program runs.
  const void* stack_ = nullptr;
  [[maybe_unused]] size_t stack_size_ = 0;
  [[maybe_unused]] void* fake_stack_ = nullptr;
};

}  // namespace dlsim::emulation
