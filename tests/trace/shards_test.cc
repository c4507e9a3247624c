// SPDX-License-Identifier: Apache-2.0
#include "src/trace/recording.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

class Shards : public TraceDirectoryTest {
 protected:
  void WriteIndex(const std::string& map) {
    dir_.Write("model.safetensors.index.json",
               std::string(R"({"metadata":{"total_size":8},"weight_map":{)") + map + "}}");
  }
  void WriteTwoShards() {
    dir_.Write("m-1.safetensors", StepBytes(R"("step":"3")", "a.grad", 1));
    dir_.Write("m-2.safetensors", StepBytes("", "b.grad", 2));
    WriteIndex(R"("b.grad":"m-2.safetensors","a.grad":"m-1.safetensors")");
  }
};

TEST_F(Shards, AreOneStep) {
  WriteTwoShards();
  for (const std::string& path : {dir_.path(), Path("model.safetensors.index.json")}) {
    const TraceReader reader = OpenTrace({path});
    EXPECT_EQ(StepNumbers(reader), std::vector<int64_t>{3});
    const TraceStep step = reader.Load(0);
    EXPECT_EQ(step.recordings[0].file_bytes, reader.file_bytes());
    ASSERT_EQ(step.recordings[0].tensors.size(), 2u);
    EXPECT_EQ(TensorBytes(step.recordings[0].tensors[1]), Float32Bytes({2}));
  }
}

// What a shell makes of model-*.safetensors.
TEST_F(Shards, GivenAsFilesAreReadByTheirIndex) {
  dir_.Write("m-00001-of-00002.safetensors", StepBytes(R"("step":"3")", "a.grad", 1));
  dir_.Write("m-00002-of-00002.safetensors", StepBytes("", "b.grad", 2));
  const std::vector<std::string> files = {Path("m-00001-of-00002.safetensors"),
                                          Path("m-00002-of-00002.safetensors")};
  ExpectInputError([&] { OpenTrace(files); },
                   {"shards of one step without their index", "m.safetensors.index.json"});
  dir_.Write("m.safetensors.index.json",
             R"({"weight_map":{"a.grad":"m-00001-of-00002.safetensors",)"
             R"("b.grad":"m-00002-of-00002.safetensors"}})");
  const TraceReader reader = OpenTrace(files);
  EXPECT_EQ(StepNumbers(reader), std::vector<int64_t>{3});
  EXPECT_EQ(reader.Load(0).recordings[0].tensors.size(), 2u);
  ASSERT_EQ(reader.notes().size(), 1u);
  EXPECT_NE(reader.notes()[0].find("2 files are shards of one step"), std::string::npos);
  EXPECT_EQ(OpenTrace({files[0]}).Load(0).recordings[0].tensors.size(), 1u);
}

TEST_F(Shards, AreFilesOfTheStepNextToTheirIndex) {
  WriteTwoShards();
  EXPECT_EQ(OpenTrace({dir_.path()}).files(0),
            (std::vector<std::string>{Path("model.safetensors.index.json"), Path("m-1.safetensors"),
                                      Path("m-2.safetensors")}));
}

TEST_F(Shards, MayBeSymbolicLinks) {
  WriteTwoShards();
  std::filesystem::rename(Path("m-1.safetensors"), Path("blob"));
  std::filesystem::create_symlink("blob", Path("m-1.safetensors"));
  EXPECT_EQ(ReadWholeTrace({dir_.path()}), 8u);
}

TEST_F(Shards, RejectNamesThatLeaveTheFolder) {
  for (const char* name : {"../m.safetensors", "/etc/passwd", "..", ".", "", "d/../../m",
                           "..\\\\m.safetensors", "m\\u0000.safetensors"}) {
    SCOPED_TRACE(name);
    WriteIndex(std::string("\"a.grad\":\"") + name + "\"");
    ExpectRefused({"tensor 'a.grad'", "bad file name in weight_map"});
  }
}

TEST_F(Shards, MustHoldWhatTheIndexSays) {
  WriteTwoShards();
  WriteIndex(R"("a.grad":"m-1.safetensors")");
  EXPECT_EQ(ReadWholeTrace({dir_.path()}), 4u);
  WriteIndex(R"("a.grad":"m-1.safetensors","c.grad":"m-1.safetensors")");
  ExpectRefused({"m-1.safetensors: tensor 'c.grad'", "missing"});
  WriteIndex(R"("a.grad":"m-1.safetensors","c.grad":"m-2.safetensors")");
  ExpectRefused({"m-2.safetensors: tensor 'b.grad'", "does not map"});
  WriteIndex(R"("a.grad":"m-1.safetensors","c.grad":"m-3.safetensors")");
  ExpectRefused({"m-3.safetensors", "No such file"});
}

TEST_F(Shards, MustAgreeOnScaleAndStep) {
  WriteTwoShards();
  dir_.Write("m-2.safetensors", StepBytes(R"("grad_scale":"2")", "b.grad"));
  ExpectRefused({"m-2.safetensors", "grad_scale differs"});
  dir_.Write("m-2.safetensors", StepBytes(R"("step":"4")", "b.grad"));
  ExpectRefused({"m-2.safetensors", "step in the metadata differs"});
}

TEST_F(Shards, RejectBadIndices) {
  for (const char* map : {"", R"("a":1)", R"("a":"x","a":"x")"}) {
    WriteIndex(map);
    ExpectRefused({"model.safetensors.index.json"});
  }
  dir_.Write("model.safetensors.index.json", "{}");
  ExpectRefused({"'weight_map'"});
  dir_.Write("other.safetensors.index.json", "{}");
  ExpectRefused({"several indices"});
}

}  // namespace
}  // namespace dlsim
