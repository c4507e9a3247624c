// SPDX-License-Identifier: Apache-2.0
// Files of probes (.dlprobe): a few elements of each parameter of a training, their gradients at
// every update, and the optimizer's settings, from which updates can be computed again in other
// formats. The layout is in docs/probe-format.md. Every byte is covered by a checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/dtype.h"

namespace dlsim {

// A parameter and the elements of it that are followed: `count` of them, in runs of neighbors.
struct ProbeTensor {
  std::string name;
  std::vector<uint64_t> shape;
  DType dtype = DType::kF32;  // in which the training holds it; never kF64
  uint64_t stride = 1;        // from the begin of one run to that of the next
  uint64_t run = 1;           // elements of a run; the last one may have fewer
  uint64_t count = 0;

  // Returns where the i-th of them lies in the parameter, flattened.
  uint64_t IndexOf(uint64_t i) const { return i / run * stride + i % run; }

  friend bool operator==(const ProbeTensor&, const ProbeTensor&) = default;
};

// Follows at most `elements` of a parameter, all of a small one, else runs of 16, since neighbors
// cost a processor no more than one alone. Where they begin meets all rows and columns of a matrix
// alike. Throws UsageError for no elements, and for kF64, whose values float32 cannot hold.
ProbeTensor SampleOf(std::string name, std::vector<uint64_t> shape, DType dtype, uint64_t elements);

// Reads the followed elements of a whole tensor of the parameter's shape and type, `values`, one
// after another without gaps. `out` has tensor.count elements.
void ReadSample(const ProbeTensor& tensor, const std::byte* values, std::span<float> out);

// What does not change in a file.
struct ProbeHead {
  uint64_t elements = 0;                           // of a parameter that were asked for, at most
  std::map<std::string, std::string> description;  // of the training
  std::vector<ProbeTensor> tensors;

  // Returns how many elements are followed in all tensors together.
  uint64_t FollowedCount() const;

  friend bool operator==(const ProbeHead&, const ProbeHead&) = default;
};

// What an optimizer remembers of the elements of one tensor; nothing at all if it is a new one.
struct ProbeState {
  uint32_t tensor = 0;
  uint64_t updates = 0;                              // made before; 0 too if it does not count
  std::map<std::string, std::vector<float>> values;  // as "exp_avg", by torch's names

  friend bool operator==(const ProbeState&, const ProbeState&) = default;
};

// The followed elements between two updates.
struct ProbeValues {
  std::vector<float> values;       // of all tensors, one after another
  std::vector<ProbeState> states;  // ascending by tensor; those without a state are left out

  friend bool operator==(const ProbeValues&, const ProbeValues&) = default;
};

// What one group of parameters was updated with, as float64, as Python holds it.
struct ProbeGroup {
  // "adamw", "adam", "sgd", "lion", "adafactor", else the name of its class in lower case.
  std::string optimizer;
  // "lr", "beta1", "beta2", "eps", "weight_decay", "momentum", ..., flags as 0 and 1; what is not
  // there is no setting of this optimizer.
  std::map<std::string, double> values;

  friend bool operator==(const ProbeGroup&, const ProbeGroup&) = default;
};

// One update of the parameters.
struct ProbeStep {
  static constexpr uint32_t kNoGroup = ~uint32_t{0};

  int64_t step = 0;            // of the training; ascends, the same again for a second update in it
  std::optional<double> clip;  // what gradients were multiplied with, 1 if with nothing; if known
  std::vector<ProbeGroup> groups;
  std::vector<uint32_t> group_of;  // by tensor; kNoGroup of one that no optimizer has so far
  std::vector<bool> updated;       // by tensor: it had a gradient, and the optimizer read it
  std::vector<float> gradients;    // as the optimizer read them, unscaled, clipped; 0 of others

  friend bool operator==(const ProbeStep&, const ProbeStep&) = default;
};

// A probe opened for reading. Needs memory for one step, and 24 bytes for each that the file holds.
class ProbeReader {
 public:
  // Returns whether a file begins as a probe does; what is no regular file does not. Throws
  // InputError for one that cannot be read.
  static bool IsProbe(const std::string& path);

  // Throws InputError (exit code 3) naming file and defect.
  static ProbeReader Open(const std::string& path);

  ProbeReader(ProbeReader&&) noexcept;
  ProbeReader& operator=(ProbeReader&&) noexcept;
  ~ProbeReader();

  const ProbeHead& head() const;
  size_t step_count() const;

  // Bytes at the end that are no whole chunk, since the writer was killed or writes just now; they
  // are left out.
  uint64_t cut_bytes() const;

  // Reads the i-th update. Thread-safe; throws InputError for a damaged one.
  ProbeStep ReadStep(size_t i) const;

  // Returns the values before the i-th update, or behind the last for i = step_count(), if they
  // were recorded. They always are before the first and where a training was resumed, with states
  // if the optimizer had some; the recorder writes them, without states, every 100 updates, too, by
  // which one can tell whether updates were computed again rightly.
  std::optional<ProbeValues> ReadValues(size_t i) const;

 private:
  struct Impl;
  explicit ProbeReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes a probe; what it has taken is safe against a crash of the process.
class ProbeWriter {
 public:
  enum class Existing : uint8_t {
    kReplace,   // a probe of that name is overwritten
    kContinue,  // it continues after its last whole update; it must follow the same elements
  };

  // Throws Error (exit code 3) if that is impossible, or if something else lies there.
  ProbeWriter(const std::string& path, const ProbeHead& head, Existing existing);
  ~ProbeWriter();
  ProbeWriter(const ProbeWriter&) = delete;
  ProbeWriter& operator=(const ProbeWriter&) = delete;

  size_t step_count() const;
  std::optional<int64_t> last_step() const;
  uint64_t bytes() const;  // of the file

  // Removes the updates of `step` and later ones, and all values behind what is left.
  void Forget(int64_t step);

  // Appends what is between two updates. Values must come before the first update.
  void AddValues(const ProbeValues& values);

  // Appends an update, with other gradients than those of `step` if they are given. Throws Error
  // (exit code 3) if the device is full or the step is too low.
  void AddStep(const ProbeStep& step, std::span<const float> gradients);
  void AddStep(const ProbeStep& step) { AddStep(step, step.gradients); }

  // Flushes to the device.
  void Close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dlsim
