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
  for (const Arguments& arguments :
       std::vector<Arguments>{{"sweep", "--policy", "torch", "--csv", "-", "--quiet"},
                              {"accumulate", "--format", "bf16", "--csv", "-"}}) {
    const auto of = [&](const std::string& trace) {
      Arguments with = arguments;
      with.insert(with.begin() + 1, trace);
      return Succeed(with);
    };
    EXPECT_EQ(of(traces.forward()), of(traces.plain()));
  }
  const auto tuned = [](const std::string& trace) {
    return SucceedJson({"tune", trace, "--json", "-", "--quiet"});
  };
  const json expected = tuned(traces.plain()), found = tuned(traces.forward());
  EXPECT_EQ(WindowsOf(found), WindowsOf(expected));
}

TEST(ForwardPass, AloneTellsOfNoLossScale) {
  const TempDir dir;
  dir.Write("step-0.safetensors", BuildSafetensors({FloatTensor("fc.act", {1, 70000})}));
  const TempDir profiles;
  const std::string profile = Profiled(dir.path(), profiles.path() + "/a.dlprof");
  for (const char* command : {"replay", "sweep", "tune"}) {
    for (const std::string& path : {dir.path(), profile}) {
      Arguments arguments = {command, path};
      if (std::string(command) == "sweep") arguments.insert(arguments.end(), {"--policy", "torch"});
      ExpectFailure(arguments, 3, {"no gradients"});
    }
  }
  EXPECT_EQ(SucceedJson({"info", dir.path(), "--json"})["tensors"][0]["role"], "act");
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

TEST(ForwardPass, StandsBesideTheGradients) {
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
