// SPDX-License-Identifier: Apache-2.0
#include "dlsim/accumulate.h"

#include <algorithm>

#include "dlsim/convert.h"
#include "src/base/check.h"
#include "src/base/parallel.h"
#include "src/sums/accumulators.h"
#include "src/sums/input_sets.h"
#include "src/sums/sum_terms.h"

namespace dlsim {
namespace {

// Terms that one thread sums at a time.
constexpr uint64_t kTermsPerTask = 1 << 14;

void CheckOptions(std::span<const AccumulationOptions> options) {
  for (const AccumulationOptions& o : options) {
    DLSIM_CHECK(o.chunk_length > 0);
    DLSIM_CHECK(o.accumulator.kind != Precision::Kind::kExact);
    DLSIM_CHECK(o.combiner.kind != Precision::Kind::kExact);
    for (const Precision& precision : {o.inputs, o.terms, o.accumulator, o.combiner}) {
      const bool narrow = precision.conversion.format.mantissa_bits <= kMaxAccumulatorMantissa;
      DLSIM_CHECK(precision.kind != Precision::Kind::kFormat || narrow);
    }
  }
}

uint64_t CountChunks(uint64_t length, uint64_t chunk_length) {
  return length / chunk_length + (length % chunk_length != 0 ? 1 : 0);
}

// As ParallelFor, but work that is done before other threads awake stays on this one.
template <class Body>
void ForTasks(size_t count, uint64_t terms, const Body& body) {
  if (terms >= kTermsPerTask) return ParallelFor(count, body);
  const DefaultFloatEnvironment environment;
  for (size_t i = 0; i < count; ++i) body(i);
}

// Sums the terms of one chunk, [begin, end).
template <class Rounder, class Terms>
PartialSum SumChunk(const Rounder& rounder, const Terms& terms, uint64_t begin, uint64_t end,
                    RandomSequence& random) {
  PartialSum partial;
  for (uint64_t i = begin; i < end; ++i) {
    uint32_t bits = 0;
    if constexpr (Rounder::kUsesRandom) bits = random(terms.Index(i));
    const auto term = terms.Term(i);
    partial.counts.overflows += term.overflows;
    AddTo(rounder, term.value, bits, partial);
  }
  return partial;
}

// Adds partial sums; `first_chunk` is the index of the first in the random stream.
PartialSum Combine(std::span<const float> partials, uint64_t first_chunk,
                   const AccumulationOptions& options) {
  if (partials.empty()) return {};
  if (partials.size() == 1) return {partials.front(), {}};
  return WithRounder(options.combiner, [&]<class Rounder>(const Rounder& rounder) {
    RandomSequence random(options.random, kChunkStream);
    PartialSum total;
    for (size_t j = 0; j < partials.size(); ++j) {
      uint32_t bits = 0;
      if constexpr (Rounder::kUsesRandom) bits = random(first_chunk + j);
      AddTo(rounder, partials[j], bits, total);
    }
    return total;
  });
}

// Calls body(terms) with the products of two arrays.
template <class Body>
auto WithProducts(const ExactProducts& exact, const AccumulationOptions& options,
                  const Body& body) {
  if (options.terms.kind == Precision::Kind::kExact) return body(exact);
  return body(RoundedProducts(exact, options));
}

// Consecutive chunks of the one sum of one of several options.
struct ChunkTask {
  size_t option = 0;
  uint64_t first = 0, last = 0;
  AdditionCounts counts;
};

std::vector<ChunkTask> CutIntoTasks(uint64_t length, std::span<const AccumulationOptions> options) {
  std::vector<ChunkTask> tasks;
  for (size_t o = 0; o < options.size(); ++o) {
    const uint64_t chunks = CountChunks(length, options[o].chunk_length);
    const uint64_t per_task = std::max<uint64_t>(kTermsPerTask / options[o].chunk_length, 1);
    for (uint64_t first = 0; first < chunks; first += per_task) {
      tasks.push_back({o, first, std::min(chunks, first + per_task), {}});
    }
  }
  return tasks;
}

// One sum per options. with_terms(o, body) calls body(terms) with the terms of the o-th options.
template <class WithTerms>
std::vector<Accumulated> SumOnce(uint64_t length, std::span<const AccumulationOptions> options,
                                 const WithTerms& with_terms) {
  std::vector<std::vector<float>> partials;
  for (const AccumulationOptions& o : options) {
    partials.emplace_back(CountChunks(length, o.chunk_length));
  }
  std::vector<ChunkTask> tasks = CutIntoTasks(length, options);
  ForTasks(tasks.size(), length * options.size(), [&](size_t t) {
    ChunkTask& task = tasks[t];
    const AccumulationOptions& o = options[task.option];
    RandomSequence random(o.random, kPartialStream);
    WithRounder(o.accumulator, [&](const auto& rounder) {
      with_terms(task.option, [&](const auto& terms) {
        for (uint64_t j = task.first; j < task.last; ++j) {
          const uint64_t begin = j * o.chunk_length;
          const uint64_t end = begin + std::min(o.chunk_length, length - begin);
          const PartialSum partial = SumChunk(rounder, terms, begin, end, random);
          partials[task.option][j] = partial.sum;
          task.counts.Merge(partial.counts);
        }
      });
    });
  });
  std::vector<Accumulated> results(options.size());
  for (const ChunkTask& task : tasks) results[task.option].counts.Merge(task.counts);
  for (size_t o = 0; o < options.size(); ++o) {
    const DefaultFloatEnvironment environment;
    const PartialSum total = Combine(partials[o], 0, options[o]);
    results[o].values = {total.sum};
    results[o].counts.Merge(total.counts);
  }
  return results;
}

// The sums of one option's outputs [first, last), one after another.
template <class WithTerms>
AdditionCounts SumOutputs(uint64_t first, uint64_t last, uint64_t length,
                          const AccumulationOptions& options, const WithTerms& with_terms,
                          std::span<float> results) {
  AdditionCounts counts;
  const uint64_t chunks = CountChunks(length, options.chunk_length);
  std::vector<float> partials(chunks);
  RandomSequence random(options.random, kPartialStream);
  WithRounder(options.accumulator, [&](const auto& rounder) {
    for (uint64_t output = first; output < last; ++output) {
      with_terms(output, [&](const auto& terms) {
        for (uint64_t j = 0; j < chunks; ++j) {
          const uint64_t begin = j * options.chunk_length;
          const uint64_t end = begin + std::min(options.chunk_length, length - begin);
          const PartialSum partial = SumChunk(rounder, terms, begin, end, random);
          partials[j] = partial.sum;
          counts.Merge(partial.counts);
        }
      });
      const PartialSum total = Combine(partials, output * chunks, options);
      results[output] = total.sum;
      counts.Merge(total.counts);
    }
  });
  return counts;
}

// Many sums of `length` terms per options. with_terms(o, output, body) calls body(terms).
template <class WithTerms>
std::vector<Accumulated> SumMany(uint64_t outputs, uint64_t length,
                                 std::span<const AccumulationOptions> options,
                                 const WithTerms& with_terms) {
  std::vector<Accumulated> results(options.size());
  for (Accumulated& result : results) result.values.resize(outputs);
  const uint64_t per_task = std::max<uint64_t>(kTermsPerTask / std::max<uint64_t>(length, 1), 1);
  const uint64_t ranges = CountChunks(outputs, per_task);
  std::vector<AdditionCounts> counts(options.size() * ranges);
  ForTasks(counts.size(), outputs * length * options.size(), [&](size_t task) {
    const size_t o = task / ranges;
    const uint64_t first = task % ranges * per_task;
    const uint64_t last = std::min(outputs, first + per_task);
    counts[task] = SumOutputs(
        first, last, length, options[o],
        [&](uint64_t output, const auto& body) { with_terms(o, output, body); }, results[o].values);
  });
  for (size_t task = 0; task < counts.size(); ++task) {
    results[task / ranges].counts.Merge(counts[task]);
  }
  return results;
}

std::vector<Accumulated> SumProducts(const InputSets& a, const InputSets& b, uint64_t length,
                                     std::span<const AccumulationOptions> options) {
  return SumOnce(length, options, [&](size_t o, const auto& body) {
    WithProducts(ExactProducts{a.Of(o).data(), b.Of(o).data()}, options[o], body);
  });
}

}  // namespace

std::vector<float> RoundInputs(std::span<const float> values, const Precision& precision,
                               const RandomStream& random) {
  std::vector<float> rounded(values.begin(), values.end());
  if (precision.kind != Precision::Kind::kFormat) return rounded;
  std::vector<uint32_t> codes(values.size());
  EncodeArray({precision.conversion, 1.0f, random, 0}, values, std::span(codes));
  DecodeArray(precision.conversion.format, std::span<const uint32_t>(codes), rounded);
  return rounded;
}

std::vector<Accumulated> Sum(std::span<const float> values,
                             std::span<const AccumulationOptions> options) {
  CheckOptions(options);
  const InputSets inputs(values, options, 0);
  return SumOnce(values.size(), options, [&](size_t o, const auto& body) {
    body(ElementTerms{inputs.Of(o).data(), 1, 0});
  });
}

std::vector<Accumulated> SumOfSquares(std::span<const float> values,
                                      std::span<const AccumulationOptions> options) {
  CheckOptions(options);
  const InputSets inputs(values, options, 0);
  return SumProducts(inputs, inputs, values.size(), options);
}

std::vector<Accumulated> Dot(std::span<const float> a, std::span<const float> b,
                             std::span<const AccumulationOptions> options) {
  CheckOptions(options);
  CheckLength("Dot", "b", a.size(), b.size());
  return SumProducts(InputSets(a, options, 0), InputSets(b, options, 1), a.size(), options);
}

std::vector<Accumulated> SumAxis(std::span<const float> values, const AxisShape& shape,
                                 std::span<const AccumulationOptions> options) {
  CheckOptions(options);
  CheckLength("SumAxis", "values", shape.outer * shape.length * shape.inner, values.size());
  const InputSets inputs(values, options, 0);
  return SumMany(shape.outer * shape.inner, shape.length, options,
                 [&](size_t o, uint64_t output, const auto& body) {
                   const uint64_t outer = output / shape.inner;
                   const uint64_t first = outer * shape.length * shape.inner + output % shape.inner;
                   body(ElementTerms{inputs.Of(o).data(), shape.inner, first});
                 });
}

std::vector<Accumulated> MatMul(std::span<const float> a, std::span<const float> b,
                                const MatMulShape& shape,
                                std::span<const AccumulationOptions> options) {
  CheckOptions(options);
  CheckLength("MatMul", "a", shape.rows * shape.depth, a.size());
  CheckLength("MatMul", "b", shape.depth * shape.columns, b.size());
  const InputSets inputs_a(a, options, 0), inputs_b(b, options, 1);
  return SumMany(shape.rows * shape.columns, shape.depth, options,
                 [&](size_t o, uint64_t output, const auto& body) {
                   const uint64_t row = output / shape.columns, column = output % shape.columns;
                   ExactProducts products = {inputs_a.Of(o).data(), inputs_b.Of(o).data()};
                   products.first_a = row * shape.depth;
                   products.first_b = column;
                   products.stride_b = shape.columns;
                   products.first_index = output * shape.depth;
                   WithProducts(products, options[o], body);
                 });
}

}  // namespace dlsim
