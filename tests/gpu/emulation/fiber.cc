// SPDX-License-Identifier: Apache-2.0
#undef _FORTIFY_SOURCE  // its longjmp refuses to jump to another stack
#include "tests/gpu/emulation/fiber.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define DLSIM_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DLSIM_ADDRESS_SANITIZER
#endif
#endif
#ifdef DLSIM_ADDRESS_SANITIZER
#include <dlfcn.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace dlsim::emulation {
namespace {

constexpr size_t kGuardBytes = 4096;
// The address sanitizer's frames are larger.
#ifdef DLSIM_ADDRESS_SANITIZER
constexpr size_t kStackBytes = 256 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif

Fiber* g_previous = nullptr;
Fiber* g_current = nullptr;

#ifdef DLSIM_ADDRESS_SANITIZER
// The C library's swapcontext: the sanitizer's own prints a warning that it knows nothing of
// stacks, which it is told about here.
int SwapContext(ucontext_t* from, const ucontext_t* to) {
  using Function = int(ucontext_t*, const ucontext_t*);
  static Function* const swap = reinterpret_cast<Function*>(
      dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "swapcontext"));
  return swap(from, to);
}
#endif

}  // namespace

Fiber::Fiber(void (*body)()) : body_(body), stack_size_(kStackBytes) {
  mapping_ = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  // A kernel that needs more stack than there is must crash, not corrupt memory.
  if (mprotect(mapping_, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
  stack_ = static_cast<char*>(mapping_) + kGuardBytes;
  getcontext(&context_);
  context_.uc_stack.ss_sp = static_cast<char*>(mapping_) + kGuardBytes;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, Begin, 0);
  // The address sanitizer would clear what it knows of a stack of known size at every switch.
  context_.uc_stack.ss_size = 0;
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
#ifdef DLSIM_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(stack_, stack_size_);  // of frames that were abandoned
#endif
  munmap(mapping_, kGuardBytes + kStackBytes);
}

void Fiber::SwitchTo(Fiber& to) {
  g_previous = this;
  g_current = &to;
#ifdef DLSIM_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&fake_stack_, to.stack_, to.stack_size_);
  SwapContext(&context_, &to.context_);
#else
  // Contexts save signal masks, for which they ask the system: that takes ten times as long.
  is_suspended_ = true;
  if (_setjmp(jump_) == 0) {
    if (to.is_suspended_) _longjmp(to.jump_, 1);
    setcontext(&to.context_);
  }
  is_suspended_ = false;
#endif
  Arrived();
}

void Fiber::Begin() {
  g_current->Arrived();
  g_current->body_();
  std::abort();
}

void Fiber::Arrived() {
#ifdef DLSIM_ADDRESS_SANITIZER
  // This also finds out where the stack of a context is that was not made here.
  __sanitizer_finish_switch_fiber(fake_stack_, &g_previous->stack_, &g_previous->stack_size_);
#endif
}

}  // namespace dlsim::emulation
