// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/measure_work.h"

#include <algorithm>
#include <utility>

namespace dlsim::gpu {

// What a batch sends, in this order: pieces, scales of its tensors if a question has some, and the
// elements. The tensors of a batch have numbers of their own, so that only their scales are sent.
struct MeasureWork::Input {
  Input(const StepWork& work, const StepBatch& batch, bool has_tensor_scales) {
    for (const Block& block : batch.blocks) {
      if (tensors.empty() || tensors.back() != block.tensor) tensors.push_back(block.tensor);
    }
    const size_t scale_count = has_tensor_scales ? work.questions.size() * tensors.size() : 0;
    scales = AlignStaged(batch.parts.size() * sizeof(Piece));
    elements = AlignStaged(scales + scale_count * sizeof(float));
    bytes = elements + batch.staged_bytes;
  }

  std::vector<size_t> tensors;
  size_t scales = 0, elements = 0, bytes = 0;  // offsets, and the size
};

// What comes back, in this order: as DeviceAnswers.
struct MeasureWork::Output {
  Output(const StepWork& work, size_t blocks, bool has_details)
      : questions(work.questions.size()),
        parts(work.micro_steps.size()),
        details(has_details ? questions : 0),
        effective(blocks * questions * parts * sizeof(TensorStats)),
        scaled(effective + blocks * questions * sizeof(double)),
        detail(scaled + blocks * questions * sizeof(double)),
        bytes(detail + blocks * details * sizeof(GradientDetail)) {}

  DeviceAnswers At(std::byte* memory) const {
    return {reinterpret_cast<TensorStats*>(memory), reinterpret_cast<double*>(memory + effective),
            reinterpret_cast<double*>(memory + scaled),
            details == 0 ? nullptr : reinterpret_cast<GradientDetail*>(memory + detail)};
  }
  BlockAnswer Of(size_t block, std::byte* memory) const {
    const DeviceAnswers all = At(memory);
    const size_t first = block * questions;
    return {{all.parts + first * parts, questions * parts},
            {all.effective + first, questions},
            {all.scaled + first, questions},
            {all.details + block * details, details}};
  }

  size_t questions, parts, details;         // of a block
  size_t effective, scaled, detail, bytes;  // offsets, and the size
};

MeasureWork::MeasureWork(int device, SlotRing& slots, const StepWork& work, OnAnswer on_answer)
    : device_(device), slots_(slots), work_(work), on_answer_(std::move(on_answer)) {
  for (const StepQuestion& question : work_.questions) {
    has_details_ |= question.detail.has_value();
    has_tensor_scales_ |= !question.tensor_scales.empty();
    is_stochastic_ |= question.conversion.rounding == Rounding::kStochastic;
  }
}

void MeasureWork::Add(std::span<const Block> blocks) {
  if (work_.questions.empty()) return;
  const CurrentDevice current(device_);
  const size_t output_per_block = Output(work_, 1, has_details_).bytes;
  while (!blocks.empty()) Send(TakeBatch(work_, blocks, output_per_block));
}

void MeasureWork::Finish() {
  const CurrentDevice current(device_);
  slots_.get().Finish();
}

void MeasureWork::Send(const StepBatch& batch) {
  const Input input(work_, batch, has_tensor_scales_);
  const Output output(work_, batch.blocks.size(), has_details_);
  SlotRing& slots = slots_.get();
  Slot& slot = slots.Next(input.bytes, output.bytes);
  Fill(batch, input, slot);
  slot.Send(input.bytes);
  const DeviceBlocks blocks = {reinterpret_cast<const Piece*>(slot.device_input()),
                               static_cast<uint32_t>(batch.blocks.size()),
                               static_cast<uint32_t>(work_.micro_steps.size())};
  LaunchMeasureBlocks(blocks, QuestionsOf(input, slot), output.At(slot.device_output()),
                      slot.stream());
  slot.Fetch(output.bytes);
  std::vector<size_t> tensors;
  for (const Block& block : batch.blocks) tensors.push_back(block.tensor);
  slots.Submit(slot, [this, tensors = std::move(tensors), output, results = slot.host_output()] {
    Deliver(tensors, output, results);
  });
}

void MeasureWork::Fill(const StepBatch& batch, const Input& input, const Slot& slot) const {
  const size_t part_count = work_.micro_steps.size();
  Piece* piece = reinterpret_cast<Piece*>(slot.host_input());
  uint32_t tensor = 0;  // in the batch
  for (size_t b = 0; b < batch.blocks.size(); ++b) {
    const Block& block = batch.blocks[b];
    if (input.tensors[tensor] != block.tensor) ++tensor;
    for (size_t part = 0; part < part_count; ++part, ++piece) {
      *piece =
          PieceOf(block, batch.parts[b * part_count + part], slot.device_input() + input.elements);
      piece->tensor = tensor;
      if (is_stochastic_) piece->random_stream = work_.StreamOf(block.tensor, part);
    }
  }
  float* scale = reinterpret_cast<float*>(slot.host_input() + input.scales);
  for (const StepQuestion& question : work_.questions) {
    if (!has_tensor_scales_) break;
    for (const size_t t : input.tensors) *scale++ = question.ScaleOf(t);
  }
  StageBlocks(work_, batch.blocks, batch.parts, slot.host_input() + input.elements);
}

std::vector<DeviceQuestion> MeasureWork::QuestionsOf(const Input& input, const Slot& slot) const {
  const float* scales = reinterpret_cast<const float*>(slot.device_input() + input.scales);
  std::vector<DeviceQuestion> questions;
  for (const StepQuestion& asked : work_.questions) {
    DeviceQuestion& question = questions.emplace_back();
    question.conversion = asked.conversion;
    question.scale = asked.scale;
    if (!asked.tensor_scales.empty()) question.tensor_scales = scales;
    if (has_tensor_scales_) scales += input.tensors.size();
    question.seed = work_.options->seed;
    question.has_detail = asked.detail.has_value();
    if (asked.detail) question.detail = *asked.detail;
  }
  return questions;
}

void MeasureWork::Deliver(std::span<const size_t> tensors, const Output& output,
                          std::byte* results) const {
  for (size_t b = 0; b < tensors.size(); ++b) on_answer_(tensors[b], output.Of(b, results));
}

}  // namespace dlsim::gpu
