// SPDX-License-Identifier: Apache-2.0
#include "src/trace/dumps.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "dlsim/error.h"
#include "src/trace/recording.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr uint64_t kMaxStepsPerFile = 1'000'000;

// Returns the first axis, which counts the steps. Steps cost time and memory even if their slices
// are empty or compress well, so a small file cannot hold many.
uint64_t StepsOf(const NpzArchive& archive, const NpzMember& member, const NpyHeader& header) {
  const std::string place = TensorPlace(archive.place(), member.name);
  if (header.shape.empty()) throw InputError(place, "has no axis of steps");
  if (header.fortran_order && header.shape.size() > 1) {
    throw InputError(place, "unsupported order of a dump", "C order", "Fortran order");
  }
  const uint64_t most = std::min(kMaxStepsPerFile, archive.size());
  if (header.shape[0] > most) {
    throw InputError(place, "too many steps for a file of this size",
                     "at most " + std::to_string(most), std::to_string(header.shape[0]));
  }
  return header.shape[0];
}

// Keys are <module>.fwd and <module>.bwd, with .<index> for each item of a tuple (PyTorch's
// backward hooks always give one), and <module>.bwd.<parameter>.
Role DumpRole(std::string_view key) {
  const std::string dotted = std::string(key) + ".";
  const size_t forward = dotted.rfind(".fwd.");
  const size_t backward = dotted.rfind(".bwd.");
  if (forward != dotted.npos && (backward == dotted.npos || forward > backward)) return Role::kAct;
  if (backward == dotted.npos) return RoleOfName(key);
  const std::string_view item = std::string_view(dotted).substr(backward + 5);
  const bool is_index = item.find_first_not_of("0123456789.") == item.npos;
  return is_index ? Role::kActGrad : Role::kGrad;
}

// Modules also give masks and numbers of tokens, which no format rounds.
bool IsLeftOut(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member) {
  return DumpRole(member.name) == Role::kAct && !HoldsFloats(SourceOf(archive, member));
}

}  // namespace

DumpSummary SummarizeDump(const std::shared_ptr<NpzArchive>& archive) {
  DumpSummary summary;
  const NpzMember* first = nullptr;
  for (const NpzMember& member : archive->members()) {
    if (IsLeftOut(archive, member)) {
      ++summary.left_out;
    } else if (first == nullptr) {
      first = &member;
    }
  }
  if (first == nullptr) {
    throw InputError(archive->place(), "holds no values of a training",
                     "arrays named <module>.bwd... or <module>.fwd...");
  }
  summary.steps = StepsOf(*archive, *first, ReadNpzHeader(archive, *first));
  return summary;
}

DumpFile::DumpFile(std::shared_ptr<NpzArchive> archive, const TraceOptions& options)
    : place_(archive->place()), file_bytes_(archive->size()) {
  std::optional<uint64_t> steps;
  for (const NpzMember& member : archive->members()) {
    if (IsLeftOut(archive, member)) continue;
    const std::string place = TensorPlace(place_, member.name);
    const NpyHeader header = ReadNpzHeader(archive, member);
    const uint64_t count = StepsOf(*archive, member, header);
    if (count != steps.value_or(count)) {
      throw InputError(place, "arrays differ in their number of steps", std::to_string(*steps),
                       std::to_string(count));
    }
    steps = count;
    if (count == 0 || !IsSelected(member.name, options)) continue;
    TensorInfo info = {member.name,
                       DumpRole(member.name),
                       TraceDType(place, header.descr, options.npy_void2),
                       {header.shape.begin() + 1, header.shape.end()}};
    const TraceTensor slice = {.info = std::move(info),
                               .elements = header.elements / count,
                               .begin = header.data_start,
                               .reads_in_order = true};
    arrays_.push_back({slice, member.is_stored, std::make_shared<NpzStream>(archive, member)});
  }
  steps_ = steps.value_or(0);
}

std::vector<TraceTensor> DumpFile::Slice(uint64_t slice) const {
  if (slice >= steps_) throw InputError(place_, "was changed while being read");
  // The last step reads whatever was skipped before it, so that the checksum is verified.
  const bool is_last = slice + 1 == steps_;
  std::vector<TraceTensor> tensors;
  for (const Array& array : arrays_) {
    TraceTensor& tensor = tensors.emplace_back(array.slice);
    tensor.begin += slice * tensor.elements * DTypeSize(tensor.info->dtype);
    const Skip skip = array.is_stored && !is_last ? Skip::kBySeeking : Skip::kByReading;
    tensor.source = std::make_shared<const ByteReader>(NpzReader(array.stream, skip));
  }
  return tensors;
}

std::shared_ptr<const DumpFile> DumpCache::Open(const std::string& path,
                                                const TraceOptions& options) {
  const std::lock_guard lock(mutex_);
  if (dump_ == nullptr || path != path_) {
    dump_ = nullptr;
    dump_ = std::make_shared<const DumpFile>(NpzArchive::Open(path), options);
    path_ = path;
  }
  return dump_;
}

}  // namespace dlsim
