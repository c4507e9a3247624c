// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "dlsim/measure_step.h"
#include "src/trace/listed_names.h"

namespace dlsim {
namespace {

// Returns those of the tensors that overflow in fp16 in one file.
std::set<std::string> OverflowingIn(Recording file, const std::set<std::string>& tensors,
                                    const StepOptions& options) {
  std::erase_if(file.tensors,
                [&](const TraceTensor& tensor) { return !tensors.contains(tensor.name); });
  const Conversion fp16{.format = kFp16};
  const StepMeasurement measured =
      MeasureForward({.recordings = {std::move(file)}}, std::span(&fp16, 1), options);
  std::set<std::string> overflowing;
  for (size_t t = 0; t < measured.tensors.size(); ++t) {
    if (measured.answers.front()[t].parts.front().overflow > 0) {
      overflowing.insert(measured.tensors[t].name);
    }
  }
  return overflowing;
}

}  // namespace

std::set<std::string> HarmlessOverflows(const TraceStep& step, const StepOptions& options) {
  const std::vector<const Recording*> files = RecordedFiles(step);
  std::set<std::string> harmless;
  for (const Recording* file : files) {
    harmless.merge(ListedIn(file->metadata, kHarmlessOverflowKey));
  }
  for (const Recording* file : files) {
    const std::set<std::string> listed = ListedIn(file->metadata, kHarmlessOverflowKey);
    std::set<std::string> open;
    std::ranges::set_difference(harmless, listed, std::inserter(open, open.end()));
    if (open.empty()) continue;
    for (const std::string& name : OverflowingIn(*file, open, options)) harmless.erase(name);
  }
  return harmless;
}

}  // namespace dlsim
