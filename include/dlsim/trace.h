// SPDX-License-Identifier: Apache-2.0
// Reads recorded training, its gradients and its forward pass, one optimizer step at a time and
// without holding a trace in memory: directories of safetensors, single and sharded safetensors
// files, .npy, .npz, Cerebras dumps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/enum_names.h"
#include "dlsim/format.h"

namespace dlsim {

// What a tensor is. Parameter gradients decide the finite test; activation gradients are measured
// with them. Forward tensors, which are outputs of modules and operations (act) and parameters
// (value), do not depend on the loss scale: they are measured as they are, apart from gradients.
enum class Role : uint8_t { kGrad, kActGrad, kAct, kValue };

constexpr auto EnumNames(Role) {
  return std::to_array<EnumName<Role>>({{Role::kGrad, "grad"},
                                        {Role::kActGrad, "act_grad"},
                                        {Role::kAct, "act"},
                                        {Role::kValue, "value"}});
}

constexpr bool IsForward(Role role) { return role == Role::kAct || role == Role::kValue; }
constexpr bool IsGradient(Role role) { return !IsForward(role); }

// The key of a recording's metadata that names the forward tensors which autocast keeps in float32,
// separated by newlines.
inline constexpr std::string_view kAutocastFloat32Key = "autocast_float32";

// What steps have shown that were run again in formats, up to this one (docs/traces.md).
inline constexpr std::string_view kShadowKey = "shadow";

// As kAutocastFloat32Key, of gradients that are nothing but rounding errors.
inline constexpr std::string_view kNoiseKey = "noise";

// What a tensor is, whatever its values are.
struct TensorInfo {
  std::string name;
  Role role = Role::kGrad;
  DType dtype = DType::kF32;  // as recorded first
  std::vector<uint64_t> shape;

  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

// A TensorInfo that copies share: the steps of a trace mostly have the same tensors.
class TensorRef {
 public:
  TensorRef() : info_(Nameless()) {}
  TensorRef(TensorInfo info) : info_(std::make_shared<const TensorInfo>(std::move(info))) {}

  const TensorInfo& operator*() const { return *info_; }
  const TensorInfo* operator->() const { return info_.get(); }

  friend bool operator==(const TensorRef& a, const TensorRef& b) {
    return a.info_ == b.info_ || *a == *b;
  }

 private:
  static const std::shared_ptr<const TensorInfo>& Nameless() {
    static const auto info = std::make_shared<const TensorInfo>();
    return info;
  }

  std::shared_ptr<const TensorInfo> info_;
};

// What several of these refer to, as if they held it.
struct Referred {
  const TensorInfo& operator()(const TensorRef& tensor) const { return *tensor; }
};
using TensorSpan = std::ranges::transform_view<std::span<const TensorRef>, Referred>;

// Fills `out` with the bytes from `offset` on. Thread-safe.
using ByteReader = std::function<void(uint64_t offset, std::span<std::byte> out)>;

// One recorded tensor. Its bytes lie in memory, or are read when they are needed.
struct TraceTensor {
  TensorRef info;
  uint64_t elements = 1;  // product of the shape

  // First byte of the data, at any alignment; null if the data has to be read.
  const std::byte* memory = nullptr;

  // The CUDA device whose memory that is; only it can count the tensor then, and nothing reads it
  // on the host. -1 = the host's.
  int device = -1;

  // What it is read from, which the tensors of a file may share, and where it begins there.
  std::shared_ptr<const ByteReader> source = nullptr;
  uint64_t begin = 0;

  // Fills `out` with its bytes from `offset` on, of which none are in memory. Thread-safe.
  void Read(uint64_t offset, std::span<std::byte> out) const { (*source)(begin + offset, out); }

  // Returns buffer.size() bytes from `offset` on: those in memory, or else the buffer, filled.
  const std::byte* Bytes(uint64_t offset, std::span<std::byte> buffer) const;
};

// A whole step, or one micro-step of it: the tensors of one recorded file, or what the files of
// several data-parallel ranks make together.
struct Recording {
  std::string place;        // the file, for messages; that of rank 0
  uint64_t file_bytes = 0;  // its size; that of an index with its shards, of all ranks together
  int64_t micro = -1;       // index of the micro-step; -1 = the step has none
  float grad_scale = 1.0f;  // the loss scale that the recorded gradients still carry
  std::map<std::string, std::string> metadata;  // step, loss, lr, model, ... as recorded
  std::vector<TraceTensor> tensors;             // in the order of their data in the file

  int64_t rank = -1;  // of the file's name; -1 = none

  // What each rank recorded, in ascending order; null if there is one file only. With it, `tensors`
  // are F32 without a loss scale, `rank` is -1, and the rest is that of rank 0.
  std::shared_ptr<const std::vector<Recording>> ranks;

  // The loss scale that a tensor of this role carries: 1 in the forward pass.
  float CarriedScale(Role role) const { return IsForward(role) ? 1.0f : grad_scale; }
};

// One optimizer step; the effective gradient is the sum over its recordings. Forward tensors are
// those of each recording: they have no sum.
struct TraceStep {
  int64_t step = 0;
  std::vector<Recording> recordings;  // one, or one per micro-step in ascending order
};

// Returns the recordings of a step as they are in files: those of ranks one by one.
std::vector<const Recording*> RecordedFiles(const TraceStep& step);

// How the gradients of data-parallel ranks become one, element by element: their float32 sum in
// ascending order of the ranks, for the mean divided by their number in float32.
enum class RankReduction { kMean, kSum };

constexpr auto EnumNames(RankReduction) {
  return std::to_array<EnumName<RankReduction>>(
      {{RankReduction::kMean, "mean"}, {RankReduction::kSum, "sum"}});
}

struct TraceOptions {
  std::string tensors = "*";           // glob (fnmatch) over tensor names; others are not read
  std::optional<DType> npy_void2;      // the meaning of numpy's type V2, which names no format
  std::optional<RankReduction> ranks;  // the mean unless told
};

// A trace opened for reading: the list of its steps, known without reading any tensor. Copies
// share it.
class TraceReader {
 public:
  // Opens one or several traces as one: their steps follow each other and must ascend. Throws
  // Error (exit code 3) naming the file and the defect.
  static TraceReader Open(std::span<const std::string> paths, const TraceOptions& options);

  size_t step_count() const;

  // Number of the i-th step, as recorded or, where the container has none, counted from 0.
  int64_t step_number(size_t i) const;

  // Paths of the files of the i-th step, in the order of its recordings; of shards, the index and
  // each shard.
  std::vector<std::string> files(size_t i) const;

  // Size of all files of the trace, in bytes.
  uint64_t file_bytes() const;

  // The string fields of trace.json such as model, data, optimizer; empty without one. With several
  // data-parallel ranks also `ranks`, their number, and `rank_reduction`.
  const std::map<std::string, std::string>& description() const;

  // Remarks for the user, such as files that were left out; one line each.
  const std::vector<std::string>& notes() const;

  // Opens and validates the files of the i-th step, which stay open with the result. Its elements
  // are read when they are needed.
  TraceStep Load(size_t i) const;

 private:
  struct Impl;
  explicit TraceReader(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

// Calls visit(begin, values) for consecutive chunks (at most kChunkElements) of one tensor of one
// recording, as float32, unscaled by the loss scale that it carries. `begin` is the index of
// values[0].
void VisitValues(const Recording& recording, const TraceTensor& tensor,
                 const std::function<void(uint64_t begin, std::span<const float> values)>& visit);

}  // namespace dlsim
