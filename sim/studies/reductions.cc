// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/reductions.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "src/trace/tensor_rules.h"

namespace dlsim::sim {
namespace {

constexpr char kAxisPrefix[] = "axis:";

// Of a product of matrices, whose results may be far more than its factors' elements.
constexpr uint64_t kMaxResults = uint64_t{1} << 28;

// A tensor without elements has no sums, however many its other axes would make.
bool IsEmpty(const std::vector<uint64_t>& shape) {
  return std::ranges::find(shape, uint64_t{0}) != shape.end();
}

// What the headers of a trace tell.
struct TraceShapes {
  std::vector<std::string> names;                       // in the order in which they come first
  std::map<std::string, std::vector<uint64_t>> shapes;  // of the first tensor of a name
  bool has_micro_steps = false;
};

TraceShapes ReadShapes(const TraceReader& trace) {
  TraceShapes all;
  for (size_t i = 0; i < trace.step_count(); ++i) {
    const TraceStep step = trace.Load(i);
    all.has_micro_steps |= step.recordings.size() > 1;
    for (const Recording& recording : step.recordings) {
      for (const TraceTensor& tensor : recording.tensors) {
        if (all.shapes.try_emplace(tensor.name, tensor.shape).second) {
          all.names.push_back(tensor.name);
        }
      }
    }
  }
  return all;
}

Reduction ParseReduction(const std::string& text) {
  if (text == "micro") return {ReductionKind::kMicro, 0, text};
  if (text == "norm") return {ReductionKind::kNorm, 0, text};
  if (text == "sum") return {ReductionKind::kSum, 0, text};
  if (text.starts_with(kAxisPrefix)) {
    const std::string number = text.substr(sizeof(kAxisPrefix) - 1);
    return {ReductionKind::kAxis, ParseInteger(number, "--reduce"), text};
  }
  throw UsageError("--reduce", "unknown name", "one of micro, norm, sum, axis:K", Quoted(text));
}

void RequireUse(const Reduction& reduction, const TraceShapes& trace) {
  if (reduction.kind == ReductionKind::kMicro && !trace.has_micro_steps) {
    throw UsageError("--reduce", "no step has micro-steps", "a trace that has them, or another sum",
                     Quoted(reduction.name));
  }
  if (reduction.kind != ReductionKind::kAxis) return;
  size_t most_axes = 0;
  for (const auto& [name, shape] : trace.shapes) {
    if (AxisOf(shape, reduction.axis)) return;
    most_axes = std::max(most_axes, shape.size());
  }
  throw UsageError("--reduce", "no tensor has this axis",
                   most_axes == 0 ? "no axis" : fmt::format("at most {}", most_axes - 1),
                   Quoted(reduction.name));
}

bool IsPattern(const std::string& text) { return text.find_first_of("*?[") != std::string::npos; }

std::vector<std::string> Matches(const std::string& option, const std::string& pattern,
                                 const TraceShapes& trace) {
  std::vector<std::string> names;
  for (const std::string& name : trace.names) {
    if (name == pattern || fnmatch(pattern.c_str(), name.c_str(), 0) == 0) names.push_back(name);
  }
  if (names.empty()) {
    throw UsageError(option, "no tensor of this name", "a name or pattern; see dlsim info",
                     Quoted(pattern));
  }
  return names;
}

TensorPair SplitPair(const std::string& option, const std::string& text) {
  const size_t colon = text.find(':');
  const bool one = colon != std::string::npos && text.find(':', colon + 1) == std::string::npos;
  if (!one || colon == 0 || colon + 1 == text.size()) {
    throw UsageError(option, "not a pair", "A:B with one colon (write ? for one in a name)",
                     Quoted(text));
  }
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// Adds the pairs that fit and are not yet there; patterns pair no tensor with itself.
template <class Fits>
void ResolvePairs(const std::string& option, const std::string& text, const TraceShapes& trace,
                  const std::string& expected, const Fits& fits, std::vector<TensorPair>& pairs) {
  const TensorPair patterns = SplitPair(option, text);
  const bool names = !IsPattern(patterns.a) && !IsPattern(patterns.b);
  std::string got = "none";
  bool fit = false;
  for (const std::string& a : Matches(option, patterns.a, trace)) {
    for (const std::string& b : Matches(option, patterns.b, trace)) {
      const auto& shape_a = trace.shapes.at(a);
      const auto& shape_b = trace.shapes.at(b);
      if (a == b && !names) continue;
      got = ShapeText(shape_a) + " and " + ShapeText(shape_b);
      if (!fits(shape_a, shape_b)) continue;
      fit = true;
      const bool known = std::ranges::any_of(
          pairs, [&](const TensorPair& pair) { return pair.a == a && pair.b == b; });
      if (!known) pairs.push_back({a, b});
    }
  }
  if (!fit) throw UsageError(option, "shapes do not fit " + Quoted(text), expected, got);
}

}  // namespace

ReductionPlan PlanReductions(const ReductionsRequest& request, const TraceReader& trace) {
  const TraceShapes shapes = ReadShapes(trace);
  ReductionPlan plan;
  plan.operation = request.operation;
  std::vector<std::string> reductions = request.reductions;
  if (reductions.empty() && request.dots.empty() && request.matmuls.empty()) {
    if (shapes.has_micro_steps) reductions.push_back("micro");
    reductions.insert(reductions.end(), {"norm", "axis:0"});
  }
  for (const std::string& text : reductions) {
    const bool known =
        std::ranges::find(plan.reductions, text, &Reduction::name) != plan.reductions.end();
    if (known) continue;  // or it would count twice
    plan.reductions.push_back(ParseReduction(text));
    RequireUse(plan.reductions.back(), shapes);
  }
  for (const std::string& text : request.dots) {
    ResolvePairs(
        "--dot", text, shapes, "two tensors of one shape",
        [](const auto& a, const auto& b) { return a == b; }, plan.dots);
  }
  for (const std::string& text : request.matmuls) {
    ResolvePairs(
        "--matmul", text, shapes, "[..., K] and [K, N] with at most 2^28 results",
        [](const auto& a, const auto& b) { return MatMulOf(a, b).has_value(); }, plan.matmuls);
  }
  return plan;
}

std::optional<AxisShape> AxisOf(const std::vector<uint64_t>& shape, int64_t axis) {
  const int64_t rank = static_cast<int64_t>(shape.size());
  if (axis < -rank || axis >= rank || IsEmpty(shape)) return std::nullopt;
  const size_t k = static_cast<size_t>(axis < 0 ? axis + rank : axis);
  AxisShape result;
  for (size_t i = 0; i < k; ++i) result.outer *= shape[i];
  result.length = shape[k];
  for (size_t i = k + 1; i < shape.size(); ++i) result.inner *= shape[i];
  return result;
}

std::optional<MatMulShape> MatMulOf(const std::vector<uint64_t>& a,
                                    const std::vector<uint64_t>& b) {
  if (a.size() < 2 || b.size() != 2 || a.back() != b.front()) return std::nullopt;
  if (IsEmpty(a) || IsEmpty(b)) return std::nullopt;
  MatMulShape result = {1, b.front(), b.back()};
  for (size_t i = 0; i + 1 < a.size(); ++i) result.rows *= a[i];
  if (result.columns > kMaxResults / result.rows) return std::nullopt;
  return result;
}

}  // namespace dlsim::sim
