// SPDX-License-Identifier: Apache-2.0
#include "gpu/measure/measure_pieces.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gpu/base/launch.h"
#include "gpu/measure/measure_pieces.cuh"

namespace dlsim::gpu {
namespace {

template <Rounding kRounding>
void LaunchMode(const PieceLaunch& launch, const KernelQuestion& question, Stream stream) {
  Launch("MeasureKernel", MeasureKernel<kRounding>, {launch.piece_count, kMeasureThreads}, stream,
         launch, question);
}

void LaunchAlone(const PieceLaunch& launch, const KernelQuestion& question, Stream stream) {
  switch (question.rounding) {
    case Rounding::kNearestEven:
      return LaunchMode<Rounding::kNearestEven>(launch, question, stream);
    case Rounding::kTowardZero:
      return LaunchMode<Rounding::kTowardZero>(launch, question, stream);
    case Rounding::kNearestAway:
      return LaunchMode<Rounding::kNearestAway>(launch, question, stream);
    case Rounding::kTowardPositive:
      return LaunchMode<Rounding::kTowardPositive>(launch, question, stream);
    case Rounding::kTowardNegative:
      return LaunchMode<Rounding::kTowardNegative>(launch, question, stream);
    case Rounding::kStochastic:
      return LaunchMode<Rounding::kStochastic>(launch, question, stream);
  }
}

// Collects questions until there are enough for a launch.
class PlainLauncher {
 public:
  PlainLauncher(const PieceLaunch& launch, Stream stream) : launch_(launch), stream_(stream) {}

  void Add(const KernelQuestion& question) {
    waiting_.of[count_++] = question;
    if (count_ == kMost) Flush();
  }

  void Flush() {
    uint32_t done = 0;
    while (done < count_) {
      const uint32_t left = count_ - done;
      if (left >= 4)
        done += LaunchNext<4>(done);
      else if (left >= 2)
        done += LaunchNext<2>(done);
      else
        done += LaunchNext<1>(done);
    }
    count_ = 0;
  }

 private:
  static constexpr uint32_t kMost = 4;

  template <uint32_t kQuestions>
  uint32_t LaunchNext(uint32_t first) {
    QuestionSet<kQuestions> set;
    std::copy_n(waiting_.of + first, kQuestions, set.of);
    const bool flushes = std::any_of(set.of, set.of + kQuestions, [](const KernelQuestion& q) {
      return q.floats.flush_below > 0;
    });
    const auto kernel =
        flushes ? MeasurePlainKernel<kQuestions, true> : MeasurePlainKernel<kQuestions, false>;
    Launch("MeasurePlainKernel", kernel, {launch_.piece_count, kMeasureThreads}, stream_, launch_,
           set);
    return kQuestions;
  }

  const PieceLaunch& launch_;
  Stream stream_;
  QuestionSet<kMost> waiting_;
  uint32_t count_ = 0;
};

}  // namespace

void LaunchPieces(const PieceLaunch& launch, std::span<const DeviceQuestion> questions,
                  Stream stream) {
  PlainLauncher plain(launch, stream);
  for (size_t q = 0; q < questions.size(); ++q) {
    const KernelQuestion question = MakeKernelQuestion(questions[q], q);
    if (question.floats.applies && question.rounding == Rounding::kNearestEven) {
      plain.Add(question);
    } else {
      LaunchAlone(launch, question, stream);
    }
  }
  plain.Flush();
}

void LaunchMeasure(const Piece* pieces, uint32_t piece_count,
                   std::span<const DeviceQuestion> questions, TensorStats* results, Stream stream) {
  PieceLaunch launch;
  launch.pieces = pieces;
  launch.piece_count = piece_count;
  launch.pieces_per_group = piece_count;
  launch.question_count = static_cast<uint32_t>(questions.size());
  launch.results = results;
  LaunchPieces(launch, questions, stream);
}

}  // namespace dlsim::gpu
