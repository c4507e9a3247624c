// SPDX-License-Identifier: Apache-2.0
#include "trace/dumps.h"

#include <algorithm>

#include "dlsim/error.h"
#include "trace/recording.h"
#include "trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr uint64_t kMaxStepsPerFile = 1'000'000;

// Returns the first axis, which counts the steps.
uint64_t StepsOf(const std::string& place, const NpyHeader& header) {
  if (header.shape.empty()) throw InputError(place, "has no axis of steps");
  if (header.fortran_order && header.shape.size() > 1) {
    throw InputError(place, "unsupported order of a dump", "C order", "Fortran order");
  }
  if (header.shape[0] > kMaxStepsPerFile) {
    throw InputError(place, "too many steps", "at most " + std::to_string(kMaxStepsPerFile),
                     std::to_string(header.shape[0]));
  }
  return header.shape[0];
}

TraceTensor MakeSlice(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member,
                      const NpyHeader& header, uint64_t slice, const TraceOptions& options) {
  TraceTensor tensor;
  tensor.name = member.name;
  tensor.role = *DumpRole(member.name);
  tensor.dtype =
      TraceDType(TensorPlace(archive->place(), member.name), header.type, options.npy_void2);
  tensor.shape.assign(header.shape.begin() + 1, header.shape.end());
  tensor.elements = header.elements / header.shape[0];
  const uint64_t begin = header.data_start + slice * tensor.elements * DTypeSize(tensor.dtype);
  // The last step reads the member from its start, so that its checksum is verified once.
  const bool is_last = slice + 1 == header.shape[0];
  const Skip skip = member.is_stored && !is_last ? Skip::kBySeeking : Skip::kByReading;
  tensor.read = NpzReader(archive, member, begin, skip);
  return tensor;
}

}  // namespace

std::optional<int64_t> DumpNumber(std::string_view file_name) {
  if (file_name == "act_dumps.npz") return 0;
  constexpr std::string_view kPrefix = "act_dumps_";
  constexpr std::string_view kSuffix = ".npz";
  if (!file_name.starts_with(kPrefix) || !file_name.ends_with(kSuffix)) return std::nullopt;
  file_name.remove_prefix(kPrefix.size());
  if (file_name.starts_with('0')) return std::nullopt;
  return ParseDigits(file_name.substr(0, file_name.size() - kSuffix.size()));
}

// Keys are <module>.fwd and <module>.bwd, with .<index> for each item of a tuple (PyTorch's
// backward hooks always give one), and <module>.bwd.<parameter>.
std::optional<Role> DumpRole(std::string_view key) {
  const std::string dotted = std::string(key) + ".";
  const size_t forward = dotted.rfind(".fwd.");
  const size_t backward = dotted.rfind(".bwd.");
  if (forward != dotted.npos && (backward == dotted.npos || forward > backward)) {
    return std::nullopt;
  }
  if (backward == dotted.npos) return RoleOfName(key);
  const std::string_view item = std::string_view(dotted).substr(backward + 5);
  const bool is_index = item.find_first_not_of("0123456789.") == item.npos;
  return is_index ? Role::kActGrad : Role::kGrad;
}

DumpSummary SummarizeDump(const std::shared_ptr<NpzArchive>& archive) {
  DumpSummary summary;
  const NpzMember* first = nullptr;
  for (const NpzMember& member : archive->members()) {
    if (!DumpRole(member.name)) {
      ++summary.forward_arrays;
    } else if (first == nullptr) {
      first = &member;
    }
  }
  if (first == nullptr) {
    throw InputError(archive->place(), "holds no gradients", "arrays named <module>.bwd...");
  }
  summary.steps =
      StepsOf(TensorPlace(archive->place(), first->name), ReadNpzHeader(archive, *first));
  return summary;
}

std::vector<TraceTensor> ReadDumpSlice(const std::shared_ptr<NpzArchive>& archive, uint64_t slice,
                                       const TraceOptions& options) {
  std::vector<TraceTensor> tensors;
  std::optional<uint64_t> steps;
  for (const NpzMember& member : archive->members()) {
    if (!DumpRole(member.name)) continue;
    const std::string place = TensorPlace(archive->place(), member.name);
    const NpyHeader header = ReadNpzHeader(archive, member);
    const uint64_t count = StepsOf(place, header);
    if (count != steps.value_or(count)) {
      throw InputError(place, "arrays differ in their number of steps", std::to_string(*steps),
                       std::to_string(count));
    }
    steps = count;
    if (slice >= count) throw InputError(place, "was changed while being read");
    if (!IsSelected(member.name, options)) continue;
    tensors.push_back(MakeSlice(archive, member, header, slice, options));
  }
  return tensors;
}

}  // namespace dlsim
