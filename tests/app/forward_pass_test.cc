// SPDX-License-Identifier: Apache-2.0
// Forward tensors in a trace change nothing that is said of its gradients: no policy's path, no
// window of loss scales, no counter.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_command.h"
#include "tests/support/special_values.h"
#include "tests/support/test_traces.h"
#include "tests/support/trace_builder.h"

namespace dlsim {
namespace {

using nlohmann::json;

// Values that would end every scale's way if they were gradients.
std::vector<BuiltTensor> ForwardTensors(float step) {
  return {FloatTensor("block.0.act", {1, 66246 + step, -3}),
          FloatTensor("mask.act", {-kInf, 0, std::nanf("")}),
          FloatTensor("block.0/exp.act", {3e38f, 1e-9f}),
          FloatTensor("block.0.weight.value", {1e-6f, -0.5f, 0.25f, 2}),
          FloatTensor("block.1.fwd", {0, 0})};
}

std::string StepFileOf(int64_t step, int64_t micro) {
  return "step-" + std::to_string(step) + (micro < 0 ? "" : ".micro-" + std::to_string(micro)) +
         ".safetensors";
}

// A copy of a trace, and the same with forward tensors between the gradients.
class TwoTraces {
 public:
  explicit TwoTraces(const std::string& source) {
    const TraceReader trace = OpenTrace({source});
    for (size_t i = 0; i < trace.step_count(); ++i) {
      for (const Recording& recording : trace.Load(i).recordings)
        Write(trace.step_number(i), recording);
    }
  }

  std::string plain() const { return plain_.path(); }
  std::string forward() const { return forward_.path(); }

 private:
  void Write(int64_t step, const Recording& recording) {
    std::vector<BuiltTensor> tensors, both = ForwardTensors(static_cast<float>(step));
    for (const TraceTensor& tensor : recording.tensors) {
      const std::string dtype(NameOf(tensor.dtype));
      tensors.push_back({tensor.name, dtype, tensor.shape, TensorBytes(tensor)});
    }
    both.insert(both.begin() + 2, tensors.begin(), tensors.end());
    nlohmann::ordered_json metadata = recording.metadata;
    metadata["grad_scale"] = "4096";
    const std::string file = StepFileOf(step, recording.micro);
    plain_.Write(file, BuildSafetensors(tensors, metadata));
    metadata["autocast_float32"] = "mask.act\nblock.0/exp.act";
    forward_.Write(file, BuildSafetensors(both, metadata));
  }

  TempDir plain_, forward_;
};

bool IsForwardRole(const json& role) { return role == "act" || role == "value"; }

// The runs without what tells of the forward pass.
std::string GradientsOf(json runs) {
  for (json& run : runs) {
    run["summary"].erase("forward");
    run["summary"].erase("values");
    std::erase_if(run["tensors"].get_ref<json::array_t&>(),
                  [](const json& tensor) { return IsForwardRole(tensor["role"]); });
  }
  return runs.dump(1);
}

// What a verdict says of the scales of each format.
std::string WindowsOf(const json& result) {
  std::string text;
  for (const json& format : result["verdict"]["formats"]) {
    for (const char* key :
         {"format", "window", "window_low", "window_high", "scale", "steps", "steps_outside_window",
          "mean_harm", "tensors_at_risk", "noise_tensors", "never_finite_steps"}) {
      text += format.at(key).dump() + "\n";
    }
  }
  return text + result["verdict"]["paths"].dump();
}

std::string Profiled(const std::string& trace, const std::string& file) {
  EXPECT_EQ(RunCommand({"profile", trace, "-o", file}).exit_code, 0);
  return file;
}

void ExpectSameGradients(const std::string& plain, const std::string& forward,
                         const Arguments& more) {
  const auto replayed = [&](const std::string& path) {
    Arguments arguments = {"replay", path, "--json", "-", "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json::parse(RunCommand(arguments).out);
  };
  const json expected = replayed(plain), found = replayed(forward);
  EXPECT_EQ(GradientsOf(found["runs"]), GradientsOf(expected["runs"]));
  EXPECT_EQ(WindowsOf(found), WindowsOf(expected));
}

TEST(ForwardPass, ChangesNoPathAndNoWindow) {
  for (const std::string& source : {kSingle, kAccumulated, kTraces + "cnn-digits"}) {
    SCOPED_TRACE(source);
    const TwoTraces traces(source);
    const Arguments formats = {"--format", "fp16", "--format", "bf16", "--format", "cb16"};
    Arguments all = formats;
    for (const char* policy : {"torch", "cerebras", "deepspeed", "megatron", "openseq2seq-logmax",
                               "adaloss", "static"}) {
      all.insert(all.end(), {"--policy", policy});
    }
    ExpectSameGradients(traces.plain(), traces.forward(), all);
    for (const Arguments& how : std::vector<Arguments>{{"--check", "all"},
                                                       {"--finite-test", "global-norm"},
                                                       {"--max-gradient-norm", "1"},
                                                       {"--accumulate", "sum-first"},
                                                       {"--rounding", "sr", "--seed", "3"}}) {
      SCOPED_TRACE(how[0] + " " + how[1]);
      ExpectSameGradients(traces.plain(), traces.forward(), how);
    }
    const TempDir dir;
    ExpectSameGradients(Profiled(traces.plain(), dir.path() + "/a.dlprof"),
                        Profiled(traces.forward(), dir.path() + "/b.dlprof"), all);
  }
}

TEST(ForwardPass, ChangesNoOtherCommand) {
  const TwoTraces traces(kAccumulated);
  const auto swept = [](const std::string& trace) {
    return Succeed({"sweep", trace, "--policy", "torch", "--csv", "-", "--quiet"});
  };
  EXPECT_EQ(swept(traces.forward()), swept(traces.plain()));
  const auto tuned = [](const std::string& trace) {
    return SucceedJson({"tune", trace, "--json", "-", "--quiet"});
  };
  const json expected = tuned(traces.plain()), found = tuned(traces.forward());
  EXPECT_EQ(WindowsOf(found), WindowsOf(expected));
}

// The trace of an inference, and its profile.
class Inference {
 public:
  Inference() {
    dir_.Write("step-0.safetensors", BuildSafetensors({FloatTensor("fc.act", {1, 70000.125f}),
                                                       FloatTensor("head.act", {1e-9f})}));
    paths = {dir_.path(), Profiled(dir_.path(), profiles_.path() + "/a.dlprof")};
  }
  std::vector<std::string> paths;

 private:
  TempDir dir_, profiles_;
};

TEST(ForwardPass, AloneTellsOfNoLossScale) {
  const Inference inference;
  for (const std::string& path : inference.paths) {
    ExpectFailure({"sweep", path, "--policy", "torch"}, 3, {"no gradients"});
    ExpectFailure({"tune", path, "--emit", "torch"}, 3, {"no gradients"});
    for (const char* command : {"replay", "tune"}) {
      const json found = SucceedJson({command, path, "--json", "-", "--quiet"});
      const json& formats = found["verdict"]["formats"];
      EXPECT_EQ(formats[0]["verdict"], "fails in forward");
      EXPECT_EQ(formats[1]["verdict"], "fits in forward");
      for (const json& format : formats) {
        EXPECT_TRUE(format["scale"].is_null() && format["window"].is_null()) << format;
        EXPECT_EQ(format["steps"], json::array());
      }
      const json& lines = found["verdict"]["lines"];
      EXPECT_EQ(lines[1], "bf16  fits in forward, with 111.9 binades of head-room.");
      EXPECT_EQ(lines[3],
                "Based on the forward pass of 1 of 1 step only: no gradients were recorded.");
      EXPECT_EQ(lines.size(), 4) << lines;
    }
    EXPECT_EQ(SucceedJson({"tune", path, "--json", "-", "--quiet"})["formats"], json::array());
  }
  EXPECT_EQ(SucceedJson({"info", inference.paths[0], "--json"})["tensors"][0]["role"], "act");
}

TEST(ForwardPass, AloneHasItsCountersButNoPolicies) {
  const Inference inference;
  for (const std::string& path : inference.paths) {
    const json runs = SucceedJson({"replay", path, "--json", "-", "--quiet"})["runs"];
    ASSERT_EQ(runs.size(), 3u);
    for (const json& run : runs) {
      EXPECT_EQ(run["policy"], "static");
      EXPECT_EQ(run["steps"][0]["scale"], 1.0);
      EXPECT_EQ(run["tensors"].size(), 2u);
    }
    EXPECT_EQ(runs[0]["tensors"][0]["overflow"], 1);
    const std::string report = Succeed({"replay", path, "--details", "--by-layer"});
    EXPECT_EQ(report.find("skipped"), report.npos) << report;
    EXPECT_NE(report.find("fp16 outputs  overflows      -0.10  70000.1 "), report.npos) << report;
  }
}

TEST(ForwardPass, AloneMeetsNoExpectationOfGradients) {
  const Inference inference;
  for (const std::string& path : inference.paths) {
    Succeed({"replay", path, "--format", "bf16", "--expect", "forward_headroom>1"});
    ExpectFailure({"replay", path, "--format", "bf16", "--expect", "skipped_steps<=3", "--quiet"},
                  1, {"skipped_steps is none"});
  }
}

// Nobody knows whether the loss depends on it.
TEST(ForwardPass, AloneWithAnOutputThatVanishesIsARisk) {
  const TempDir dir;
  dir.Write("step-0.safetensors", BuildSafetensors({FloatTensor("head.act", {1e-9f})}));
  const json verdict = SucceedJson({"replay", dir.path(), "--json", "-", "--quiet"})["verdict"];
  EXPECT_EQ(verdict["formats"][0]["verdict"], "fits in forward");
  EXPECT_EQ(verdict["lines"].back(),
            "At risk in fp16 in forward: head loses 100 % to underflow at step 0.");
}

TEST(ForwardPass, ParametersAloneAreNoForwardPass) {
  const TempDir dir;
  dir.Write("step-0.safetensors", BuildSafetensors({FloatTensor("fc.value", {1})}));
  for (const char* command : {"replay", "tune"}) {
    ExpectFailure({command, dir.path()}, 3, {"no gradients"});
  }
}

TEST(ForwardPass, IsNoDifference) {
  const TwoTraces traces(kSingle);
  const TempDir dir;
  const std::string plain = Profiled(traces.plain(), dir.path() + "/a.dlprof");
  const std::string forward = Profiled(traces.forward(), dir.path() + "/b.dlprof");
  const auto difference = [](const std::string& a, const std::string& b) {
    json result = SucceedJson({"diff", a, b, "--json", "-"});
    return json{result["summary"], result["tensors"], result["unmatched"]};
  };
  EXPECT_EQ(difference(traces.plain(), traces.forward()),
            difference(traces.plain(), traces.plain()));
  EXPECT_EQ(difference(forward, plain), difference(plain, plain));
}

TEST(ForwardPass, IsReportedWithTheGradients) {
  const TwoTraces traces(kSingle);
  const size_t steps = OpenTrace({kSingle}).step_count();
  const auto runs = [](const std::string& path) {
    return json::parse(RunCommand({"replay", path, "--format", "fp16", "--policy", "torch",
                                   "--json", "-", "--quiet"})
                           .out)["runs"][0];
  };
  const json run = runs(traces.forward());
  const json& forward = run["summary"]["forward"];
  EXPECT_EQ(forward["elements"], 10 * steps);
  EXPECT_EQ(forward["overflow"], 2 * steps);
  EXPECT_EQ(forward["underflow"], steps);
  EXPECT_EQ(forward["inf"], steps);
  EXPECT_EQ(forward["nan"], steps);
  EXPECT_EQ(run["summary"]["values"]["elements"], 4 * steps);
  EXPECT_EQ(run["summary"]["values"]["subnormal"], steps);
  const json& tensors = run["tensors"];
  EXPECT_EQ(tensors[tensors.size() - 5]["name"], "block.0.act");
  EXPECT_EQ(tensors[tensors.size() - 5]["role"], "act");
  EXPECT_EQ(tensors[tensors.size() - 5]["first_overflow_step"], run["steps"][0]["step"]);
  EXPECT_TRUE(tensors[tensors.size() - 5]["mean_harm"].is_null());
  EXPECT_EQ(runs(traces.plain())["summary"]["forward"]["elements"], 0);
  const TempDir dir;
  const json profiled = runs(Profiled(traces.forward(), dir.path() + "/b.dlprof"));
  EXPECT_EQ(profiled["summary"]["forward"], run["summary"]["forward"]);
  EXPECT_EQ(profiled["summary"]["values"], run["summary"]["values"]);
}

TEST(ForwardPass, HasRowsOfScaleOne) {
  const TwoTraces traces(kAccumulated);
  const auto rows = [](const std::string& trace) {
    return Lines(Succeed({"replay", trace, "--format", "fp16", "--policy", "torch", "--csv", "-"}));
  };
  std::vector<std::string> found = rows(traces.forward());
  const auto is_forward = [](const std::string& row) {
    return row.find(",act,") != row.npos || row.find(",value,") != row.npos;
  };
  size_t forward = 0;
  for (const std::string& row : found) {
    if (!is_forward(row)) continue;
    ++forward;
    EXPECT_NE(row.find(",1,0,"), row.npos) << row;
  }
  EXPECT_EQ(forward, 2u * 4u * 5u);
  std::erase_if(found, is_forward);
  EXPECT_EQ(found, rows(traces.plain()));
}

TEST(ForwardPass, AnOverflowIsHarmlessOnlyIfEachFileThatHasItSaysSo) {
  struct {
    float second;  // largest value of the second file, whose metadata list nothing
    const char* verdict;
  } cases[] = {{1e5f, "fails in forward"}, {10, "as is"}};
  for (const auto& [second, verdict] : cases) {
    for (const char* part : {"micro", "rank"}) {
      const TempDir dir, profiles;
      for (const bool first : {true, false}) {
        const nlohmann::ordered_json says = {{"harmless_overflow", "a.act"}};
        dir.Write(std::string("step-0.") + part + (first ? "-0" : "-1") + ".safetensors",
                  BuildSafetensors({FloatTensor("a.act", {1, first ? 1e5f : second}),
                                    FloatTensor("a.weight.grad", {1, 2})},
                                   first ? says : nlohmann::ordered_json::object()));
      }
      for (const std::string& path :
           {dir.path(), Profiled(dir.path(), profiles.path() + "/a.dlprof")}) {
        const json found =
            SucceedJson({"tune", path, "--format", "fp16", "--json", "-", "--quiet"});
        EXPECT_EQ(found["verdict"]["formats"][0]["verdict"], verdict) << part << " " << path;
      }
    }
  }
}

TEST(ForwardPass, MetadataGoThroughProfilesAndMerges) {
  const TwoTraces traces(kSingle);
  const TempDir dir;
  const std::string profile = Profiled(traces.forward(), dir.path() + "/a.dlprof");
  const std::string merged = dir.path() + "/b.dlprof";
  EXPECT_EQ(RunCommand({"merge", profile, "-o", merged}).exit_code, 0);
  for (const std::string& path : {traces.forward(), profile, merged}) {
    const json info = SucceedJson({"info", path, "--json"});
    EXPECT_NE(info["steps"].dump().find("mask.act\\nblock.0/exp.act"), std::string::npos) << path;
  }
}

}  // namespace
}  // namespace dlsim
