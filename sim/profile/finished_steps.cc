// SPDX-License-Identifier: Apache-2.0
#include "sim/profile/finished_steps.h"

#include <algorithm>

#include "dlsim/error.h"
#include "sim/profile/content_hash.h"

namespace dlsim::sim {
namespace {

bool IsCurrent(const ProfileWriter::Done& done, int64_t done_at,
               std::span<const std::string> paths) {
  const FileState now = StateOf(paths);
  // What a file held is not known of gradients that were in memory: they are read again.
  const auto looks_alike = [](const ProfileFile& a, const ProfileFile& b) {
    return a.name == b.name && a.bytes == b.bytes && a.content != 0;
  };
  return std::ranges::equal(done.files, now.files, looks_alike) &&
         std::ranges::all_of(now.changed_at, [&](int64_t time) { return time <= done_at; });
}

// Files that look alike may be those of another run, or have been rewritten with old times.
void RequireSameContent(const ProfileWriter::Done& done, std::span<const std::string> paths) {
  for (size_t k = 0; k < paths.size(); ++k) {
    if (ContentHash(paths[k]) == done.files[k].content) continue;
    throw InputError(Printable(paths[k]),
                     "has name, size and time of the file that step " + std::to_string(done.step) +
                         " was profiled from, but holds something else",
                     "the same trace, another -o, or a new profile (--restart, no --extend)");
  }
}

// Steps from `first` on are to be read again: those of the trace can be, others would be lost.
void RequireInTrace(std::span<const ProfileWriter::Done> done, size_t first,
                    const TraceSource& steps, StepRange range) {
  size_t i = range.begin;
  for (size_t k = first; k < done.size(); ++k) {
    while (i < range.end && steps.number(i) < done[k].step) ++i;
    if (i < range.end && steps.number(i) == done[k].step) continue;
    throw InputError("step " + std::to_string(done[first].step),
                     "has changed or has new steps before it, but the trace no longer holds step " +
                         std::to_string(done[k].step) + ", which follows it",
                     "a profile without --extend, or the files of all steps from there on");
  }
}

}  // namespace

StepRange ShardOf(size_t steps, uint64_t index, uint64_t parts) {
  const auto bound = [&](uint64_t i) {
    return static_cast<size_t>(static_cast<uint128_t>(i) * steps / parts);
  };
  return {bound(index), bound(index + 1)};
}

Resumption FindResumption(std::span<const ProfileWriter::Done> done, int64_t done_at,
                          const TraceSource& steps, StepRange range, Gone gone) {
  size_t k = 0, i = range.begin;
  for (; k < done.size(); ++k) {
    const bool is_gone = i == range.end || done[k].step < steps.number(i);
    if (is_gone && gone == Gone::kKeep) continue;
    if (is_gone || done[k].step != steps.number(i)) break;
    if (!IsCurrent(done[k], done_at, steps.files(i))) break;
    RequireSameContent(done[k], steps.files(i));
    ++i;
  }
  if (gone == Gone::kKeep && k < done.size()) RequireInTrace(done, k, steps, range);
  return {k, {i, range.end}};
}

}  // namespace dlsim::sim
