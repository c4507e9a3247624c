// SPDX-License-Identifier: Apache-2.0
// The partial file of a profile that is being written: its owner and permissions.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/profile_test_util.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;
using Existing = ProfileWriter::Existing;

class PartialFileTest : public testing::Test {
 protected:
  PartialFileTest() { encoded_.resize(2); }

  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  std::string Whole() {
    WriteProfile(Path("whole"), settings_, encoded_);
    return ReadBytes(Path("whole"));
  }

  void Finish(const std::string& path) {
    ProfileWriter writer(path, settings_, Existing::kReplace);
    for (size_t i = writer.done().size(); i < encoded_.size(); ++i) writer.Append(encoded_[i]);
    writer.Commit();
  }

  TempDir dir_;
  ProfileSettings settings_ = SettingsOf(SmallLadder());
  HistogramEdges edges_ = EdgesOf(settings_.ladder);
  std::vector<EncodedStep> encoded_ = Encode(FewTensors(StepsOf(kSingle, edges_)), edges_);
};

// What lies there belongs to somebody.
TEST_F(PartialFileTest, NeverOverwritesAPartialFileOfSomebodyElse) {
  const std::string whole = Whole();
  WriteProfile(Path("other"), settings_, {encoded_[0]});
  const auto expect = [&](const std::string& bytes, std::string_view word) {
    for (const Existing existing : {Existing::kReplace, Existing::kExtend}) {
      ExpectInputError([&] { ProfileWriter(Path("a"), settings_, existing); },
                       {"a.partial", word, "not overwritten"});
    }
    const std::vector<std::string> paths = {Path("other")};
    ExpectInputError([&] { MergeProfiles(paths, Path("a")); }, {"a.partial", word});
    EXPECT_EQ(ReadBytes(Path("a.partial")), bytes);
  };
  for (const std::string text : {"x", "DLX", "notes of somebody\n"}) {
    dir_.Write("a.partial", text);
    expect(text, "not an unfinished profile");
  }
  fs::remove(Path("a.partial"));
  fs::create_hard_link(Path("whole"), Path("a.partial"));
  expect(whole, "hard link");
  fs::remove(Path("a.partial"));
  fs::copy_file(Path("whole"), Path("a.partial"));
  settings_.tensors = "w*";
  expect(whole, "complete profile");
}

TEST_F(PartialFileTest, ACompletePartialFileStaysUntilItIsWrittenTo) {
  const std::string whole = Whole();
  fs::rename(Path("whole"), Path("a.partial"));
  { const ProfileWriter writer(Path("a"), settings_, Existing::kReplace); }
  EXPECT_EQ(ReadBytes(Path("a.partial")), whole);
  Finish(Path("a"));
  EXPECT_EQ(ReadBytes(Path("a")), whole);
}

TEST_F(PartialFileTest, AMergeThatEndedBeforeItWasRenamedCanBeMadeAgain) {
  const std::string whole = Whole();
  fs::copy_file(Path("whole"), Path("a.partial"));
  const std::vector<std::string> paths = {Path("whole")};
  MergeProfiles(paths, Path("a"));
  EXPECT_EQ(ReadBytes(Path("a")), whole);
  EXPECT_FALSE(fs::exists(Path("a.partial")));
}

TEST_F(PartialFileTest, KeepsTheModeOfWhatItReplaces) {
  dir_.Write("a", "older");
  ASSERT_EQ(chmod(Path("a").c_str(), 0600), 0);
  { ProfileWriter(Path("a"), settings_, Existing::kReplace).Append(encoded_[0]); }
  struct stat status = {};
  ASSERT_EQ(stat(Path("a.partial").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  Finish(Path("a"));
  ASSERT_EQ(stat(Path("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace dlsim
