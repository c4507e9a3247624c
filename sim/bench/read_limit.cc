// SPDX-License-Identifier: Apache-2.0
#include "sim/bench/read_limit.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "src/trace/read_only_file.h"

namespace dlsim::sim {
namespace {

constexpr uint64_t kReadBytes = uint64_t{256} << 10;
// What a thread takes at once: small enough to share a file, large enough to open it for.
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
// Pieces asked for before they are read.
constexpr size_t kPiecesAhead = 16;

struct Piece {
  const std::string* path;
  uint64_t begin = 0, end = 0;
};

std::vector<Piece> CutIntoPieces(const std::vector<std::string>& files) {
  std::vector<Piece> pieces;
  for (const std::string& path : files) {
    const uint64_t size = ReadOnlyFile::Open(path)->size();
    for (uint64_t begin = 0; begin < size; begin += kPieceBytes) {
      pieces.push_back({&path, begin, std::min(begin + kPieceBytes, size)});
    }
  }
  return pieces;
}

// Words as they come; the last bytes of a file beyond them are read, too.
uint64_t SumOfPiece(const Piece& piece, std::vector<uint64_t>& buffer) {
  const std::shared_ptr<const ReadOnlyFile> file = ReadOnlyFile::Open(*piece.path);
  uint64_t sum = 0;
  for (uint64_t offset = piece.begin; offset < piece.end; offset += kReadBytes) {
    const size_t bytes = std::min(kReadBytes, piece.end - offset);
    file->ReadAt(offset, std::as_writable_bytes(std::span(buffer)).first(bytes));
    for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) sum += buffer[i];
  }
  return sum;
}

void AskFor(const Piece& piece) {
  const int descriptor = open(piece.path->c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;  // reading it says why
  const auto length = static_cast<off_t>(piece.end - piece.begin);
  posix_fadvise(descriptor, static_cast<off_t>(piece.begin), length, POSIX_FADV_WILLNEED);
  close(descriptor);
}

double Now(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Takes pieces until there are none, or until another thread failed.
class Reading {
 public:
  Reading(std::vector<Piece> pieces, FileCache cache) : pieces_(std::move(pieces)), cache_(cache) {
    for (size_t i = 0; IsCold() && i < std::min(kPiecesAhead, pieces_.size()); ++i) {
      AskFor(pieces_[i]);
    }
  }

  void Work() {
    std::vector<uint64_t> buffer(kReadBytes / sizeof(uint64_t));
    uint64_t sum = 0;
    try {
      for (size_t i = next_++; i < pieces_.size(); i = next_++) {
        if (IsCold() && i + kPiecesAhead < pieces_.size()) AskFor(pieces_[i + kPiecesAhead]);
        sum += SumOfPiece(pieces_[i], buffer);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      next_ = pieces_.size();
    }
    sum_ += sum;
  }

  uint64_t Sum() const {
    if (failure_) std::rethrow_exception(failure_);
    return sum_;
  }

 private:
  bool IsCold() const { return cache_ == FileCache::kCold; }

  std::vector<Piece> pieces_;
  FileCache cache_;
  std::atomic<size_t> next_ = 0;
  std::atomic<uint64_t> sum_ = 0;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

// Threads of its own, which are gone afterwards: those of OpenMP would spin while commands run.
ReadTimes ReadAndSum(const std::vector<std::string>& files, int threads, FileCache cache) {
  const double wall = Now(CLOCK_MONOTONIC), cpu = Now(CLOCK_PROCESS_CPUTIME_ID);
  Reading reading(CutIntoPieces(files), cache);
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&] { reading.Work(); });
    reading.Work();
  }
  ReadTimes times;
  times.sum = reading.Sum();
  times.wall_seconds = Now(CLOCK_MONOTONIC) - wall;
  times.cpu_seconds = Now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
  return times;
}

void DropFromCache(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) continue;  // whoever reads it says why
    fsync(descriptor);             // what is not written yet cannot be dropped
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    close(descriptor);
  }
}

}  // namespace dlsim::sim
