// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

using Layout = TraceDirectoryTest;

TEST_F(Layout, ReadsStepsInNumericOrder) {
  WriteStep("step-10.safetensors", R"("step":"10","loss":"nan","lr":"inf","grad_scale":"65536")");
  WriteStep("step-00000002.safetensors");
  WriteStep("step-00000003.safetensors.tmp");
  WriteStep("notes.safetensors");
  const TraceReader reader = Open();
  EXPECT_EQ(StepNumbers(reader), (std::vector<int64_t>{2, 10}));
  EXPECT_EQ(reader.file_bytes(), std::filesystem::file_size(Path("step-10.safetensors")) +
                                     std::filesystem::file_size(Path("step-00000002.safetensors")));
  const TraceStep step = reader.Load(1);
  EXPECT_EQ(step.step, 10);
  EXPECT_EQ(step.recordings[0].micro, -1);
  EXPECT_EQ(step.recordings[0].grad_scale, 65536.0f);
  EXPECT_EQ(step.recordings[0].metadata.at("loss"), "nan");
  EXPECT_EQ(step.recordings[0].place, Path("step-10.safetensors"));
  EXPECT_TRUE(reader.notes().empty());
}

// As others name the files of their steps.
TEST_F(Layout, ReadsFilesThatEndInANumber) {
  for (const char* const stem : {"step_", "step", "grads-", "", "run 3 at "}) {
    const std::string begin = stem;
    WriteStep(begin + "10.safetensors");
    WriteStep(begin + "0009.safetensors");
    WriteStep("model.safetensors");
    dir_.Write("readme.txt", "");
    const TraceReader reader = Open();
    EXPECT_EQ(StepNumbers(reader), (std::vector<int64_t>{9, 10})) << stem;
    EXPECT_EQ(reader.Load(0).step, 9);
    std::filesystem::remove(Path(begin + "10.safetensors"));
    std::filesystem::remove(Path(begin + "0009.safetensors"));
  }
}

TEST_F(Layout, SaysWhyNumbersDoNotHelp) {
  WriteStep("model.safetensors");
  ExpectRefused({"no step number", "step-12.safetensors", "'model.safetensors'"});
  WriteStep("grads_1.safetensors");
  WriteStep("weights_1.safetensors");
  ExpectRefused({"several kinds", "grads_1", "weights_1"});
  std::filesystem::remove(Path("weights_1.safetensors"));
  WriteStep("grads_01.safetensors");
  ExpectRefused({"a step twice", "grads_1", "grads_01"});
  std::filesystem::remove(Path("grads_1.safetensors"));
  std::filesystem::remove(Path("grads_01.safetensors"));
  WriteStep("model-00001-of-00002.safetensors");
  ExpectRefused({"without their index", "model-00001-of-00002"});
}

// The word before a number says what it counts; where it does not, the tensors do, or nothing does.
TEST_F(Layout, NumbersOfRanksAndLayersAreNoSteps) {
  for (const char* const stem :
       {"rank_", "grads.rank", "micro_step_", "accum-", "layer", "conv."}) {
    SCOPED_TRACE(stem);
    const std::string begin = stem;
    WriteStep(begin + "0.safetensors");
    WriteStep(begin + "1.safetensors");
    ExpectRefused({"do not count steps", "one file per step", begin + "0", begin + "1"});
    std::filesystem::remove(Path(begin + "0.safetensors"));
    EXPECT_EQ(StepNumbers(Open()), std::vector<int64_t>{0});  // one file is one step
    std::filesystem::remove(Path(begin + "1.safetensors"));
  }
}

TEST_F(Layout, ANumberAfterAWordForAStepCountsSteps) {
  for (const char* const name :
       {"step_#_rank_0", "layer3_step#", "gradStep#", "epoch_#", "iter#-w", "global_step#.grads"}) {
    SCOPED_TRACE(name);
    const std::string pattern = std::string(name) + ".safetensors";
    const size_t at = pattern.find('#');
    std::vector<std::string> names;
    for (const char* number : {"3", "12"}) {
      names.push_back(std::string(pattern).replace(at, 1, number));
      WriteStep(names.back());
    }
    const TraceReader reader = Open();
    EXPECT_EQ(StepNumbers(reader), (std::vector<int64_t>{3, 12}));
    EXPECT_TRUE(reader.notes().empty());
    for (const std::string& written : names) std::filesystem::remove(Path(written));
  }
}

TEST_F(Layout, FilesWithoutATensorInCommonAreNoSteps) {
  dir_.Write("grads_1.safetensors", StepBytes("", "a.grad"));
  dir_.Write("grads_2.safetensors", StepBytes("", "b.grad"));
  ExpectRefused({"no tensor in common", "grads_1", "grads_2"});
  dir_.Write("grads_2.safetensors", StepBytes("", "a.grad"));
  EXPECT_EQ(StepNumbers(Open()), (std::vector<int64_t>{1, 2}));
}

TEST_F(Layout, TellsTheFilesOfAStep) {
  WriteStep("step-1.micro-0.safetensors");
  WriteStep("step-1.micro-1.safetensors");
  WriteStep("step-2.micro-0.safetensors");
  const TraceReader reader = Open();
  EXPECT_EQ(reader.files(0), (std::vector<std::string>{Path("step-1.micro-0.safetensors"),
                                                       Path("step-1.micro-1.safetensors")}));
  EXPECT_EQ(reader.files(1), std::vector<std::string>{Path("step-2.micro-0.safetensors")});
}

TEST_F(Layout, OpenReadsNoStepFile) {
  dir_.Write("step-0.safetensors", "damaged");
  const TraceReader reader = Open();
  ExpectInputError([&] { reader.Load(0); }, {"step-0.safetensors"});
}

TEST_F(Layout, RejectsUnknownStepNames) {
  for (const char* name :
       {"step-.safetensors", "step-1x.safetensors", "step-1.micro-.safetensors",
        "step-1.micro-0.rank-0.safetensors", "step-1.tmp.safetensors", "step--1.safetensors",
        "step-1234567890123456789.safetensors", "step-1.rank-0x.safetensors"}) {
    SCOPED_TRACE(name);
    WriteStep(name);
    ExpectRefused({name, "step-<digits>"});
    std::filesystem::remove(Path(name));
  }
}

TEST_F(Layout, RejectsTheSameStepTwice) {
  WriteStep("step-1.safetensors");
  WriteStep("step-01.safetensors");
  ExpectRefused({"same step as", "step-01.safetensors"});
}

TEST_F(Layout, ReadsMicroSteps) {
  for (const char* micro : {"0", "1", "2"}) {
    const std::string number = micro;
    WriteStep("step-7.micro-" + number + ".safetensors",
              R"("step":"7","accumulate":"sum","micro_steps":"3","micro_step":")" + number + "\"");
  }
  const TraceStep step = Open().Load(0);
  ASSERT_EQ(step.recordings.size(), 3u);
  EXPECT_EQ(step.recordings[2].micro, 2);
}

TEST_F(Layout, RejectsMissingMicroSteps) {
  WriteStep("step-7.micro-01.safetensors");
  ExpectRefused({"missing micro-step", "micro-step 0 of step 7"});
  WriteStep("step-7.micro-00.safetensors", R"("micro_steps":"3")");
  ExpectRefused({"step-7.micro-00", "missing micro-step", "expected 3", "got 2"});
  WriteStep("step-7.safetensors");
  ExpectRefused({"with and without micro-steps"});
}

TEST_F(Layout, RejectsOneMicroStepOfSeveral) {
  const std::string path =
      dir_.Write("step-7.micro-0.safetensors", StepBytes(R"("micro_steps":"4","micro_step":"0")"));
  ExpectInputError([&] { ReadWholeTrace({path}); }, {"missing micro-step", "expected 4"});
}

TEST_F(Layout, AsksForTheDirectoryOfFilesThatBelongTogether) {
  WriteStep("step-7.micro-0.safetensors");
  WriteStep("step-7.micro-1.safetensors");
  ExpectInputError(
      [&] {
        OpenTrace({Path("step-7.micro-0.safetensors"), Path("step-7.micro-1.safetensors")});
      },
      {"micro-1.safetensors: micro-steps given as single files",
       "expected their directory, '" + dir_.path() + "'"});
  WriteStep("step-8.safetensors");
  const std::string json = dir_.Write("trace.json", "{}");
  ExpectInputError(
      [&] {
        OpenTrace({Path("step-8.safetensors"), json});
      },
      {"trace.json: describes a trace but is not one",
       "expected the directory, '" + dir_.path() + "'"});
}

TEST_F(Layout, RejectsMicroStepsWithOtherParameters) {
  WriteStep("step-7.micro-0.safetensors");
  dir_.Write("step-7.micro-1.safetensors", StepBytes("", "v.grad"));
  ExpectRefused({"micro-1.safetensors: tensor 'v.grad'", "not in micro-step 0"});
  dir_.Write("step-7.micro-1.safetensors", StepBytes("", "w.act_grad"));
  ExpectRefused({"micro-1.safetensors: tensor 'w.grad'", "is missing"});
  dir_.Write(
      "step-7.micro-1.safetensors",
      SafetensorsBytes(R"({"w.grad":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})", "abcd"));
  ExpectRefused({"micro-1.safetensors: tensor 'w.grad'", "shape differs", "[1]", "[1, 1]"});
}

TEST_F(Layout, MicroStepsMayDifferInActivationGradients) {
  dir_.Write("step-7.micro-0.safetensors", StepBytes("", "x.act_grad"));
  dir_.Write("step-7.micro-1.safetensors", StepBytes("", "y.act_grad"));
  EXPECT_EQ(Open().Load(0).recordings.size(), 2u);
}

TEST_F(Layout, RejectsMetadataThatContradictsTheName) {
  WriteStep("step-7.micro-0.safetensors", R"("step":"8")");
  ExpectRefused({"step in the metadata differs", "expected 7", "got 8"});
  WriteStep("step-7.micro-0.safetensors", R"("micro_step":"1")");
  ExpectRefused({"micro_step in the metadata differs", "expected 0", "got 1"});
  WriteStep("step-7.micro-0.safetensors", R"("step":"seven")");
  ExpectRefused({"bad step", "'seven'"});
}

TEST_F(Layout, RejectsBadGradScales) {
  for (const char* scale : {"", "0", "-1", "nan", "inf", "1e99", "1e-99", "1e-40", "2.9e-39", "1,5",
                            "65536 ", "two", "0x10", "+1"}) {
    SCOPED_TRACE(scale);
    WriteStep("step-1.safetensors", std::string("\"grad_scale\":\"") + scale + "\"");
    ExpectRefused({"step-1.safetensors", "grad_scale", "positive"});
  }
  WriteStep("step-1.safetensors", R"("grad_scale":"1.5e3")");
  EXPECT_EQ(Open().Load(0).recordings[0].grad_scale, 1500.0f);
  WriteStep("step-1.safetensors", R"("grad_scale":"3e-39")");
  EXPECT_EQ(Open().Load(0).recordings[0].grad_scale, 3e-39f);
}

TEST_F(Layout, RejectsOtherWaysToAccumulate) {
  WriteStep("step-1.safetensors", R"("accumulate":"mean")");
  ExpectRefused({"unsupported accumulate", "'sum'", "'mean'"});
}

TEST_F(Layout, SelectsTensorsByGlob) {
  WriteStep("step-1.safetensors");
  const TraceOptions options{.tensors = "v*", .npy_void2 = {}, .ranks = {}};
  EXPECT_TRUE(OpenTrace({dir_.path()}, options).Load(0).recordings[0].tensors.empty());
}

TEST_F(Layout, TraceJsonDescribesAndSetsRoles) {
  WriteStep("step-1.safetensors");
  dir_.Write(
      "trace.json",
      R"({"model":"m","seed":3,"nested":{"a":[1]},"steps":[1],"roles":{"w.grad":"act_grad"},)"
      R"("files":["step-1.safetensors"],"trace_format":1})");
  const TraceReader reader = Open();
  EXPECT_EQ(reader.description(), (std::map<std::string, std::string>{{"model", "m"}}));
  EXPECT_EQ(reader.Load(0).recordings[0].tensors[0].info->role, Role::kActGrad);
}

TEST_F(Layout, RejectsStepsThatTraceJsonMisses) {
  dir_.Write("trace.json", R"({"files":["step-2.safetensors"]})");
  ExpectRefused({"missing step", "step-2.safetensors"});
  WriteStep("step-1.safetensors");
  ExpectRefused({"missing step", "step-2.safetensors"});
  dir_.Write("trace.json", R"({"steps":[1,5]})");
  ExpectRefused({"missing step 5"});
}

TEST_F(Layout, NotesFilesThatTraceJsonDoesNotList) {
  WriteStep("step-1.safetensors");
  WriteStep("step-2.safetensors");
  WriteStep("step-3.safetensors");
  dir_.Write("trace.json", R"({"files":["step-1.safetensors"]})");
  const TraceReader reader = Open();
  EXPECT_EQ(reader.step_count(), 3u);
  ASSERT_EQ(reader.notes().size(), 1u);
  EXPECT_NE(reader.notes()[0].find("2 of the step files"), std::string::npos) << reader.notes()[0];
  EXPECT_NE(reader.notes()[0].find("step-2.safetensors"), std::string::npos) << reader.notes()[0];
}

TEST_F(Layout, RejectsBadTraceJson) {
  WriteStep("step-1.safetensors");
  const std::vector<std::pair<std::string, std::string_view>> cases = {
      {"", "bad JSON"},
      {"{", "bad JSON"},
      {"[]", "not a JSON object"},
      {R"({"a":1,"a":2})", "duplicate key 'a'"},
      {R"({"a":{"b":1,"b":2}})", "duplicate key 'b'"},
      {std::string(100'000, '['), "too deep"},
      {"{\"a\":\"\xFF\"}", "bad JSON"},
      {std::string("{}\0", 3), "zero byte"},
      {R"({"files":"x"})", "'files'"},
      {R"({"files":["../step-1.safetensors"]})", "'files' has a wrong entry"},
      {R"({"files":[1]})", "'files' has a wrong entry"},
      {R"({"steps":[-1]})", "'steps' has a wrong entry"},
      {R"({"steps":[1.5]})", "'steps' has a wrong entry"},
      {R"({"steps":{}})", "'steps'"},
      {R"({"roles":[]})", "'roles'"},
      {R"({"roles":{"w.grad":"weight"}})", "wrong role"},
      {R"({"trace_format":2})", "unsupported trace_format"},
      {std::string((32 << 20) + 1, ' '), "too large"}};
  for (const auto& [text, word] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    dir_.Write("trace.json", text);
    ExpectRefused({"trace.json: ", word});
  }
}

TEST_F(Layout, RejectsDirectoriesWithoutSteps) {
  ExpectRefused({"no step found", ".npz"});
  dir_.Write("trace.json", "{}");
  ExpectRefused({"no step found"});
}

TEST_F(Layout, RejectsOtherContainers) {
  for (const char* name : {"a.pt", "a.pth", "a.bin", "a.h5", "a.parquet"}) {
    const std::string path = dir_.Write(name, "x");
    ExpectInputError([&] { OpenTrace({path}); },
                     {name, "convert it to .safetensors (dlsim import"});
  }
  const std::string path = dir_.Write("a.csv", "x");
  ExpectInputError([&] { OpenTrace({path}); }, {"a.csv", "unknown kind", ".npy"});
  ExpectInputError([&] { OpenTrace({Path("missing")}); }, {"missing", "No such file"});
  ExpectInputError([&] { OpenTrace({}); }, {"no trace"});
}

TEST_F(Layout, NumbersFilesThatRecordNoStep) {
  const std::string plain = dir_.Write("a.safetensors", StepBytes(""));
  const std::string five = dir_.Write("b.safetensors", StepBytes(R"("step":"5")"));
  EXPECT_EQ(StepNumbers(OpenTrace({plain, five, plain})), (std::vector<int64_t>{0, 5, 6}));
  ExpectInputError(
      [&] {
        OpenTrace({plain, five, five});
      },
      {"b.safetensors", "do not ascend", "after 5", "got 5"});
}

TEST_F(Layout, TakesTheStepOfAFileFromItsName) {
  WriteStep("step-4.safetensors");
  WriteStep("step-6.safetensors");
  EXPECT_EQ(StepNumbers(OpenTrace({Path("step-4.safetensors"), Path("step-6.safetensors")})),
            (std::vector<int64_t>{4, 6}));
}

}  // namespace
}  // namespace dlsim
