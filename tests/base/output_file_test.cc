// SPDX-License-Identifier: Apache-2.0
#include "sim/base/files.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/trace_test_util.h"

namespace dlsim::sim {
namespace {

namespace fs = std::filesystem;

void WriteResult(const std::string& path, const std::string& text) {
  OutputFile out(path);
  out.Write(text);
  out.Commit();
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t FilesIn(const std::string& directory) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(directory), {}));
}

TEST(OutputFile, ReplacesItsTargetWhenComplete) {
  const TempDir dir;
  const std::string path = dir.Write("r.json", "old");
  {
    OutputFile out(path);
    out.Write("new");
    EXPECT_EQ(Contents(path), "old");
  }
  EXPECT_EQ(Contents(path), "old") << "not committed";
  WriteResult(path, "new");
  EXPECT_EQ(Contents(path), "new");
  EXPECT_EQ(FilesIn(dir.path()), 1u);
}

TEST(OutputFile, KeepsALinkAndReplacesWhatItNames) {
  const TempDir links, files;
  const std::string file = files.Write("r.json", "old");
  fs::create_symlink(file, links.path() + "/direct");
  fs::create_symlink("direct", links.path() + "/relative");
  fs::create_symlink(files.path() + "/none", links.path() + "/dangling");
  for (const char* name : {"direct", "relative"}) {
    WriteResult(links.path() + "/" + name, name);
    EXPECT_TRUE(fs::is_symlink(links.path() + "/" + name));
    EXPECT_EQ(Contents(file), name);
  }
  WriteResult(links.path() + "/dangling", "made");
  EXPECT_EQ(Contents(files.path() + "/none"), "made");
  EXPECT_EQ(FilesIn(links.path()), 3u);
  EXPECT_EQ(FilesIn(files.path()), 2u);
}

TEST(OutputFile, RefusesALinkToItself) {
  const TempDir dir;
  fs::create_symlink("loop", dir.path() + "/loop");
  ExpectInputError([&] { OutputFile(dir.path() + "/loop"); },
                   {"loop: cannot be written (Too many levels of symbolic links)"});
}

TEST(OutputFile, TwoOfOneTargetDoNotShareATemporaryFile) {
  const TempDir dir;
  const std::string path = dir.path() + "/r.json";
  OutputFile first(path), second(path);
  first.Write("first");
  second.Write("second");
  first.Commit();
  EXPECT_EQ(Contents(path), "first");
  second.Commit();
  EXPECT_EQ(Contents(path), "second");
}

TEST(OutputFile, HonoursTheUmask) {
  const TempDir dir;
  const mode_t before = umask(027);
  WriteResult(dir.path() + "/r.json", "");
  umask(before);
  struct stat status = {};
  ASSERT_EQ(stat((dir.path() + "/r.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(OutputFile, KeepsTheModeOfWhatItReplaces) {
  const TempDir dir;
  const std::string path = dir.Write("r.json", "old");
  for (const mode_t mode : {0600u, 0664u, 0644u}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    WriteResult(path, "new");
    struct stat status = {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, mode);
  }
}

// Signals arrive while a full pipe makes the writer wait.
TEST(OutputFile, GoesOnAfterSignals) {
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) {};  // without SA_RESTART
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pthread_t writer = pthread_self();
  size_t received = 0;
  std::thread reader([&] {
    for (int i = 0; i < 2000; ++i) {
      pthread_kill(writer, SIGUSR1);
      std::this_thread::yield();
    }
    std::array<char, 4096> bytes;
    for (ssize_t count = 1; count > 0; received += static_cast<size_t>(count)) {
      count = read(ends[0], bytes.data(), bytes.size());
    }
  });
  const std::string text(1 << 20, 'x');
  EXPECT_NO_THROW(WriteResult("/proc/self/fd/" + std::to_string(ends[1]), text));
  close(ends[1]);
  reader.join();
  close(ends[0]);
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(received, text.size());
}

TEST(OutputFile, WhatCannotBeWrittenIsOneClearError) {
  const TempDir dir;
  ExpectInputError([&] { WriteResult("/dev/full", "x"); },
                   {"/dev/full: cannot be written (No space left on device)"});
  ExpectInputError([&] { WriteResult(dir.path(), "x"); },
                   {dir.path() + ": cannot be written (Is a directory)"});
  ExpectInputError([&] { WriteResult(dir.path() + "/none/r.json", "x"); },
                   {"r.json: cannot be written (No such file or directory)"});
  fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec);
  if (geteuid() == 0) return;  // the superuser may write everywhere
  ExpectInputError([&] { WriteResult(dir.path() + "/r.json", "x"); },
                   {"r.json: cannot be written (Permission denied)"});
}

}  // namespace
}  // namespace dlsim::sim
