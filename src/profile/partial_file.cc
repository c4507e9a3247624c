// SPDX-License-Identifier: Apache-2.0
#include "src/profile/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "src/base/check.h"
#include "src/base/link_target.h"
#include "src/profile/chunk.h"
#include "src/profile/step_code.h"
#include "src/profile/stored_profile.h"
#include "src/profile/unfinished.h"

namespace dlsim {

PartialFile::PartialFile(const std::string& path) : path_(Printable(path)) {
  if (path == "-") {
    throw UsageError("-", "cannot write a profile to standard output", "the name of a file");
  }
  if (path.empty())
    throw UsageError(Quoted(path), "is not the name of a profile", "the name of a file");
  struct stat status = {};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    Fail("cannot be replaced by a profile");
  }
  const std::optional<std::string> target = LinkTarget(path);
  if (!target) {
    errno = ELOOP;
    Fail("cannot be written");
  }
  target_ = *target;
  partial_ = target_ + ".partial";
  try {
    OpenLocked();
  } catch (...) {
    if (descriptor_ >= 0) close(descriptor_);
    throw;
  }
}

PartialFile::~PartialFile() {
  struct stat status = {};
  const bool empty = fstat(descriptor_, &status) == 0 && status.st_size == 0;
  if (empty && !committed_) unlink(partial_.c_str());
  close(descriptor_);
}

// Whoever held the lock before may have renamed the file between opening and locking it.
void PartialFile::OpenLocked() {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
  do {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = open(partial_.c_str(), kFlags, 0666);
    if (descriptor_ < 0) Fail("cannot be written");
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) continue;
    if (errno == EWOULDBLOCK) throw InputError(path_, "is being written by another process");
    Fail("cannot be locked");
  } while (!IsStillThere());
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0) Fail("cannot be read");
  RequireOwn(partial_, Source(), status.st_nlink);
  KeepMode(target_, descriptor_);
}

bool PartialFile::IsStillThere() const {
  struct stat open_file = {}, named = {};
  if (fstat(descriptor_, &open_file) != 0) Fail("cannot be written");
  if (!S_ISREG(open_file.st_mode)) {
    errno = EINVAL;
    Fail("cannot be written");
  }
  return lstat(partial_.c_str(), &named) == 0 && named.st_ino == open_file.st_ino &&
         named.st_dev == open_file.st_dev;
}

void PartialFile::Fail(const char* what) const {
  throw InputError(path_, std::string(what) + " (" + std::strerror(errno) + ")");
}

int64_t PartialFile::created_at() const {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  struct statx status = {};
  if (statx(descriptor_, "", AT_EMPTY_PATH, STATX_BTIME | STATX_MTIME, &status) != 0) {
    Fail("cannot be read");
  }
  const bool known = (status.stx_mask & STATX_BTIME) != 0;
  const statx_timestamp& time = known ? status.stx_btime : status.stx_mtime;
  return int64_t{time.tv_sec} * kNanoseconds + int64_t{time.tv_nsec};
}

ByteSource PartialFile::Source() const {
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0) Fail("cannot be read");
  return {.place = path_,
          .size = static_cast<uint64_t>(status.st_size),
          .read = [this](uint64_t offset, std::span<std::byte> out) {
            while (!out.empty()) {
              const ssize_t count =
                  pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
              if (count < 0 && errno == EINTR) continue;
              if (count < 0) Fail("cannot be read");
              if (count == 0) throw InputError(path_, "was cut while being read");
              offset += static_cast<uint64_t>(count);
              out = out.subspan(static_cast<size_t>(count));
            }
          }};
}

bool PartialFile::Resume(const std::string& opening) {
  const ByteSource source = Source();
  std::string bytes(std::min<uint64_t>(source.size, opening.size()), '\0');
  source.read(0, std::as_writable_bytes(std::span(bytes)));
  if (bytes != opening) {
    const bool other = !opening.starts_with(bytes);
    Restart(opening);
    return other;
  }
  opening_ = end_ = opening.size();
  while (ScanStep()) continue;
  has_rest_ = end_ < source.size;
  if (has_rest_ && !IsCompleteProfile(source)) Cut(end_);  // else at the first write
  return false;
}

void PartialFile::Restart(const std::string& opening) {
  RequireUnfinished(partial_, Source());
  is_new_ = true;
  entries_.clear();
  done_.clear();
  tensors_.clear();
  if (Source().size > 0) Cut(0);
  end_ = 0;
  Write(opening);
  opening_ = end_;
}

// Takes the step that begins at the end of what is whole, if it is whole, too.
bool PartialFile::ScanStep() {
  const ByteSource source = Source();
  try {
    IndexEntry entry;
    EncodedStep step;
    step.tensors = tensors_;
    uint64_t offset = end_;
    const auto take = [&](ChunkType type) {
      std::string payload = ReadChunk(source, type, offset, source.size);
      offset += kChunkBytes + payload.size();
      return payload;
    };
    std::string header(kChunkHeaderBytes, '\0');
    if (source.size - end_ < header.size()) return false;
    source.read(end_, std::as_writable_bytes(std::span(header)));
    if (ParseChunkHeader(header).type == ChunkType::kTensors) {
      step.tensors = take(ChunkType::kTensors);
      entry.tensors_bytes = step.tensors.size();
    }
    const std::string totals = take(ChunkType::kTotals);
    const std::string histograms = take(ChunkType::kHistograms);
    const ProfileStep head = DecodeHead(path_, totals);
    if (step.tensors.empty() || (!done_.empty() && head.step <= done_.back().step)) return false;
    step.step = head.step;
    entry.totals_bytes = totals.size();
    entry.histograms_bytes = histograms.size();
    Note(step, head, entry);
    end_ = offset;
    return true;
  } catch (const Error&) {
    return false;  // a write that was interrupted
  }
}

void PartialFile::Note(const EncodedStep& step, const ProfileStep& head, IndexEntry entry) {
  entry.step = head.step;
  for (const ProfileFile& file : head.files) entry.trace_bytes += file.bytes;
  entries_.push_back(entry);
  done_.push_back({head.step, head.files});
  tensors_ = step.tensors;
}

void PartialFile::Write(std::string_view bytes) {
  if (has_rest_) Cut(end_);
  uint64_t offset = end_;
  while (!bytes.empty()) {
    const ssize_t count =
        pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : ENOSPC;
      // What is whole stays; a rest that cannot be cut off fails its checksum.
      if (ftruncate(descriptor_, static_cast<off_t>(end_)) != 0) errno = 0;
      errno = error;
      Fail("cannot be written");
    }
    offset += static_cast<uint64_t>(count);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  end_ = offset;
}

void PartialFile::Cut(uint64_t size) {
  if (ftruncate(descriptor_, static_cast<off_t>(size)) != 0) Fail("cannot be written");
  has_rest_ = false;
}

void PartialFile::Discard() {
  if (is_new_ && !committed_) Cut(0);
}

void PartialFile::Truncate(size_t i) {
  if (i >= entries_.size()) return;
  uint64_t end = opening_, list_offset = 0;
  for (size_t k = 0; k < i; ++k) {
    if (entries_[k].tensors_bytes > 0) list_offset = end;
    end += entries_[k].FileBytes();
  }
  tensors_.clear();
  if (i > 0) tensors_ = ReadChunk(Source(), ChunkType::kTensors, list_offset, end);
  entries_.resize(i);
  done_.resize(i);
  end_ = end;
  Cut(end_);
}

void PartialFile::Append(const EncodedStep& step) {
  const StepParts parts = SplitStep(path_, step.bytes);
  const ProfileStep head = DecodeHead(path_, parts.totals);
  DLSIM_CHECK(head.step == step.step && !step.tensors.empty());
  if (!done_.empty() && step.step <= done_.back().step) {
    throw InputError(path_, "steps must ascend", "more than " + std::to_string(done_.back().step),
                     std::to_string(step.step));
  }
  IndexEntry entry;
  std::string bytes;
  const auto put = [&](ChunkType type, std::string_view payload) {
    PutChunk(type, payload, end_ + bytes.size(), bytes);
    return payload.size();
  };
  if (step.tensors != tensors_) entry.tensors_bytes = put(ChunkType::kTensors, step.tensors);
  entry.totals_bytes = put(ChunkType::kTotals, parts.totals);
  entry.histograms_bytes = put(ChunkType::kHistograms, parts.histograms);
  Write(bytes);
  Note(step, head, entry);
}

void PartialFile::Commit() {
  DLSIM_CHECK(!committed_);
  const uint64_t steps_end = end_;
  const std::string index = EncodeIndex(entries_);
  std::string bytes;
  PutChunk(ChunkType::kIndex, index, end_, bytes);
  bytes += EncodeFooter({end_, index.size()});
  Write(bytes);
  end_ = steps_end;
  if (fsync(descriptor_) != 0) Fail("cannot be written");
  if (std::rename(partial_.c_str(), target_.c_str()) != 0) Fail("cannot be renamed into place");
  committed_ = true;
  const std::filesystem::path directory = std::filesystem::path(target_).parent_path();
  const int parent = open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY);
  if (parent < 0) return;  // its name is safe a little later then
  fsync(parent);
  close(parent);
}

}  // namespace dlsim
