// SPDX-License-Identifier: Apache-2.0
// Which sums of a trace to run: those of --reduce over each tensor, and products of pairs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/trace.h"
#include "sim/studies/sum_item.h"
#include "src/sums/precision_level.h"

namespace dlsim::sim {

enum class ReductionKind : uint8_t {
  kMicro,  // each element of a gradient over the micro-steps of a step
  kNorm,   // the squares of all elements
  kSum,    // all elements
  kAxis,   // along one axis
};

struct Reduction {
  ReductionKind kind = ReductionKind::kSum;
  int64_t axis = 0;  // negative ones count from the last
  std::string name;  // as the user wrote it
};

// A product of two tensors of one recording.
struct TensorPair {
  std::string a, b;
};

struct ReductionsRequest {
  std::vector<std::string> reductions;  // "micro", "norm", "sum", "axis:K"; defaults if empty
  std::vector<std::string> dots;        // "A:B", names or patterns
  std::vector<std::string> matmuls;
  std::optional<Operation> operation;  // what all sums count as, instead of their own kind
};

// What to run on each step.
struct ReductionPlan {
  std::vector<Reduction> reductions;
  std::vector<TensorPair> dots, matmuls;
  std::optional<Operation> operation;

  Operation OperationOf(Operation own) const { return operation.value_or(own); }
};

// Resolves a request over the tensors of a trace, whose headers it reads. Throws UsageError for
// what no tensor has.
ReductionPlan PlanReductions(const ReductionsRequest& request, const TraceReader& trace);

// Returns the shape of a sum along an axis; nothing if the tensor lacks it.
std::optional<AxisShape> AxisOf(const std::vector<uint64_t>& shape, int64_t axis);

// Returns the shape of the product of [..., K] and [K, N]; nothing if they do not fit, are empty,
// or have more than 2^28 results.
std::optional<MatMulShape> MatMulOf(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b);

}  // namespace dlsim::sim
