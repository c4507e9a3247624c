// SPDX-License-Identifier: Apache-2.0
// Writing profiles: what survives interruptions, and what is refused.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/profile/partial_file.h"
#include "src/profile/settings_json.h"
#include "src/profile/stored_profile.h"
#include "tests/support/profile_test_util.h"

namespace dlsim {
namespace {

namespace fs = std::filesystem;
using Existing = ProfileWriter::Existing;

class ProfileWriterTest : public testing::Test {
 protected:
  ProfileWriterTest() { encoded_.resize(4); }

  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  // Writes steps from what is done to `end`, and leaves the rest to another writer.
  void WritePart(const std::string& path, size_t end, Existing existing = Existing::kReplace) {
    ProfileWriter writer(path, settings_, existing);
    for (size_t i = writer.done().size(); i < end; ++i) writer.Append(encoded_[i]);
  }

  void Finish(const std::string& path, Existing existing = Existing::kReplace) {
    ProfileWriter writer(path, settings_, existing);
    for (size_t i = writer.done().size(); i < encoded_.size(); ++i) writer.Append(encoded_[i]);
    writer.Commit();
  }

  // What PATH.partial holds after all steps, if it holds some bytes before.
  std::string Resumed(const std::string& bytes) {
    fs::remove(Path("a.partial"));  // much faster than to cut it off
    dir_.Write("a.partial", bytes);
    PartialFile file(Path("a"));
    file.Resume(ProfileOpening(SettingsText("a", settings_), edges_));
    for (size_t i = file.done().size(); i < encoded_.size(); ++i) file.Append(encoded_[i]);
    EXPECT_EQ(file.done().size(), encoded_.size());
    return ReadBytes(Path("a.partial"));
  }

  std::string Whole() {
    WriteProfile(Path("whole"), settings_, encoded_);
    return ReadBytes(Path("whole"));
  }

  TempDir dir_;
  ProfileSettings settings_ = SettingsOf(SmallLadder());
  HistogramEdges edges_ = EdgesOf(settings_.ladder);
  std::vector<ProfileStep> steps_ = FewTensors(StepsOf(kSingle, edges_));
  std::vector<EncodedStep> encoded_ = Encode(steps_, edges_);
};

TEST_F(ProfileWriterTest, GoesOnWhereAnotherWasInterrupted) {
  const std::string whole = Whole();
  for (size_t done = 0; done <= encoded_.size(); ++done) {
    WritePart(Path("a"), done);
    EXPECT_FALSE(fs::exists(Path("a")));
    {
      const ProfileWriter writer(Path("a"), settings_, Existing::kReplace);
      ASSERT_EQ(writer.done().size(), done);
      EXPECT_FALSE(writer.replaced_partial());
      for (size_t i = 0; i < done; ++i) {
        EXPECT_EQ(writer.done()[i].step, steps_[i].step);
        EXPECT_EQ(writer.done()[i].files, steps_[i].files);
      }
    }
    Finish(Path("a"));
    EXPECT_EQ(ReadBytes(Path("a")), whole);
    EXPECT_FALSE(fs::exists(Path("a.partial")));
    fs::remove(Path("a"));
  }
}

TEST_F(ProfileWriterTest, GoesOnBehindWhateverAKillLeft) {
  encoded_.resize(2);
  const std::string whole = Whole();
  for (size_t size = 0; size <= whole.size(); ++size) {
    ASSERT_TRUE(whole.starts_with(Resumed(whole.substr(0, size)))) << "cut at " << size;
  }
}

TEST_F(ProfileWriterTest, GoesOnBeforeABadByte) {
  encoded_.resize(2);
  const std::string whole = Whole();
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    ASSERT_TRUE(whole.starts_with(Resumed(bytes))) << "changed at " << at;
  }
}

TEST_F(ProfileWriterTest, ForgetsStepsOnDemand) {
  for (size_t i = 2; i < steps_.size(); ++i) steps_[i].tensors[0].name = "renamed";
  encoded_ = Encode(steps_, edges_);
  encoded_.resize(4);
  const std::string whole = Whole();
  for (size_t kept = 0; kept <= 4; ++kept) {
    ProfileWriter writer(Path("a"), settings_, Existing::kReplace);
    for (const EncodedStep& step : encoded_) writer.Append(step);
    writer.Truncate(kept);
    ASSERT_EQ(writer.done().size(), kept);
    for (size_t i = kept; i < encoded_.size(); ++i) writer.Append(encoded_[i]);
    writer.Commit();
    EXPECT_EQ(ReadBytes(Path("a")), whole);
  }
}

TEST_F(ProfileWriterTest, BeginsAnewWithOtherSettings) {
  WritePart(Path("a"), 2);
  settings_.tensors = "w*";
  {
    const ProfileWriter writer(Path("a"), settings_, Existing::kReplace);
    EXPECT_TRUE(writer.replaced_partial());
    EXPECT_TRUE(writer.done().empty());
  }
  EXPECT_FALSE(ProfileWriter(Path("a"), settings_, Existing::kReplace).replaced_partial());
}

TEST_F(ProfileWriterTest, ReplacesACompleteFileOnlyWhenDone) {
  WriteProfile(Path("a"), settings_, {encoded_[3]});
  const std::string before = ReadBytes(Path("a"));
  WritePart(Path("a"), 2);
  EXPECT_EQ(ReadBytes(Path("a")), before);
  Finish(Path("a"));
  EXPECT_EQ(ReadBytes(Path("a")), Whole());
}

TEST_F(ProfileWriterTest, ExtendsACompleteFile) {
  const std::string whole = Whole();
  for (size_t first = 0; first <= encoded_.size(); ++first) {
    WriteProfile(Path("a"), settings_, {encoded_.begin(), encoded_.begin() + ptrdiff_t(first)});
    WritePart(Path("a"), encoded_.size() - 1, Existing::kExtend);  // is interrupted
    EXPECT_EQ(OpenProfile({Path("a")}).step_count(), first);
    Finish(Path("a"), Existing::kExtend);
    EXPECT_EQ(ReadBytes(Path("a")), whole);
  }
}

TEST_F(ProfileWriterTest, ExtendsFromTheCompleteFileIfTakingOverWasInterrupted) {
  WriteProfile(Path("a"), settings_, {encoded_.begin(), encoded_.begin() + 3});
  WritePart(Path("b"), 1);
  fs::rename(Path("b.partial"), Path("a.partial"));
  const ProfileWriter writer(Path("a"), settings_, Existing::kExtend);
  EXPECT_EQ(writer.done().size(), 3u);
}

TEST_F(ProfileWriterTest, ExtendsWhatDoesNotExistYet) {
  Finish(Path("a"), Existing::kExtend);
  EXPECT_EQ(ReadBytes(Path("a")), Whole());
}

TEST_F(ProfileWriterTest, KnowsWhenTheStepsWereWritten) {
  WriteProfile(Path("a"), settings_, {encoded_[0]});
  const struct timespec old[2] = {{1000, 0}, {1000, 5}};
  ASSERT_EQ(utimensat(AT_FDCWD, Path("a").c_str(), old, 0), 0);
  EXPECT_EQ(ProfileWriter(Path("a"), settings_, Existing::kExtend).done_at(), 1000'000'000'005);
}

TEST_F(ProfileWriterTest, RefusesASecondWriterOfTheFile) {
  const ProfileWriter writer(Path("a"), settings_, Existing::kReplace);
  ExpectInputError([&] { ProfileWriter(Path("a"), settings_, Existing::kReplace); },
                   {Path("a"), "being written"});
}

TEST_F(ProfileWriterTest, RefusesStepsThatDoNotAscend) {
  ProfileWriter writer(Path("a"), settings_, Existing::kReplace);
  writer.Append(encoded_[1]);
  ExpectInputError([&] { writer.Append(encoded_[1]); }, {Path("a"), "ascend"});
  ExpectInputError([&] { writer.Append(encoded_[0]); }, {Path("a"), "ascend"});
  EXPECT_EQ(writer.done().size(), 1u);
}

TEST_F(ProfileWriterTest, FollowsLinks) {
  fs::create_directory(Path("data"));
  fs::create_symlink("data/real", Path("link"));
  Finish(Path("link"));
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(ReadBytes(Path("data/real")), Whole());
}

TEST_F(ProfileWriterTest, RefusesWhatCannotBeReplaced) {
  const auto expect = [&](const std::string& path, std::string_view word) {
    ExpectInputError([&] { ProfileWriter(path, settings_, Existing::kReplace); }, {path, word});
    ExpectInputError([&] { ProfileWriter(path, settings_, Existing::kExtend); }, {path, word});
  };
  expect(dir_.path(), "Is a directory");
  expect("/dev/null", "cannot be replaced");
  expect(Path("missing/a"), "No such file");
  expect("/proc/dlsim.dlprof", "cannot be written");
  fs::create_symlink("loop", Path("loop"));
  expect(Path("loop"), "symbolic links");
  ASSERT_EQ(mkfifo(Path("pipe.partial").c_str(), 0600), 0);
  expect(Path("pipe"), "cannot be written");
  fs::create_symlink(Path("other"), Path("trap.partial"));
  expect(Path("trap"), "cannot be written");
  EXPECT_FALSE(fs::exists(Path("other")));
}

TEST_F(ProfileWriterTest, RefusesStandardOutputAndNoName) {
  for (const char* path : {"-", ""}) {
    try {
      ProfileWriter(path, settings_, Existing::kReplace);
      ADD_FAILURE() << "not refused: '" << path << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    }
  }
}

TEST_F(ProfileWriterTest, RefusesToExtendWhatIsNoProfile) {
  dir_.Write("a", "text that is long enough to be something else than a profile");
  ExpectInputError([&] { ProfileWriter(Path("a"), settings_, Existing::kExtend); },
                   {Path("a"), "is not a profile"});
  EXPECT_EQ(ReadBytes(Path("a")).substr(0, 4), "text");
  EXPECT_FALSE(fs::exists(Path("a.partial")));
}

// Sets the largest size of files, which fails writes as a full device does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const struct rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_DFL);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  struct rlimit before_ = {};
};

TEST_F(ProfileWriterTest, LosesNothingWhenTheDeviceIsFull) {
  WriteProfile(Path("a"), settings_, {encoded_[3]});
  const std::string before = ReadBytes(Path("a")), whole = Whole();
  for (size_t room = 0; room < whole.size(); room += 1 + whole.size() / 50) {
    {
      const FileSizeLimit limit(room);
      ExpectInputError([&] { Finish(Path("a")); }, {Path("a"), "cannot be written"});
    }
    ASSERT_EQ(ReadBytes(Path("a")), before);
  }
  EXPECT_GE(ProfileWriter(Path("a"), settings_, Existing::kReplace).done().size(), 3u);
  Finish(Path("a"));
  EXPECT_EQ(ReadBytes(Path("a")), whole);
}

}  // namespace
}  // namespace dlsim
