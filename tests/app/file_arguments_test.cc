// SPDX-License-Identifier: Apache-2.0
// No command writes over a file that it reads, or over another of its results.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>

#include "src/trace/npy.h"
#include "tests/support/run_command.h"
#include "tests/support/trace_builder.h"
#include "tests/support/written_trace.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;

class FileArguments : public testing::Test {
 protected:
  // Expects that `arguments` with this output are refused, and that no file has changed.
  void ExpectRefused(Arguments arguments, const std::string& option, const std::string& output,
                     const std::string& word) {
    const std::string before = ReadBytes(output);
    arguments.insert(arguments.end(), {option, output});
    ExpectFailure(arguments, 2, {option + ": ", word, "expected another file"});
    EXPECT_TRUE(ReadBytes(output) == before) << output;
  }

  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  WrittenTrace trace_{3};
  TempDir dir_;
};

TEST_F(FileArguments, AFileOfATraceIsNoOutput) {
  const std::string file = trace_.StepPath(1);
  trace_.WriteBytes(99, "");  // no step: an empty file next to them
  fs::rename(trace_.StepPath(99), trace_.path() + "/trace.json");
  dir_.Write("../" + fs::path(trace_.path()).filename().string() + "/trace.json", "{}");
  for (const char* command : {"replay", "sweep"}) {
    for (const char* option : {"--json", "--csv"}) {
      ExpectRefused({command, trace_.path()}, option, file, "a file of the trace");
      ExpectRefused({command, file}, option, file, "TRACE");
    }
  }
  ExpectRefused({"tune", trace_.path()}, "--json", file, "a file of the trace");
  ExpectRefused({"replay", trace_.path()}, "--json", trace_.path() + "/trace.json", "trace");
  ExpectRefused({"info", trace_.path()}, "--json", trace_.path() + "/trace.json", "trace");
  ExpectRefused({"profile", trace_.path()}, "-o", file, "a file of the trace");
  ExpectRefused({"profile", trace_.path(), "-o", Path("p")}, "--json", file, "trace");
  EXPECT_FALSE(fs::exists(Path("p")));
}

TEST_F(FileArguments, LinksDoNotHideAnInput) {
  fs::create_symlink(trace_.StepPath(0), Path("soft"));
  fs::create_hard_link(trace_.StepPath(0), Path("hard"));
  fs::create_directory_symlink(trace_.path(), Path("directory"));
  for (const char* name : {"soft", "hard"}) {
    ExpectRefused({"replay", trace_.StepPath(0)}, "--json", Path(name), "TRACE");
    ExpectRefused({"replay", trace_.path()}, "--csv", Path(name), "a file of the trace");
  }
  const std::string through = Path("directory/") + WrittenTrace::StepName(2);
  ExpectRefused({"replay", trace_.path()}, "--json", through, "a file of the trace");
}

TEST_F(FileArguments, ConfigurationsGridsListsAndShardsAreInputs) {
  const std::string config = dir_.Write("c.toml", "[torch]\ninit_scale = 1024\n");
  ExpectRefused({"replay", trace_.path(), "--config", config}, "--json", config, "--config");
  ExpectRefused({"sweep", trace_.path(), "--grid", config}, "--csv", config, "--grid");
  const std::string list = dir_.Write("list", "1,2");
  ExpectRefused({"scaler", "--policy", "torch", "--steps", "3", "--overflow-at", "@" + list},
                "--json", list, "--overflow-at");
  dir_.Write("s.safetensors", BuildSafetensors({FloatTensor("w.grad", {1})}));
  const std::string index =
      dir_.Write("m.safetensors.index.json", R"({"weight_map":{"w.grad":"s.safetensors"}})");
  ExpectRefused({"replay", index}, "--json", Path("s.safetensors"), "a file of the trace");
}

TEST_F(FileArguments, ConvertDoesNotWriteOverItsInput) {
  const std::string file =
      dir_.Write("x.npy", MakeNpyHeader(NpyType::kF32, std::array<uint64_t, 1>{2}, false) +
                              FloatBytes({1, 2}));
  const std::string before = ReadBytes(file);
  ExpectFailure({"convert", "--to", "fp16", file, file}, 2, {"OUT", "IN", "another file"});
  fs::create_hard_link(file, Path("y.npy"));
  ExpectFailure({"convert", "--to", "fp16", file, Path("y.npy")}, 2, {"OUT", "IN"});
  EXPECT_EQ(ReadBytes(file), before);
}

TEST_F(FileArguments, AResultMayReplaceAnOlderOneNextToTheTrace) {
  for (int run = 0; run < 2; ++run) {
    Succeed({"replay", trace_.path(), "--quiet", "--json", trace_.path() + "/replay.json"});
  }
}

TEST_F(FileArguments, TwoOutputsAreTwoFiles) {
  const std::string file = dir_.Write("r", "before");
  fs::create_symlink("r", Path("soft"));
  fs::create_hard_link(file, Path("hard"));
  for (const char* other : {"r", "./r", "soft", "hard"}) {
    ExpectFailure({"replay", trace_.path(), "--json", file, "--csv", Path(other)}, 2,
                  {"--csv: taken by --json"});
  }
  ExpectFailure({"replay", trace_.path(), "--json", Path("new"), "--csv", Path("./new")}, 2,
                {"--csv: taken by --json"});
  ExpectFailure({"profile", trace_.path(), "-o", Path("p"), "--json", Path("p")}, 2,
                {"--json: taken by -o"});
  EXPECT_EQ(ReadBytes(file), "before");
}

TEST_F(FileArguments, TheUnfinishedProfileIsAnOutput) {
  fs::create_symlink("target", Path("link"));
  fs::create_symlink("p.partial", Path("soft"));
  const auto refused = [&](const std::string& profile, const std::string& result) {
    ExpectFailure({"profile", trace_.path(), "-o", Path(profile), "--json", Path(result)}, 2,
                  {"--json: taken by -o until the profile is complete"});
  };
  refused("p", "p.partial");
  refused("p", "./p.partial");
  refused("p", "soft");
  refused("link", "target.partial");
  Succeed({"profile", trace_.path(), "-o", Path("part"), "--quiet"});
  fs::copy_file(Path("part"), Path("whole.partial"));
  ExpectFailure({"merge", Path("whole.partial"), "-o", Path("whole")}, 2,
                {"-o: would replace what PROFILE names", "whole.partial"});
  EXPECT_TRUE(ReadBytes(Path("whole.partial")) == ReadBytes(Path("part")));
  Succeed({"replay", Path("part"), "--quiet", "--json", Path("r"), "--csv", Path("r.partial")});
}

TEST_F(FileArguments, AnOutputHasAName) {
  for (const char* option : {"--json", "--csv"}) {
    ExpectFailure({"replay", trace_.path(), option, ""}, 2, {option, "names no file"});
  }
  ExpectFailure({"profile", trace_.path(), "-o", ""}, 2, {"-o: names no file"});
  ExpectFailure({"scaler", "--policy", "torch", "--steps", "3", "--json", ""}, 2, {"--json"});
}

}  // namespace
}  // namespace dlsim
