// SPDX-License-Identifier: Apache-2.0
// Preloaded (LD_PRELOAD) by tools/faults: makes calls of the C library fail, as DLSIM_FAULT says.
//
// DLSIM_FAULT=CALL:ACTION:FIRST:LAST:EVERY. CALL is one of kCalls or `any`, which is all but
// malloc. Of its calls since main began, numbered from 1, every EVERYth from FIRST to LAST (0: no
// end) does ACTION: an errno such as EIO; `zero`, which transfers nothing; `short`, which transfers
// one byte; `kill`; `cut` and `change`, which shorten or alter the file that is being read if it
// lies in the folder DLSIM_FAULT_INPUTS. DLSIM_FAULT_COUNTS names a file that holds the number of
// calls of each, as uint64. In another program than dlsim, DLSIM_FAULT_MANUAL delays that until
// dlsim_fault() is called.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* block, size_t size);
}

namespace {

constexpr std::array<std::string_view, 16> kCalls = {
    "malloc", "open",  "read",  "pread", "write", "pwrite", "fsync",   "rename",
    "close",  "fstat", "statx", "stat",  "flock", "unlink", "opendir", "ftruncate"};
constexpr size_t kMalloc = 0;

struct NamedErrno {
  std::string_view name;
  int value;
};
constexpr std::array<NamedErrno, 8> kErrnos = {{{"EIO", EIO},
                                                {"EINTR", EINTR},
                                                {"ENOSPC", ENOSPC},
                                                {"ENOMEM", ENOMEM},
                                                {"EMFILE", EMFILE},
                                                {"EACCES", EACCES},
                                                {"EAGAIN", EAGAIN},
                                                {"EDQUOT", EDQUOT}}};

enum class Action { kFail, kZero, kShort, kKill, kCut, kChange };

// Plain data, set before main: nothing here may allocate.
struct Fault {
  std::array<bool, kCalls.size()> calls{};
  Action action = Action::kFail;
  int error = EIO;
  uint64_t first = 1, last = 0, every = 1;
};
Fault fault;
const char* inputs = "";  // the folder whose files may be changed
std::atomic<bool> armed = false;
std::array<std::atomic<uint64_t>, kCalls.size()> own_counts;
std::atomic<uint64_t>* counts = own_counts.data();
std::atomic<uint64_t> matching = 0;

constexpr size_t IndexOf(std::string_view name) {
  for (size_t i = 0; i < kCalls.size(); ++i) {
    if (kCalls[i] == name) return i;
  }
  return kCalls.size();
}

[[noreturn]] void Refuse(const char* text) {
  std::fprintf(stderr, "bad DLSIM_FAULT '%s'\n", text);
  _exit(99);
}

void ParseAction(const char* text, std::string_view name) {
  constexpr std::array<std::string_view, 5> kActions = {"zero", "short", "kill", "cut", "change"};
  for (size_t i = 0; i < kActions.size(); ++i) {
    if (name != kActions[i]) continue;
    fault.action = static_cast<Action>(i + 1);
    return;
  }
  for (const NamedErrno& known : kErrnos) {
    if (name != known.name) continue;
    fault.error = known.value;
    return;
  }
  Refuse(text);
}

void Parse(const char* text) {
  fault = {};
  char call[16] = "", action[16] = "";
  unsigned long long first = 1, last = 0, every = 1;
  if (std::sscanf(text, "%15[^:]:%15[^:]:%llu:%llu:%llu", call, action, &first, &last, &every) !=
      5) {
    Refuse(text);
  }
  for (size_t i = 0; i < kCalls.size(); ++i) {
    fault.calls[i] = kCalls[i] == call || (std::string_view(call) == "any" && i != kMalloc);
  }
  ParseAction(text, action);
  fault.first = first;
  fault.last = last;
  fault.every = every;
  matching = 0;
}

// Counts a call; true if it is one that the fault is for.
bool IsHit(size_t call) {
  if (!armed) return false;
  ++counts[call];
  if (!fault.calls[call]) return false;
  const uint64_t number = ++matching;
  const bool within = number >= fault.first && (fault.last == 0 || number <= fault.last);
  return within && (number - fault.first) % fault.every == 0;
}

void ChangeFile(int descriptor) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  char name[4096] = "";
  const ssize_t length = readlink(path, name, sizeof name - 1);
  if (length < 0 || std::strncmp(name, inputs, std::strlen(inputs)) != 0) return;
  const int file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC));
  if (file < 0) return;
  struct stat status = {};
  if (syscall(SYS_newfstatat, file, "", &status, AT_EMPTY_PATH) == 0) {
    if (fault.action == Action::kCut) syscall(SYS_ftruncate, file, status.st_size / 2);
    if (fault.action == Action::kChange) syscall(SYS_pwrite64, file, "\x3F", 1, status.st_size - 1);
  }
  syscall(SYS_close, file);
}

// What a call does instead of its work; `transfer` is the size of a read or write.
enum class Instead { kNothing, kFails, kReturnsZero };
Instead Hit(size_t call, size_t* transfer, int descriptor) {
  if (!IsHit(call)) return Instead::kNothing;
  switch (fault.action) {
    case Action::kFail:
      errno = fault.error;
      return Instead::kFails;
    case Action::kZero:
      return transfer != nullptr ? Instead::kReturnsZero : Instead::kNothing;
    case Action::kShort:
      if (transfer != nullptr && *transfer > 1) *transfer = 1;
      return Instead::kNothing;
    case Action::kKill:
      syscall(SYS_kill, getpid(), SIGKILL);
      return Instead::kNothing;
    default:
      if (descriptor >= 0) ChangeFile(descriptor);
      return Instead::kNothing;
  }
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int (*real_main)(int, char**, char**) = nullptr;

int ArmedMain(int argc, char** argv, char** environment) {
  if (getenv("DLSIM_FAULT_MANUAL") == nullptr) armed = true;
  return real_main(argc, argv, environment);
}

__attribute__((constructor)) void Begin() {
  if (const char* const path = getenv("DLSIM_FAULT_COUNTS")) {
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    constexpr size_t kBytes = sizeof(own_counts);
    if (file < 0 || ftruncate(file, kBytes) != 0) Refuse(path);
    void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) Refuse(path);
    counts = static_cast<std::atomic<uint64_t>*>(memory);
    close(file);
  }
  if (const char* const folder = getenv("DLSIM_FAULT_INPUTS")) inputs = folder;
  if (const char* const text = getenv("DLSIM_FAULT")) Parse(text);
}

}  // namespace

#define DLSIM_INTERPOSE extern "C" __attribute__((visibility("default")))

// A call that transfers nothing: it fails or is made.
#define DLSIM_PLAIN(name, failure, descriptor, parameters, arguments)       \
  DLSIM_INTERPOSE int name parameters {                                     \
    static constexpr size_t kCall = IndexOf(#name);                         \
    if (Hit(kCall, nullptr, descriptor) == Instead::kFails) return failure; \
    static int(*const next) parameters = Next<int parameters>(#name);       \
    return next arguments;                                                  \
  }

// A call that transfers `size` bytes.
#define DLSIM_TRANSFER(name, parameters, arguments)                               \
  DLSIM_INTERPOSE ssize_t name parameters {                                       \
    static constexpr size_t kCall = IndexOf(#name);                               \
    const Instead instead = Hit(kCall, &size, file);                              \
    if (instead != Instead::kNothing) return instead == Instead::kFails ? -1 : 0; \
    static ssize_t(*const next) parameters = Next<ssize_t parameters>(#name);     \
    return next arguments;                                                        \
  }

DLSIM_TRANSFER(read, (int file, void* bytes, size_t size), (file, bytes, size))
DLSIM_TRANSFER(write, (int file, const void* bytes, size_t size), (file, bytes, size))
DLSIM_TRANSFER(pread, (int file, void* bytes, size_t size, off_t at), (file, bytes, size, at))
DLSIM_TRANSFER(pwrite, (int file, const void* bytes, size_t size, off_t at),
               (file, bytes, size, at))
DLSIM_PLAIN(fsync, -1, file, (int file), (file))
DLSIM_PLAIN(ftruncate, -1, file, (int file, off_t size), (file, size))
DLSIM_PLAIN(flock, -1, file, (int file, int operation), (file, operation))
DLSIM_PLAIN(fstat, -1, file, (int file, struct stat* status), (file, status))
DLSIM_PLAIN(stat, -1, -1, (const char* path, struct stat* status), (path, status))
DLSIM_PLAIN(unlink, -1, -1, (const char* path), (path))
DLSIM_PLAIN(rename, -1, -1, (const char* from, const char* to), (from, to))
DLSIM_PLAIN(statx, -1, -1,
            (int folder, const char* path, int flags, unsigned mask, struct statx* status),
            (folder, path, flags, mask, status))

// The descriptor is gone all the same, as on Linux.
DLSIM_INTERPOSE int close(int file) {
  const bool fails = Hit(IndexOf("close"), nullptr, -1) == Instead::kFails;
  const int error = errno;
  const long result = syscall(SYS_close, file);
  if (fails) errno = error;
  return fails ? -1 : static_cast<int>(result);
}

DLSIM_INTERPOSE int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (Hit(IndexOf("open"), nullptr, -1) == Instead::kFails) return -1;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

// What Rust's standard library calls.
DLSIM_INTERPOSE int open64(const char* path, int flags, ...) __attribute__((alias("open")));

DLSIM_INTERPOSE DIR* opendir(const char* path) {
  if (Hit(IndexOf("opendir"), nullptr, -1) == Instead::kFails) return nullptr;
  static DIR* (*const next)(const char*) = Next<DIR*(const char*)>("opendir");
  return next(path);
}

DLSIM_INTERPOSE void* malloc(size_t size) {
  if (Hit(kMalloc, nullptr, -1) == Instead::kFails) return nullptr;
  return __libc_malloc(size);
}

DLSIM_INTERPOSE void* calloc(size_t count, size_t size) {
  if (Hit(kMalloc, nullptr, -1) == Instead::kFails) return nullptr;
  return __libc_calloc(count, size);
}

DLSIM_INTERPOSE void* realloc(void* block, size_t size) {
  if (Hit(kMalloc, nullptr, -1) == Instead::kFails) return nullptr;
  return __libc_realloc(block, size);
}

// Sets another fault, or none for null, in a program that runs.
DLSIM_INTERPOSE void dlsim_fault(const char* text) {
  armed = false;
  if (text == nullptr) return;
  Parse(text);
  armed = true;
}

DLSIM_INTERPOSE int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv,
                                      void (*begin)(), void (*end)(), void (*unload)(),
                                      void* stack_end) {
  using Start =
      int(int (*)(int, char**, char**), int, char**, void (*)(), void (*)(), void (*)(), void*);
  real_main = main;
  return Next<Start>("__libc_start_main")(ArmedMain, argc, argv, begin, end, unload, stack_end);
}
