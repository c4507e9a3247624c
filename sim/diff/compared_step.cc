// SPDX-License-Identifier: Apache-2.0
#include "sim/diff/compared_step.h"

#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "sim/diff/compare_tensors.h"
#include "src/base/parallel_side_task.h"
#include "src/measure/step_blocks.h"

namespace dlsim::sim {
namespace {

// A tensor as it is matched.
struct Header {
  std::string name;
  Role role = Role::kGrad;
  std::vector<uint64_t> shape;
  uint64_t elements = 0;
};

using Place = std::pair<size_t, size_t>;  // in a and in b

// Adds what does not match to `step`, and an entry for what does. Forward tensors are left out:
// they have no effective value of a step.
std::vector<Place> Match(std::span<const Header> a, std::span<const Header> b, ComparedStep& step) {
  std::map<std::string_view, size_t> of_b;
  for (size_t k = 0; k < b.size(); ++k) {
    if (IsGradient(b[k].role)) of_b.emplace(b[k].name, k);
  }
  std::vector<Place> places;
  for (size_t i = 0; i < a.size(); ++i) {
    if (IsForward(a[i].role)) continue;
    const auto found = of_b.find(a[i].name);
    if (found == of_b.end()) {
      step.unmatched.push_back({a[i].name, Mismatch::kOnlyInA, a[i].shape, {}});
      continue;
    }
    const Header& other = b[found->second];
    if (a[i].shape != other.shape || a[i].elements != other.elements) {
      step.unmatched.push_back({a[i].name, Mismatch::kShape, a[i].shape, other.shape});
    } else {
      places.emplace_back(i, found->second);
      step.tensors.push_back({.name = a[i].name, .role = a[i].role});
    }
    of_b.erase(found);
  }
  for (const Header& header : b) {
    if (!of_b.contains(header.name)) continue;
    step.unmatched.push_back({header.name, Mismatch::kOnlyInB, {}, header.shape});
  }
  return places;
}

std::vector<Header> HeadersOf(std::span<const TensorSources> tensors) {
  std::vector<Header> headers;
  for (const TensorSources& tensor : tensors) {
    Header header = {tensor.header.name, tensor.header.role, {}, tensor.elements};
    for (const Source& source : tensor.recordings) {
      if (source.tensor != nullptr && source.tensor->elements == tensor.elements) {
        header.shape = source.tensor->shape;
        break;
      }
    }
    headers.push_back(std::move(header));
  }
  return headers;
}

// The histograms of all micro-steps together.
std::vector<Histogram> WholeHistograms(const ProfileStep& step) {
  std::vector<Histogram> whole = step.histograms.front();
  for (size_t part = 1; part < step.histograms.size(); ++part) {
    for (size_t t = 0; t < whole.size(); ++t) {
      whole[t] = MergeHistograms(whole[t], step.histograms[part][t]);
    }
  }
  return whole;
}

std::vector<Header> HeadersOf(const ProfileStep& step, std::span<const Histogram> whole) {
  std::vector<Header> headers;
  for (size_t t = 0; t < step.tensors.size(); ++t) {
    const ProfileTensor& tensor = step.tensors[t];
    headers.push_back({tensor.name, tensor.role, tensor.shape, whole[t].elements});
  }
  return headers;
}

}  // namespace

ComparedStep CompareSteps(const TraceStep& a, const TraceStep& b) {
  ComparedStep step = {a.step, b.step, {}, {}};
  const std::vector<TensorSources> of_a = CollectTensors(a, Pass::kBackward),
                                   of_b = CollectTensors(b, Pass::kBackward);
  const std::vector<Place> places = Match(HeadersOf(of_a), HeadersOf(of_b), step);
  std::vector<SourcePair> pairs;
  for (const auto& [i, k] : places) pairs.push_back({&of_a[i], &of_b[k]});
  const std::vector<PairSums> sums = CompareTensors(pairs);
  for (size_t t = 0; t < sums.size(); ++t) SetDifference(sums[t], step.tensors[t]);
  return step;
}

ComparedStep CompareSteps(const BinnedStep& a, const BinnedStep& b) {
  ComparedStep step = {a.step.step, b.step.step, {}, {}};
  const std::vector<Histogram> of_a = WholeHistograms(a.step), of_b = WholeHistograms(b.step);
  const std::vector<Place> places = Match(HeadersOf(a.step, of_a), HeadersOf(b.step, of_b), step);
  ParallelForWithSideTask(places.size(), [&](size_t t) {
    const auto& [i, k] = places[t];
    SetDifference({&of_a[i], &a.edges}, {&of_b[k], &b.edges}, step.tensors[t]);
  });
  return step;
}

}  // namespace dlsim::sim
