// SPDX-License-Identifier: Apache-2.0
// Profiles: what is written is what is read, by many at once, and nothing damaged passes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dlsim/profile.h"
#include "src/trace/npz.h"
#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;
using Existing = ProfileWriter::Existing;

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<float> Normal(size_t count, float deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TensorTable TableOf(size_t count, uint64_t seed) {
  TensorTable table = Tabulate(Normal(count, 1e-3f, seed));
  table.channels = {{400, 3}, {401, 1}, {1019, 2}};
  return table;
}

ProfileSettings SettingsWithAll() {
  ProfileSettings settings;
  settings.scaled = {ParseScaledFormat("mxfp8"), ParseScaledFormat("fp8-current:margin=2")};
  settings.mantissas = {0x1.c6bf52p+0f};
  settings.tensors = "w*";
  settings.accumulate_steps = 2;
  settings.description = {{"model", "a \"model\""}, {"ranks", "2"}};
  return settings;
}

// Two micro-steps of a large and a small gradient, and of a forward tensor.
StepTables StepWithAll(int64_t number) {
  StepTables step;
  step.step = number;
  step.micro_steps = {0, 1};
  step.metadata = {{"loss", "2.5"}, {"forward_graph", "a\nb\tc"}};
  step.files = {{"step-1.safetensors", 123, 0xfedcba9876543210}, {"step-2.safetensors", 5, 0}};
  step.tensors = {TensorInfo{"w.grad", Role::kGrad, DType::kF32, {100, 40}},
                  TensorInfo{"b.grad", Role::kGrad, DType::kBF16, {}},
                  TensorInfo{"w.act", Role::kAct, DType::kF16, {7}}};
  step.gradients = 2;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto seed = static_cast<uint64_t>(number);
  for (uint64_t part = 0; part < 2; ++part) {
    step.parts.push_back({TableOf(4000, seed + part), Tabulate(std::vector{0.f, -0x1p-149f, kInf}),
                          Tabulate(std::vector<float>{})});
    step.by_mantissa[0x1.c6bf52p+0f].push_back({TableOf(4000, 7), Tabulate(std::vector{3.f, NAN})});
  }
  step.sums = {TableOf(4000, 9), Tabulate(std::vector{1.f, -1.f, 2.f})};
  ScaledLoss loss;
  loss.by_axis[1].stats.elements = 12;
  loss.by_axis[1].stats.sum_of_squares = 0.1;
  loss.by_axis[1].max_scale = kInf;
  step.scaled = {{loss, {}, {}}, {{}, loss, {}}};
  return step;
}

StepTables SmallStep(int64_t number) {
  StepTables step;
  step.step = number;
  step.micro_steps = {-1};
  step.tensors = {TensorInfo{"w.grad", Role::kGrad, DType::kF32, {1000}}};
  step.gradients = 1;
  step.parts = {{TableOf(1000, static_cast<uint64_t>(number))}};
  return step;
}

class ProfileTest : public testing::Test {
 protected:
  std::string Folder() const { return dir_.path() + "/p"; }
  std::string StepPath(const std::string& digits) const {
    return Folder() + "/step-" + digits + ".npz";
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(Folder())) {
      names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  TempDir dir_;
};

TEST_F(ProfileTest, ReadsWhatWasWritten) {
  const ProfileSettings settings = SettingsWithAll();
  const ProfileWriter writer(Folder(), settings, Existing::kContinue);
  const StepTables late = StepWithAll(123'456'789'012), early = StepWithAll(0);
  writer.Write(late);
  writer.Write(early);
  EXPECT_TRUE(ProfileReader::IsProfile(Folder()));
  EXPECT_FALSE(ProfileReader::IsProfile(dir_.path()));
  const ProfileReader profile = ProfileReader::Open(Folder() + "/");
  EXPECT_EQ(profile.settings(), settings);
  ASSERT_EQ(profile.step_count(), 2u);
  EXPECT_EQ(profile.step_number(1), late.step);
  EXPECT_TRUE(profile.Load(0) == early);
  EXPECT_TRUE(profile.Load(1) == late);
  EXPECT_EQ(profile.LoadHead(1).tensors, late.tensors);
  EXPECT_EQ(profile.LoadHead(1).metadata, late.metadata);
  EXPECT_TRUE(profile.LoadHead(1).parts.empty());
  EXPECT_EQ(writer.FilesOf(0), early.files);
  EXPECT_EQ(writer.FilesOf(1), std::nullopt);
  uint64_t bytes = 0;
  for (const std::string& name : Names()) bytes += fs::file_size(Folder() + "/" + name);
  EXPECT_EQ(profile.file_bytes(), bytes);
  EXPECT_EQ(Names(), (std::vector<std::string>{"profile.json", "step-0000000000.npz",
                                               "step-123456789012.npz"}));
}

TEST_F(ProfileTest, ATensorTakesThreeKibibytes) {
  const ProfileWriter writer(Folder(), {}, Existing::kContinue);
  StepTables step = SmallStep(0);
  std::vector<float> values = Normal(1'000'000, 1e-3f, 1);
  step.tensors.clear();
  step.parts.front().clear();
  for (int i = 0; i < 10; ++i) {
    step.tensors.push_back(
        TensorInfo{"layer." + std::to_string(i) + ".weight.grad", {}, {}, {1000, 1000}});
    for (float& value : values) value *= 1.1f;
    step.parts.front().push_back(Tabulate(values));
  }
  step.gradients = step.tensors.size();
  writer.Write(step);
  const double bytes = static_cast<double>(fs::file_size(StepPath("0000000000"))) / 10;
  RecordProperty("normal", std::to_string(bytes));
  EXPECT_LT(bytes, 3 * 1024) << step.parts.front().front().binades.size() << " binades";
}

TEST_F(ProfileTest, TheSameStepHasTheSameBytes) {
  const ProfileWriter writer(Folder(), SettingsWithAll(), Existing::kContinue);
  writer.Write(StepWithAll(3));
  const std::string before = ReadBytes(StepPath("0000000003"));
  sleep(2);  // the resolution of times in archives
  writer.Write(StepWithAll(3));
  EXPECT_EQ(ReadBytes(StepPath("0000000003")), before);
}

TEST_F(ProfileTest, OtherSettingsAreRefused) {
  const ProfileWriter writer(Folder(), {}, Existing::kContinue);
  writer.Write(SmallStep(1));
  EXPECT_NO_THROW(ProfileWriter(Folder(), {}, Existing::kContinue));
  ProfileSettings other;
  other.tensors = "w*";
  ExpectInputError(
      [&] { ProfileWriter(Folder(), other, Existing::kContinue); },
      {"profile.json: the profile was made with another 'tensors', expected '*', got 'w*'"});
  const ProfileWriter replacing(Folder(), other, Existing::kReplace);
  EXPECT_EQ(ProfileReader::Open(Folder()).step_count(), 0u);
  writer.Write(SmallStep(1));  // by a process that does not know
  EXPECT_EQ(replacing.FilesOf(1), std::nullopt);
  ExpectInputError([&] { ProfileReader::Open(Folder()).Load(0); },
                   {"step-0000000001.npz: made with other settings"});
}

TEST_F(ProfileTest, AFolderOfSomethingElseIsRefused) {
  dir_.Write("a.txt", "");
  ExpectInputError([&] { ProfileWriter(dir_.path(), {}, Existing::kReplace); },
                   {"folder of something else", "a.txt"});
  ExpectInputError([&] { ProfileWriter(dir_.path() + "/a.txt", {}, Existing::kContinue); },
                   {"a.txt"});
  ExpectInputError([&] { ProfileWriter(dir_.path() + "/b/c", {}, Existing::kContinue); },
                   {"cannot be created"});
  ExpectInputError([&] { ProfileReader::Open(dir_.path()); }, {"profile.json"});
}

TEST_F(ProfileTest, ImpossibleNumbersOfStepsAreRefused) {
  const ProfileWriter writer(Folder(), {}, Existing::kContinue);
  for (const int64_t number : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    ExpectInputError([&] { writer.Write(SmallStep(number)); }, {"not the number of a step"});
  }
  EXPECT_EQ(Names(), std::vector<std::string>{"profile.json"});
}

// A name of a file that a killed process was writing, and one that is being written.
TEST_F(ProfileTest, WhatKilledWritersLeftIsRemoved) {
  fs::create_directory(Folder());
  dir_.Write("p/.step-0000000007.npz.12-3.tmp", "half a st");
  dir_.Write("p/.profile.json.12-4.tmp", "{");
  ProfileWriter(Folder(), {}, Existing::kContinue);
  EXPECT_EQ(Names(), std::vector<std::string>{"profile.json"});
  EXPECT_EQ(ProfileReader::Open(Folder()).step_count(), 0u);
}

TEST_F(ProfileTest, ManyProcessesWriteAtOnce) {
  constexpr int kProcesses = 8, kSteps = 12;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 0;
      try {
        const ProfileWriter writer(Folder(), {}, Existing::kContinue);
        // Each step is written by two of them.
        for (int step = process / 2; step < kSteps; step += kProcesses / 2) {
          writer.Write(SmallStep(step));
        }
      } catch (...) {
        code = 1;
      }
      _exit(code);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const ProfileReader profile = ProfileReader::Open(Folder());
  ASSERT_EQ(profile.step_count(), static_cast<size_t>(kSteps));
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_TRUE(profile.Load(static_cast<size_t>(step)) == SmallStep(step));
  }
  EXPECT_EQ(Names().size(), kSteps + 1u);
}

TEST_F(ProfileTest, TextsThatJsonCannotHoldAreRefused) {
  ProfileSettings settings;
  settings.description = {{"model", "\xff"}};
  ExpectInputError([&] { ProfileWriter(Folder(), settings, Existing::kContinue); },
                   {"cannot hold"});
  const ProfileWriter writer(Folder(), {}, Existing::kContinue);
  StepTables step = SmallStep(1);
  step.metadata = {{"note", "\xff"}};
  ExpectInputError([&] { writer.Write(step); }, {"cannot hold"});
}

// Every way to read a damaged file ends with what was written or with one line.
class ProfileDamageTest : public ProfileTest {
 protected:
  ProfileDamageTest() {
    const ProfileWriter writer(Folder(), SettingsWithAll(), Existing::kContinue);
    writer.Write(StepWithAll(3));
    step_ = ReadBytes(StepPath("0000000003"));
    settings_ = ReadBytes(Folder() + "/profile.json");
  }

  // Returns whether it is refused.
  bool IsRefused() const {
    try {
      const ProfileReader profile = ProfileReader::Open(Folder());
      const StepTables head = profile.LoadHead(0);
      const StepTables step = profile.Load(0);
      EXPECT_TRUE(step == StepWithAll(3));
      EXPECT_EQ(head.tensors, step.tensors);
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      EXPECT_TRUE(std::string_view(error.what()).starts_with(Folder())) << error.what();
      return true;
    }
  }

  std::string step_, settings_;
};

TEST_F(ProfileDamageTest, ACutStepIsRefused) {
  for (size_t size = 0; size < step_.size(); size += size < 200 ? 1 : 61) {
    dir_.Write("p/step-0000000003.npz", step_.substr(0, size));
    EXPECT_TRUE(IsRefused()) << size;
  }
  dir_.Write("p/step-0000000003.npz", step_ + "x");
  IsRefused();
}

TEST_F(ProfileDamageTest, AChangedByteIsNoticedOrHarmless) {
  size_t refused = 0, changed = 0;
  for (size_t i = 0; i < step_.size(); i += 3 + i % 7) {
    std::string damaged = step_;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    dir_.Write("p/step-0000000003.npz", damaged);
    refused += IsRefused() ? 1 : 0;
    ++changed;
  }
  // Times and versions of the archive mean nothing.
  EXPECT_GT(refused, changed * 8 / 10);
}

TEST_F(ProfileDamageTest, DamagedSettingsAreRefused) {
  for (size_t size = 0; size + 2 < settings_.size(); ++size) {
    dir_.Write("p/profile.json", settings_.substr(0, size));
    EXPECT_TRUE(IsRefused()) << size;
  }
  for (size_t i = 0; i < settings_.size(); ++i) {
    std::string damaged = settings_;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 7));
    dir_.Write("p/profile.json", damaged);
    IsRefused();
  }
}

TEST_F(ProfileDamageTest, AStepUnderAnotherNumberIsRefused) {
  fs::rename(StepPath("0000000003"), StepPath("0000000004"));
  ExpectInputError([&] { ProfileReader::Open(Folder()).Load(0); },
                   {"step-0000000004.npz", "'step'", "got 3"});
}

// The archive is whole, and so are its checksums.
TEST_F(ProfileDamageTest, AChangedArrayIsNoticedOrHarmless) {
  std::vector<NpzBytes> members;
  const auto archive = NpzArchive::Open(StepPath("0000000003"));
  for (const NpzMember& member : archive->members()) {
    std::string contents(member.size, '\0');
    SourceOf(archive, member).read(0, std::as_writable_bytes(std::span(contents)));
    members.push_back({member.name, std::move(contents)});
  }
  ASSERT_EQ(members.size(), 6u);
  const Conversion conversion = {.format = ParseFormat("fp16").format};
  std::mt19937_64 random(20261129);
  size_t refused = 0;
  constexpr size_t kTries = 400;
  for (size_t i = 0; i < kTries; ++i) {
    std::vector<NpzBytes> damaged = members;
    std::string& contents = damaged[random() % members.size()].contents;
    if (i % 10 == 0) {
      contents.resize(random() % contents.size());
    } else {
      contents[random() % contents.size()] ^= static_cast<char>(1 << random() % 8);
    }
    dir_.Write("p/step-0000000003.npz", MakeNpz(damaged));
    try {
      const StepTables step = ProfileReader::Open(Folder()).Load(0);
      for (const auto& part : step.parts) {
        for (const TensorTable& table : part) Ask(table, conversion, 0x1p8f);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, kTries / 3);
}

// The archive is whole; what it says is not.
TEST_F(ProfileDamageTest, ATableThatContradictsItselfIsRefused) {
  const ProfileWriter writer(Folder(), {}, Existing::kReplace);
  const auto expect = [&](const std::function<void(TensorTable&)>& change, std::string_view words) {
    StepTables step = SmallStep(1);
    change(step.parts.front().front());
    writer.Write(step);
    ExpectInputError([&] { ProfileReader::Open(Folder()).Load(0); },
                     {"step-0000000001.npz: tables: row 0 (w.grad)", words});
  };
  const auto binade = [&](const std::function<void(Binade&)>& change, std::string_view words) {
    expect([&](TensorTable& table) { change(table.binades[2]); }, words);
  };
  expect([](TensorTable& table) { ++table.elements; }, "other counts than elements");
  expect([](TensorTable& table) { table.zeros = ~uint64_t{0}; }, "other counts than elements");
  expect([](TensorTable& table) { table.sum_of_squares *= 2; }, "another sum of squares");
  expect([](TensorTable& table) { table.sum_of_squares = NAN; }, "another sum of squares");
  expect([](TensorTable& table) { table.absmax = 7; }, "largest magnitude");
  expect([](TensorTable& table) { table.absmax = NAN; }, "largest magnitude");
  expect([](TensorTable& table) { table.largest = 2 * table.absmax; }, "largest value");
  expect([](TensorTable& table) { table.largest = -1; }, "largest value");
  expect([](TensorTable& table) { table.values = {1}; }, "both values and binades");
  expect([](TensorTable& table) { std::swap(table.binades[0], table.binades[1]); }, "out of order");
  expect([](TensorTable& table) { std::swap(table.channels[0], table.channels[1]); }, "channels");
  expect([](TensorTable& table) { table.binades.back().exponent = 128; }, "out of range");
  binade([](Binade& b) { b.powers = b.count + 1; }, "'powers'");
  binade([](Binade& b) { b.rounding_up[1] = b.rounding_up[0] + 1; }, "'rounding_up'");
  binade([](Binade& b) { b.tail_sums[0] += uint64_t{1} << 40; }, "'tail_sums'");
  binade([](Binade& b) { b.tail_squares[4] += uint128_t{1} << 100; }, "'tail_squares'");
  binade([](Binade& b) { b.errors[3] += uint128_t{1} << 100; }, "'errors'");
}

}  // namespace
}  // namespace dlsim
