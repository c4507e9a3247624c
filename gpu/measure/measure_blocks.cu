// SPDX-License-Identifier: Apache-2.0
// Measures blocks of a step with several parts: the twin of BlockMeasurer in measure_step.cc. The
// parts are measured as pieces; a second kernel converts them once more, for the sums over
// parts, which then need no memory.
#include <cstddef>
#include <cstdint>

#include "gpu/base/launch.h"
#include "gpu/measure/measure_element.cuh"
#include "gpu/measure/measure_kernels.h"
#include "gpu/measure/measure_pieces.cuh"
#include "gpu/measure/measure_pieces.h"

namespace dlsim::gpu {
namespace {

struct SumLaunch {
  const Piece* pieces = nullptr;
  uint32_t parts = 1;  // per block
  uint32_t question_count = 0;
  KernelQuestion question;
  bool has_detail = false;
  DetailQuestion detail = {};
  double* effective = nullptr;
  double* scaled = nullptr;
  GradientDetail* details = nullptr;

  DLSIM_HOST_DEVICE size_t AnswerOf(uint32_t block) const {
    return static_cast<size_t>(block) * question_count + question.index;
  }
};

// An element of the step's gradient, over its parts.
struct GradientElement {
  float unscaled = 0, scaled = 0;
};

// Adds in float32 what the conversion makes of each part.
__device__ GradientElement AddParts(const SumLaunch& launch, const Piece* pieces,
                                    const Scaling& scaling, uint32_t i) {
  const KernelQuestion& question = launch.question;
  GradientElement sum;
  for (uint32_t part = 0; part < launch.parts; ++part) {
    const Piece& piece = pieces[part];
    if (piece.values == nullptr || i >= piece.count) continue;
    const float value = LoadValue(piece, i);
    const bool stochastic = question.rounding == Rounding::kStochastic;
    const uint32_t random =
        stochastic ? RandomBits(question.RandomOf(piece), piece.first_index + i) : 0;
    const EncodeResult result =
        Encode(question.spec, question.rounding, BitCast<uint32_t>(value * scaling.scale), random);
    const float decoded = BitCast<float>(Decode(question.spec, result.code));
    sum.unscaled += decoded * scaling.inverse;
    sum.scaled += decoded;
  }
  return sum;
}

// What is found out of a chunk of the gradient.
struct ChunkSumsOfStep {
  double effective, scaled;
  double detail_sum, detail_sum_of_squares;
  uint64_t below_edge, above_edge, above_limit;
  uint32_t absmax_bits;
};

// The counters of GradientDetail for one lane.
struct LaneDetail {
  uint32_t below_edge = 0, above_edge = 0, above_limit = 0;
  uint32_t absmax_bits = 0;  // beyond infinity for NaN

  __device__ void Add(const DetailQuestion& question, const GradientElement& element) {
    const float unscaled = fabsf(element.unscaled), scaled = fabsf(element.scaled);
    const float limited = question.limit_domain == ClipDomain::kUnscaled ? unscaled : scaled;
    below_edge += scaled < question.edge ? 1 : 0;
    above_edge += scaled >= question.edge ? 1 : 0;
    above_limit += limited > question.limit ? 1 : 0;
    const uint32_t bits = BitCast<uint32_t>(unscaled);
    absmax_bits = bits > absmax_bits ? bits : absmax_bits;
  }
};

// Adds the first `count` of a row of scaled elements in index order: lane 0 the elements, lane 1
// their squares.
__device__ void AddRowInOrder(const float* row, uint32_t count, uint32_t lane, double& sum) {
  if (lane > 1) return;
  for (uint32_t i = 0; i < count; ++i) {
    const double value = double{row[i]};
    sum += lane == 0 ? value : value * value;
  }
}

// `row` is the warp's.
__device__ ChunkSumsOfStep SumChunk(const SumLaunch& launch, const WarpChunk& chunk, float* row) {
  const Scaling scaling = MakeScaling(launch.question.ScaleOf(chunk.piece()));
  double effective = 0, scaled = 0, in_order = 0;
  LaneDetail detail;
  for (uint32_t begin = chunk.begin; begin < chunk.end; begin += kWarp) {
    const uint32_t i = begin + chunk.lane;
    GradientElement element;
    if (i < chunk.end) {
      element = AddParts(launch, chunk.pieces, scaling, i);
      AddSquare(element.unscaled, effective);
      AddSquare(element.scaled, scaled);
      if (launch.has_detail) detail.Add(launch.detail, element);
    }
    if (!launch.has_detail) continue;
    row[chunk.lane] = element.scaled;
    __syncwarp();
    AddRowInOrder(row, chunk.end - begin < kWarp ? chunk.end - begin : kWarp, chunk.lane, in_order);
    __syncwarp();
  }
  ChunkSumsOfStep sums;
  sums.effective = AddLanesOfWarp(effective);
  sums.scaled = AddLanesOfWarp(scaled);
  sums.below_edge = AddCounts(detail.below_edge);
  sums.above_edge = AddCounts(detail.above_edge);
  sums.above_limit = AddCounts(detail.above_limit);
  sums.absmax_bits = LargestBits(detail.absmax_bits);
  sums.detail_sum = __shfl_sync(kAllLanes, in_order, 0);
  sums.detail_sum_of_squares = __shfl_sync(kAllLanes, in_order, 1);
  return sums;
}

__device__ void MergeChunk(const ChunkSumsOfStep& chunk, uint32_t elements, GradientDetail& into) {
  GradientDetail detail;
  detail.scaled_sum = chunk.detail_sum;
  detail.scaled_sum_of_squares = chunk.detail_sum_of_squares;
  const uint32_t infinity = codec::kInfinityBits;
  detail.absmax = BitCast<float>(chunk.absmax_bits < infinity ? chunk.absmax_bits : infinity);
  detail.below_edge = chunk.below_edge;
  detail.above_edge = chunk.above_edge;
  detail.above_limit = chunk.above_limit;
  detail.elements = elements;
  into.Merge(detail);
}

// The sums over the parts of a block, for one question.
__global__ void __launch_bounds__(kMeasureThreads, 2) SumPartsKernel(SumLaunch launch) {
  __shared__ ChunkSumsOfStep chunks[kChunksPerBlock];
  __shared__ float rows[kChunksPerBlock][kWarp];
  const Piece* const pieces = launch.pieces + static_cast<size_t>(blockIdx.x) * launch.parts;
  const uint32_t count = LongestCount(pieces, launch.parts);
  const WarpChunk chunk = MakeWarpChunk(pieces, count);
  const ChunkSumsOfStep sums = SumChunk(launch, chunk, rows[chunk.warp]);
  if (chunk.lane == 0) chunks[chunk.warp] = sums;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double effective = 0, scaled = 0;
  GradientDetail detail;
  for (uint32_t c = 0; c * kChunk < count; ++c) {
    effective += chunks[c].effective;
    scaled += chunks[c].scaled;
    const uint32_t rest = count - c * kChunk;
    if (launch.has_detail) MergeChunk(chunks[c], rest < kChunk ? rest : kChunk, detail);
  }
  const size_t at = launch.AnswerOf(blockIdx.x);
  launch.effective[at] = CanonicalNan(effective);
  launch.scaled[at] = CanonicalNan(scaled);
  if (launch.details == nullptr) return;
  detail.scaled_sum = CanonicalNan(detail.scaled_sum);
  detail.scaled_sum_of_squares = CanonicalNan(detail.scaled_sum_of_squares);
  launch.details[at] = detail;
}

// Where there is but one part and no detail, its results have the sum.
__global__ void CopySumsKernel(const TensorStats* parts, uint32_t block_count, SumLaunch launch) {
  const uint32_t block = blockIdx.x * blockDim.x + threadIdx.x;
  if (block >= block_count) return;
  const size_t at = launch.AnswerOf(block);
  launch.effective[at] = parts[at].quantized_sum_of_squares;
  launch.scaled[at] = 0;
  if (launch.details != nullptr) launch.details[at] = GradientDetail();
}

void LaunchSums(const DeviceBlocks& blocks, const SumLaunch& launch, const TensorStats* parts,
                Stream stream) {
  if (launch.parts == 1 && !launch.has_detail) {
    constexpr uint32_t kThreads = 256;
    const uint64_t grid = (uint64_t{blocks.block_count} + kThreads - 1) / kThreads;
    Launch("CopySumsKernel", CopySumsKernel, {grid, kThreads}, stream, parts, blocks.block_count,
           launch);
  } else {
    Launch("SumPartsKernel", SumPartsKernel, {blocks.block_count, kMeasureThreads}, stream, launch);
  }
}

}  // namespace

void LaunchMeasureBlocks(const DeviceBlocks& blocks, std::span<const DeviceQuestion> questions,
                         const DeviceAnswers& answers, Stream stream) {
  PieceLaunch pieces;
  pieces.pieces = blocks.pieces;
  pieces.piece_count = blocks.block_count * blocks.part_count;
  pieces.pieces_per_group = blocks.part_count;
  pieces.question_count = static_cast<uint32_t>(questions.size());
  pieces.results = answers.parts;
  LaunchPieces(pieces, questions, stream);
  for (size_t q = 0; q < questions.size(); ++q) {
    SumLaunch sums;
    sums.pieces = blocks.pieces;
    sums.parts = blocks.part_count;
    sums.question_count = pieces.question_count;
    sums.question = MakeKernelQuestion(questions[q], q);
    sums.has_detail = questions[q].has_detail;
    sums.detail = questions[q].detail;
    sums.effective = answers.effective;
    sums.scaled = answers.scaled;
    sums.details = answers.details;
    LaunchSums(blocks, sums, answers.parts, stream);
  }
}

}  // namespace dlsim::gpu
