// SPDX-License-Identifier: Apache-2.0
#include "src/profile/step_code.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/profile/bits.h"
#include "src/profile/bytes.h"
#include "src/profile/compress.h"
#include "src/profile/curve_code.h"
#include "src/profile/histogram_columns.h"
#include "src/profile/loss_code.h"

namespace dlsim {
namespace {

// Far beyond any model; a damaged size is refused before it is allocated.
constexpr uint64_t kMaxBytes = uint64_t{1} << 28;

void RequireSize(size_t size, int64_t step) {
  if (size <= kMaxBytes) return;
  throw InputError("step " + std::to_string(step), "too large for a profile",
                   "at most " + std::to_string(kMaxBytes) + " bytes of names and totals",
                   std::to_string(size));
}

bool HasContent(const ProfileFile& file) { return file.content != 0; }

// What a file held is not known of gradients that were in memory.
std::string EncodeHead(const ProfileStep& step) {
  std::string head;
  for (const int64_t micro : step.micro_steps) PutVarint(ZigZag(micro), head);
  PutVarint(step.metadata.size(), head);
  for (const auto& [key, value] : step.metadata) {
    PutString(key, head);
    PutString(value, head);
  }
  PutVarint(step.files.size(), head);
  for (const ProfileFile& file : step.files) {
    PutString(file.name, head);
    PutVarint(file.bytes, head);
  }
  if (std::ranges::none_of(step.files, HasContent)) return head;
  for (const ProfileFile& file : step.files) PutWord(file.content, sizeof(file.content), head);
  return head;
}

void TakeHead(ByteReader& head, size_t parts, ProfileStep& step) {
  for (size_t i = 0; i < parts; ++i) step.micro_steps.push_back(head.Signed());
  for (size_t count = head.Count(2); count > 0; --count) {
    std::string key = head.String();
    head.Require(step.metadata.empty() || step.metadata.rbegin()->first < key,
                 "damaged: metadata out of order");
    step.metadata.emplace_hint(step.metadata.end(), std::move(key), head.String());
  }
  for (size_t count = head.Count(2); count > 0; --count) {
    std::string name = head.String();
    step.files.push_back({std::move(name), head.Varint(), 0});
  }
  if (!head.rest().empty()) {
    for (ProfileFile& file : step.files) file.content = head.Word(sizeof(file.content));
    head.Require(std::ranges::any_of(step.files, HasContent), "damaged: no hash of any file");
  }
  head.RequireEnd();
}

std::string EncodeTensors(const std::vector<ProfileTensor>& tensors, int64_t step) {
  std::string list;
  PutVarint(tensors.size(), list);
  for (const ProfileTensor& tensor : tensors) {
    PutString(tensor.name, list);
    list.push_back(static_cast<char>(tensor.role));
    list.push_back(static_cast<char>(tensor.dtype));
    PutVarint(tensor.shape.size(), list);
    for (const uint64_t size : tensor.shape) PutVarint(size, list);
  }
  RequireSize(list.size(), step);
  std::string bytes;
  PutCompressed(list, bytes);
  return bytes;
}

// Most steps have the tensors of the step before; compressing them takes longer than comparing.
const std::string& EncodedTensors(const ProfileStep& step) {
  thread_local std::vector<ProfileTensor> tensors;
  thread_local std::string encoded;
  if (encoded.empty() || tensors != step.tensors) {
    encoded = EncodeTensors(step.tensors, step.step);
    tensors = step.tensors;
  }
  return encoded;
}

std::string EncodeTotals(const ProfileStep& step, const HistogramEdges& edges) {
  const ProfileTotals totals = TotalsOf(step);
  std::vector<const Histogram*> histograms;
  for (const Histogram& histogram : totals.gradients) histograms.push_back(&histogram);
  for (const Histogram& histogram : totals.activations) histograms.push_back(&histogram);
  std::string columns, bytes;
  PutVarint(ZigZag(step.step), columns);
  PutVarint(step.micro_steps.size(), columns);
  PutString(EncodeHead(step), columns);
  BitWriter bits;
  PutHistograms(histograms, edges, columns, bits);
  RequireSize(columns.size(), step.step);
  PutCompressed(columns, bytes);
  return bytes + bits.Take();
}

std::string EncodeHistograms(const ProfileStep& step, const HistogramEdges& edges) {
  std::vector<const Histogram*> histograms;
  for (const std::vector<Histogram>& part : step.histograms) {
    DLSIM_CHECK(part.size() == step.tensors.size());
    for (const Histogram& histogram : part) histograms.push_back(&histogram);
  }
  std::string columns, bytes;
  BitWriter bits;
  PutHistograms(histograms, edges, columns, bits);
  DLSIM_CHECK(step.channels.empty() || step.channels.size() == step.tensors.size());
  PutCurves(step.channels, columns);
  if (step.channels.empty() && !step.scaled.empty()) {  // curves come before losses
    PutCurves(std::vector<ChannelCurves>(step.tensors.size()), columns);
  }
  PutLosses(step.scaled, columns);
  PutCompressed(columns, bytes);
  return bytes + bits.Take();
}

// The number of a step, of its parts, and the bytes of its head.
struct Opening {
  int64_t step = 0;
  size_t parts = 0;
  std::string_view head;
};

Opening TakeOpening(ByteReader& columns) {
  const int64_t step = columns.Signed();
  const size_t parts = columns.Count();
  return {step, parts, columns.Take(columns.Varint())};
}

// Several recordings may differ in shape; one cannot.
void RequireElements(const ByteReader& in, const ProfileStep& step) {
  if (step.histograms.size() != 1 || step.files.size() > 1) return;
  for (size_t t = 0; t < step.tensors.size(); ++t) {
    uint128_t elements = 1;
    for (const uint64_t size : step.tensors[t].shape) {
      elements *= size;
      in.Require(elements >> 64 == 0, "damaged: a tensor of too many elements");
    }
    in.Require(elements == step.histograms[0][t].elements,
               "damaged: a histogram of more or fewer elements than its tensor");
  }
}

}  // namespace

EncodedStep EncodeStep(const ProfileStep& step, const HistogramEdges& edges) {
  DLSIM_CHECK(step.histograms.size() == step.micro_steps.size());
  const std::string totals = EncodeTotals(step, edges);
  const std::string histograms = EncodeHistograms(step, edges);
  return {step.step, EncodedTensors(step), JoinStep({totals, histograms})};
}

StepParts SplitStep(const std::string& place, std::string_view bytes) {
  ByteReader in(place, bytes);
  const std::string_view totals = in.Take(in.Varint());
  return {totals, in.rest()};
}

std::string JoinStep(const StepParts& parts) {
  std::string bytes;
  PutString(parts.totals, bytes);
  return bytes.append(parts.histograms);
}

std::vector<ProfileTensor> DecodeTensors(const std::string& place, std::string_view bytes) {
  constexpr size_t kLeastTensor = 4;
  ByteReader packed(place, bytes);
  const std::string list = TakeCompressed(packed, kMaxBytes);
  packed.RequireEnd();
  ByteReader in(place, list);
  std::vector<ProfileTensor> tensors(in.Count(kLeastTensor));
  for (ProfileTensor& tensor : tensors) {
    tensor.name = in.String();
    const uint8_t role = in.Byte(), dtype = in.Byte();
    in.Require(
        role <= static_cast<uint8_t>(Role::kValue) && dtype <= static_cast<uint8_t>(DType::kBF16),
        "damaged: a tensor of no known type");
    tensor.role = static_cast<Role>(role);
    tensor.dtype = static_cast<DType>(dtype);
    tensor.shape.resize(in.Count());
    for (uint64_t& size : tensor.shape) size = in.Varint();
  }
  in.RequireEnd();
  return tensors;
}

ProfileTotals DecodeTotals(const std::string& place, std::string_view totals,
                           const HistogramEdges& edges) {
  ByteReader packed(place, totals);
  const std::string raw = TakeCompressed(packed, kMaxBytes);
  ByteReader columns(place, raw);
  const Opening opening = TakeOpening(columns);
  BitReader bits(place, packed.rest());
  std::vector<Histogram> all = TakeHistograms(2 * opening.parts, edges, columns, bits);
  columns.RequireEnd();
  bits.RequireEnd();
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(opening.parts);
  ProfileTotals result;
  result.step = opening.step;
  result.gradients.assign(std::move_iterator(all.begin()), std::move_iterator(middle));
  result.activations.assign(std::move_iterator(middle), std::move_iterator(all.end()));
  return result;
}

ProfileStep DecodeHead(const std::string& place, std::string_view totals) {
  ByteReader packed(place, totals);
  const std::string raw = TakeCompressed(packed, kMaxBytes);
  ByteReader columns(place, raw);
  const Opening opening = TakeOpening(columns);
  ByteReader head(place, opening.head);
  ProfileStep step;
  step.step = opening.step;
  TakeHead(head, opening.parts, step);
  return step;
}

ProfileStep DecodeStep(const std::string& place, const StepParts& parts,
                       const std::vector<ProfileTensor>& tensors, const HistogramEdges& edges,
                       size_t scaled_formats) {
  ProfileStep step = DecodeHead(place, parts.totals);
  step.tensors = tensors;
  ByteReader packed(place, parts.histograms);
  const size_t count = step.micro_steps.size() * tensors.size();
  uint64_t most = MaxColumnBytes(count, edges);
  most += std::min(MaxCurveBytes(tensors.size()), ~most);
  most += std::min(MaxLossBytes(scaled_formats, tensors.size()), ~most);
  const std::string raw = TakeCompressed(packed, most);
  ByteReader columns(place, raw);
  BitReader bits(place, packed.rest());
  std::vector<Histogram> all = TakeHistograms(count, edges, columns, bits);
  if (!columns.rest().empty()) {
    step.channels = TakeCurves(tensors.size(), columns);
    step.scaled = TakeLosses(scaled_formats, tensors.size(), columns);
    const bool any = std::ranges::any_of(step.channels, &ChannelCurves::known);
    columns.Require(any || scaled_formats > 0, "damaged: curves of no channels");
    if (!any) step.channels.clear();
  }
  columns.RequireEnd();
  bits.RequireEnd();
  for (auto begin = all.begin(); step.histograms.size() < step.micro_steps.size();) {
    const auto end = begin + static_cast<std::ptrdiff_t>(tensors.size());
    step.histograms.emplace_back(std::move_iterator(begin), std::move_iterator(end));
    begin = end;
  }
  RequireElements(columns, step);
  return step;
}

}  // namespace dlsim
