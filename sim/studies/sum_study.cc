// SPDX-License-Identifier: Apache-2.0
#include "sim/studies/sum_study.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "dlsim/error.h"
#include "dlsim/tensor_values.h"
#include "src/trace/tensor_rules.h"

namespace dlsim::sim {
namespace {

// Adds the values of a tensor to `values` from `begin` on, which has room for them.
void LoadValues(const Recording& recording, const TraceTensor& tensor, uint64_t begin,
                std::vector<float>& values) {
  VisitValues(recording, tensor, [&](uint64_t at, std::span<const float> chunk) {
    std::ranges::copy(chunk, values.begin() + static_cast<std::ptrdiff_t>(begin + at));
  });
}

std::vector<float> ValuesOf(const Recording& recording, const TraceTensor& tensor) {
  std::vector<float> values(tensor.elements);
  LoadValues(recording, tensor, 0, values);
  return values;
}

const TraceTensor* Find(const Recording& recording, const std::string& name) {
  const auto found = std::ranges::find(recording.tensors, name, &TraceTensor::name);
  return found == recording.tensors.end() ? nullptr : &*found;
}

void Merge(const SumItem& item, const SumOutcome& outcome, SumSummary& summary) {
  ++summary.sums;
  summary.counts.Merge(outcome.counts);
  if (std::isnan(outcome.term_error)) {
    ++summary.nonfinite;
    return;
  }
  summary.overflowed += !std::isfinite(outcome.result);
  if (std::isfinite(outcome.result)) summary.error_sum += outcome.term_error;
  summary.relative_error = std::max(summary.relative_error, outcome.relative_error);
  summary.max_error = std::max(summary.max_error, outcome.max_error);
  if (summary.worst_step >= 0 && outcome.term_error <= summary.worst_error) return;
  summary.worst_error = outcome.term_error;
  summary.input_error = outcome.input_error;
  summary.worst_step = item.step;
  summary.worst_micro = item.micro;
}

// The study on its way through the trace.
class SumStudy {
 public:
  SumStudy(const ReductionPlan& plan, std::span<const SumRun> runs, const SumStudyOptions& options)
      : plan_(plan), runs_(runs), options_(options) {}

  void Add(const TraceStep& step) {
    for (const Recording& recording : step.recordings) {
      for (const TraceTensor& tensor : recording.tensors) AddTensor(step, recording, tensor);
      for (const TensorPair& pair : plan_.dots) AddDot(step, recording, pair);
      for (const TensorPair& pair : plan_.matmuls) AddMatMul(step, recording, pair);
    }
    const bool sums_micro_steps = std::ranges::any_of(
        plan_.reductions, [](const Reduction& r) { return r.kind == ReductionKind::kMicro; });
    if (sums_micro_steps && step.recordings.size() > 1) AddMicroSteps(step);
  }

  std::vector<SumResult> TakeResults() { return std::move(results_); }

 private:
  // An item of this kind of operation, unless the plan says another.
  SumItem ItemOf(const std::string& reduction, Operation own, int64_t step, int64_t micro) const {
    SumItem item;
    item.reduction = reduction;
    item.operation = plan_.OperationOf(own);
    item.step = step;
    item.micro = micro;
    return item;
  }

  void AddTensor(const TraceStep& step, const Recording& recording, const TraceTensor& tensor) {
    std::vector<float> values;
    for (const Reduction& reduction : plan_.reductions) {
      if (reduction.kind == ReductionKind::kMicro) continue;
      SumItem item = ItemOf(reduction.name, Operation::kReduction, step.step, recording.micro);
      item.tensor = tensor.name;
      if (reduction.kind == ReductionKind::kSum) item.axis = {1, tensor.elements, 1};
      if (reduction.kind == ReductionKind::kNorm)
        item.products = MatMulShape{1, tensor.elements, 1};
      if (reduction.kind == ReductionKind::kAxis) {
        const std::optional<AxisShape> axis = AxisOf(tensor.shape, reduction.axis);
        if (!axis) continue;
        item.axis = *axis;
        item.operation = plan_.OperationOf(Operation::kMatMul);
      }
      if (values.empty()) values = ValuesOf(recording, tensor);
      item.a = item.b = values;
      Evaluate(item);
    }
  }

  // The tensors of a pair may be in some recordings only.
  template <class Shape>
  void AddPair(const TraceStep& step, const Recording& recording, const TensorPair& pair,
               const char* reduction, const Shape& shape_of) {
    const TraceTensor* a = Find(recording, pair.a);
    const TraceTensor* b = Find(recording, pair.b);
    if (a == nullptr || b == nullptr) return;
    const std::optional<MatMulShape> shape = shape_of(*a, *b);
    if (!shape) {
      throw InputError(Printable(recording.place), "shapes of a pair do not fit", "",
                       Quoted(pair.a) + " " + ShapeText(a->shape) + " and " + Quoted(pair.b) + " " +
                           ShapeText(b->shape));
    }
    const std::vector<float> values_a = ValuesOf(recording, *a);
    const std::vector<float> values_b = ValuesOf(recording, *b);
    SumItem item = ItemOf(reduction, Operation::kMatMul, step.step, recording.micro);
    item.tensor = pair.a;
    item.other = pair.b;
    item.a = values_a;
    item.b = values_b;
    item.products = shape;
    Evaluate(item);
  }

  void AddDot(const TraceStep& step, const Recording& recording, const TensorPair& pair) {
    AddPair(step, recording, pair, "dot", [](const TraceTensor& a, const TraceTensor& b) {
      return a.shape == b.shape ? std::optional(MatMulShape{1, a.elements, 1}) : std::nullopt;
    });
  }

  void AddMatMul(const TraceStep& step, const Recording& recording, const TensorPair& pair) {
    AddPair(step, recording, pair, "matmul",
            [](const TraceTensor& a, const TraceTensor& b) { return MatMulOf(a.shape, b.shape); });
  }

  // Gradients over the micro-steps; one that lacks a tensor adds nothing.
  void AddMicroSteps(const TraceStep& step) {
    std::set<std::string> done;
    for (const Recording& first : step.recordings) {
      for (const TraceTensor& tensor : first.tensors) {
        const bool is_new = tensor.role == Role::kGrad && done.insert(tensor.name).second;
        if (is_new) AddMicroSteps(step, tensor.name);
      }
    }
  }

  void AddMicroSteps(const TraceStep& step, const std::string& name) {
    uint64_t elements = 0, present = 0;
    for (const Recording& recording : step.recordings) {
      const TraceTensor* tensor = Find(recording, name);
      if (tensor == nullptr) continue;
      elements = std::max(elements, tensor->elements);
      ++present;
    }
    std::vector<float> values(present * elements);
    uint64_t begin = 0;
    for (const Recording& recording : step.recordings) {
      const TraceTensor* tensor = Find(recording, name);
      if (tensor == nullptr) continue;
      LoadValues(recording, *tensor, begin, values);
      begin += elements;
    }
    SumItem item = ItemOf("micro", Operation::kReduction, step.step, -1);
    item.tensor = name;
    item.a = values;
    item.axis = {1, present, elements};
    Evaluate(item);
  }

  void Evaluate(const SumItem& item) {
    const std::vector<SumOutcome> outcomes =
        sim::Evaluate(item, runs_, options_.scale, options_.seed);
    if (options_.on_item) options_.on_item(item, outcomes);
    const auto [entry, added] =
        index_.try_emplace({item.reduction, item.tensor, item.other}, results_.size());
    if (added) {
      results_.push_back({item.reduction, item.tensor, item.other, item.operation, {}});
      results_.back().runs.resize(runs_.size());
    }
    SumResult& result = results_[entry->second];
    for (size_t r = 0; r < runs_.size(); ++r) Merge(item, outcomes[r], result.runs[r]);
  }

  const ReductionPlan& plan_;
  std::span<const SumRun> runs_;
  const SumStudyOptions& options_;
  std::vector<SumResult> results_;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> index_;
};

}  // namespace

std::vector<SumResult> RunSumStudy(const TraceReader& trace, const ReductionPlan& plan,
                                   std::span<const SumRun> runs, const SumStudyOptions& options) {
  SumStudy study(plan, runs, options);
  for (size_t i = 0; i < trace.step_count(); ++i) {
    study.Add(trace.Load(i));
    if (options.on_step) options.on_step(i + 1);
  }
  return study.TakeResults();
}

}  // namespace dlsim::sim
