// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "dlsim/probe.h"
#include "src/base/check.h"
#include "src/probe/probe_code.h"
#include "src/probe/probe_index.h"
#include "src/profile/chunk.h"

namespace dlsim {

// The open file, which is cut to what is whole before more is written.
struct ProbeWriter::Impl {
  explicit Impl(const std::string& path);
  ~Impl() { close(descriptor); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[noreturn]] void Fail(const char* what) const {
    throw InputError(place, std::string(what) + " (" + std::strerror(errno) + ")");
  }
  ByteSource Source() const;
  void RequireOwn(const ByteSource& file) const;
  void Begin(const ProbeHead& head);
  void Continue(const ProbeHead& head);
  void DropDamagedEnd();
  void CutToEnd();
  void Write(std::initializer_list<std::string_view> parts);

  std::string place;
  int descriptor = -1;
  ProbeIndex index;
  std::string groups;      // in force behind the last update that was added, encoded
  uint64_t groups_at = 0;  // where they lie; 0: nowhere yet
};

ProbeWriter::Impl::Impl(const std::string& path) : place(Printable(path)) {
  descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor < 0) Fail("cannot be written");
  try {
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) throw InputError(place, "is being written by another process");
      Fail("cannot be locked");
    }
    RequireOwn(Source());
  } catch (...) {
    close(descriptor);
    throw;
  }
}

ByteSource ProbeWriter::Impl::Source() const {
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) Fail("cannot be read");
  if (!S_ISREG(status.st_mode)) throw InputError(place, "is not a file that can hold a probe");
  return {.place = place,
          .size = static_cast<uint64_t>(status.st_size),
          .read = [this](uint64_t offset, std::span<std::byte> out) {
            while (!out.empty()) {
              const ssize_t count =
                  pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
              if (count < 0 && errno == EINTR) continue;
              if (count < 0) Fail("cannot be read");
              if (count == 0) throw InputError(place, "was cut while being read");
              offset += static_cast<uint64_t>(count);
              out = out.subspan(static_cast<size_t>(count));
            }
          }};
}

void ProbeWriter::Impl::RequireOwn(const ByteSource& file) const {
  const size_t size = std::min<uint64_t>(file.size, kProbeMagic.size());
  if (kProbeMagic.starts_with(ReadBytes(file, 0, size))) return;
  throw InputError(place, "is not a probe and is not overwritten",
                   "no file of that name, or another output");
}

void ProbeWriter::Impl::Begin(const ProbeHead& head) {
  index = {};
  CutToEnd();
  const std::string opening = ProbeOpening(place, head);
  Write({opening});
  index.head = head;
  index.opening = opening.size();
}

void ProbeWriter::Impl::Continue(const ProbeHead& head) {
  const ByteSource source = Source();
  // A kill may come while the opening is written; nothing is lost then.
  const std::string opening = ProbeOpening(place, head);
  if (source.size < opening.size() &&
      opening.starts_with(ReadBytes(source, 0, static_cast<size_t>(source.size)))) {
    return Begin(head);
  }
  index = IndexProbe(source);
  if (index.head.elements != head.elements || index.head.tensors != head.tensors) {
    throw InputError(place, "follows other elements of other parameters",
                     "the same model, optimizer and number of elements, or another output");
  }
  DropDamagedEnd();
  CutToEnd();
}

// After a crash of the machine the last update may have its size but not its bytes.
void ProbeWriter::Impl::DropDamagedEnd() {
  if (index.steps.empty()) return;
  try {
    const uint64_t offset = index.steps.back().gradients;
    ReadChunk(Source(), ChunkType::kGradients, offset, index.end);
  } catch (const Error&) {
    index.Truncate(index.steps.size() - 1);
  }
}

void ProbeWriter::Impl::CutToEnd() {
  if (ftruncate(descriptor, static_cast<off_t>(index.end)) != 0) Fail("cannot be written");
  groups_at = 0;
}

// Appends all parts or, if that fails, nothing.
void ProbeWriter::Impl::Write(std::initializer_list<std::string_view> parts) {
  uint64_t offset = index.end;
  for (std::string_view bytes : parts) {
    while (!bytes.empty()) {
      const ssize_t count =
          pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        const int error = count < 0 ? errno : ENOSPC;
        // A rest that cannot be cut off is found by its checksum.
        if (ftruncate(descriptor, static_cast<off_t>(index.end)) != 0) errno = 0;
        errno = error;
        Fail("cannot be written");
      }
      offset += static_cast<uint64_t>(count);
      bytes.remove_prefix(static_cast<size_t>(count));
    }
  }
  index.end = offset;
}

ProbeWriter::ProbeWriter(const std::string& path, const ProbeHead& head, Existing existing)
    : impl_(std::make_unique<Impl>(path)) {
  if (existing == Existing::kReplace) {
    impl_->Begin(head);
  } else {
    impl_->Continue(head);
  }
}

ProbeWriter::~ProbeWriter() = default;

size_t ProbeWriter::step_count() const { return impl_->index.steps.size(); }
uint64_t ProbeWriter::bytes() const { return impl_->index.end; }
std::optional<int64_t> ProbeWriter::last_step() const {
  if (impl_->index.steps.empty()) return std::nullopt;
  return impl_->index.steps.back().step;
}

void ProbeWriter::Forget(int64_t step) {
  const std::vector<ProbeIndex::Step>& steps = impl_->index.steps;
  const auto first = std::lower_bound(
      steps.begin(), steps.end(), step,
      [](const ProbeIndex::Step& entry, int64_t number) { return entry.step < number; });
  impl_->index.Truncate(static_cast<size_t>(first - steps.begin()));
  impl_->CutToEnd();
}

void ProbeWriter::AddValues(const ProbeValues& values) {
  const ProbeHead& head = impl_->index.head;
  DLSIM_CHECK(values.values.size() == head.FollowedCount());
  for (const ProbeState& state : values.states) {
    for (const auto& [name, elements] : state.values) {
      DLSIM_CHECK(elements.size() == head.tensors.at(state.tensor).count);
    }
  }
  const uint64_t offset = impl_->index.end;
  std::string bytes;
  PutChunk(ChunkType::kValues, EncodeProbeValues(values), offset, bytes);
  impl_->Write({bytes});
  impl_->index.values[impl_->index.steps.size()] = offset;
}

void ProbeWriter::AddStep(const ProbeStep& step, std::span<const float> gradients) {
  ProbeIndex& index = impl_->index;
  DLSIM_CHECK(index.values.contains(0));
  DLSIM_CHECK(gradients.size() == index.head.FollowedCount() &&
              step.updated.size() == index.head.tensors.size() &&
              step.group_of.size() == index.head.tensors.size());
  for (size_t i = 0; i < step.updated.size(); ++i) {
    DLSIM_CHECK(step.group_of[i] < step.groups.size() ||
                (step.group_of[i] == ProbeStep::kNoGroup && !step.updated[i]));
  }
  if (const std::optional<int64_t> last = last_step(); last && step.step < *last) {
    throw InputError(impl_->place, "steps must ascend", "at least " + std::to_string(*last),
                     std::to_string(step.step));
  }
  std::string bytes, memory;
  uint64_t groups_at = impl_->groups_at;
  std::string groups = EncodeProbeGroups(step);
  if (groups_at == 0 || groups != impl_->groups) {
    groups_at = index.end;
    PutChunk(ChunkType::kGroups, groups, index.end, bytes);
  }
  const uint64_t gradients_at = index.end + bytes.size();
  const std::string_view floats = FloatBytes(gradients, memory);
  const size_t begin = bytes.size();
  BeginChunk(ChunkType::kGradients, GradientsBytes(index.head), bytes);
  PutGradientsHead(step, bytes);
  const std::string_view head = std::string_view(bytes).substr(begin);
  const std::string checksum = ChunkChecksum({head, floats}, gradients_at);
  impl_->Write({bytes, floats, checksum});
  index.steps.push_back({step.step, gradients_at, groups_at});
  impl_->groups = std::move(groups);
  impl_->groups_at = groups_at;
}

void ProbeWriter::Close() {
  if (fsync(impl_->descriptor) != 0) impl_->Fail("cannot be written");
}

}  // namespace dlsim
