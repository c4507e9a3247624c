// SPDX-License-Identifier: Apache-2.0
// Fuzz targets of profiles: a step, and the settings.
#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/profile.h"
#include "src/trace/npz.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/target_support.h"
#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

using Existing = ProfileWriter::Existing;

constexpr float kMantissa = 1.5f;

// The profile whose one step the input replaces; all arrays of its step have rows.
ProfileSettings SmallSettings() {
  ProfileSettings settings;
  settings.scaled = {ParseScaledFormat("mxfp8")};
  settings.mantissas = {kMantissa};
  return settings;
}

StepTables SmallStep() {
  std::vector<float> many(600);
  for (size_t i = 0; i < many.size(); ++i) {
    many[i] = std::ldexp(1.0f + static_cast<float>(i % 17) / 17, static_cast<int>(i % 3) - 9);
  }
  StepTables step;
  step.micro_steps = {0, 1};
  step.metadata = {{"loss", "2.5"}};
  step.files = {{"step-0.safetensors", 123, 0xfedcba9876543210}};
  step.tensors = {TensorInfo{"w.grad", Role::kGrad, DType::kF32, {20, 30}},
                  TensorInfo{"b.grad", Role::kGrad, DType::kBF16, {3}}};
  step.gradients = 2;
  TensorTable large = Tabulate(many);
  large.channels = {{400, 3}, {401, 17}};
  const TensorTable small = Tabulate(std::vector{1.5f, -0.25f, 0.0f});
  step.parts = {{large, small}, {large, small}};
  step.sums = step.parts.front();
  step.by_mantissa[kMantissa] = {{Tabulate(many), small}, {Tabulate(many), small}};
  step.scaled.resize(1, std::vector<ScaledLoss>(2));
  return step;
}

// One array of a step, whose data the input gives.
struct Array {
  std::string name;
  std::string type;  // numpy's text
  size_t row_bytes = 1;
};

std::string_view SettingsIn(std::string_view header) {
  constexpr std::string_view kKey = "\"settings\":\"";
  const size_t found = header.find(kKey);
  if (found == header.npos) return {};
  const size_t begin = found + kKey.size();
  return header.substr(begin, header.find('"', begin) - begin);
}

// Returns the arrays of a step's file, and the hash of the settings in its header.
std::vector<Array> ArraysIn(const std::string& path, std::string& settings) {
  std::vector<Array> arrays;
  const auto archive = NpzArchive::Open(path);
  for (const NpzMember& member : archive->members()) {
    const ByteSource source = SourceOf(archive, member);
    const NpyHeader dict = ReadNpyText(source);
    Require(dict.shape.size() == 1 && dict.shape[0] > 0);
    arrays.push_back({member.name, dict.descr, (member.size - dict.data_start) / dict.shape[0]});
    if (member.name == "header") settings = SettingsIn(ReadNpyList(source, dict.descr, 1));
  }
  return arrays;
}

class SmallProfile {
 public:
  SmallProfile() : writer_(folder(), SmallSettings(), Existing::kContinue) {
    writer_.Write(SmallStep());
    arrays_ = ArraysIn(path(), settings_);
  }

  std::string folder() const { return dir_.path() + "/p"; }
  std::string path() const { return folder() + "/step-0000000000.npz"; }
  const ProfileWriter& writer() const { return writer_; }

  // Puts a step there of which the input has each array: its length in four bytes, and its data.
  // Checksums, types and the hash of the settings are made right.
  void WriteInput(std::string_view input) const {
    std::vector<NpzBytes> members;
    for (const Array& array : arrays_) {
      uint32_t length = 0;
      for (size_t i = 0; i < std::min<size_t>(4, input.size()); ++i) {
        length |= static_cast<uint32_t>(static_cast<uint8_t>(input[i])) << (8 * i);
      }
      input.remove_prefix(std::min<size_t>(4, input.size()));
      std::string data(input.substr(0, length));
      input.remove_prefix(data.size());
      data.resize(data.size() / array.row_bytes * array.row_bytes);
      const std::string_view settings = SettingsIn(data);
      if (settings.size() == settings_.size()) {
        data.replace(static_cast<size_t>(settings.data() - data.data()), settings.size(),
                     settings_);
      }
      const std::array<uint64_t, 1> shape = {data.size() / array.row_bytes};
      members.push_back({array.name, MakeNpyHeader(array.type, shape) + data});
    }
    dir_.Write("p/step-0000000000.npz", MakeNpz(members));
  }

 private:
  TempDir dir_;
  ProfileWriter writer_;
  std::vector<Array> arrays_;
  std::string settings_;
};

void RequireSound(const TensorTable& table) {
  uint64_t nonzero = table.values.size();
  for (const Binade& binade : table.binades) nonzero += binade.count;
  Require(nonzero == table.nonzero_finite());
  for (const FormatRow& row : kFormats) {
    const std::optional<TensorStats> stats = Ask(table, {.format = row.format}, 1);
    if (!stats) continue;
    Require(stats->elements == table.elements && stats->underflow <= nonzero);
    Require(stats->error_sum_of_squares >= 0 && stats->underflow_sum_of_squares >= 0);
  }
}

}  // namespace

int FuzzProfile(const uint8_t* bytes, size_t size) {
  static const SmallProfile small;
  small.WriteInput(TextOf(bytes, size));
  return RunTarget([&] {
    const StepTables step = ProfileReader::Open(small.folder()).Load(0);
    for (const auto& part : step.parts) std::ranges::for_each(part, RequireSound);
    // What was read can be written, and is the same then.
    small.writer().Write(step);
    const StepTables again = ProfileReader::Open(small.folder()).Load(0);
    Require(again.tensors == step.tensors && again.parts == step.parts);
    Require(again.sums == step.sums && again.by_mantissa == step.by_mantissa);
  });
}

int FuzzProfileSettings(const uint8_t* bytes, size_t size) {
  static const SmallProfile small;
  return RunTarget([&] {
    std::ofstream(small.folder() + "/profile.json", std::ios::binary) << TextOf(bytes, size);
    const ProfileReader profile = ProfileReader::Open(small.folder());
    const ProfileSettings settings = profile.settings();
    ProfileWriter(small.folder(), settings, Existing::kContinue);  // they are its own
    RunTarget([&] { profile.Load(0); });
  });
}

}  // namespace dlsim
