// SPDX-License-Identifier: Apache-2.0
// Runs the dlsim command, or another, and captures what it prints. DLSIM_COMMAND is its path.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/trace_test_util.h"

namespace dlsim {

using Arguments = std::vector<std::string>;

struct CommandResult {
  int exit_code = -1;
  std::string out, err;
};

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs a program with these arguments. Standard output goes to `out_path` if given.
inline CommandResult RunProgram(const std::string& program, Arguments arguments,
                                const std::string& out_path = "") {
  const TempDir dir;
  const std::string out = out_path.empty() ? dir.path() + "/out" : out_path;
  const std::string err = dir.path() + "/err";
  arguments.insert(arguments.begin(), program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  constexpr int kWrite = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out.c_str(), kWrite, 0600);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), kWrite, 0600);
  pid_t process = 0;
  const int failed = posix_spawn(&process, argv[0], &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) throw std::runtime_error("cannot run " + arguments[0]);
  int status = 0;
  waitpid(process, &status, 0);
  CommandResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (out_path.empty()) result.out = ReadBytes(out);
  result.err = ReadBytes(err);
  return result;
}

inline CommandResult RunCommand(const Arguments& arguments, const std::string& out_path = "") {
  return RunProgram(DLSIM_COMMAND, arguments, out_path);
}

// Expects a failure that prints one line with all `words` on standard error and nothing else.
inline void ExpectFailure(const Arguments& arguments, int exit_code, const Arguments& words) {
  const CommandResult result = RunCommand(arguments);
  std::string text;
  for (const std::string& argument : arguments) text += argument + " ";
  SCOPED_TRACE(text);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.starts_with("dlsim") && result.err.ends_with("\n")) << result.err;
  for (const std::string& word : words) {
    EXPECT_NE(result.err.find(word), std::string::npos) << "'" << word << "' not in " << result.err;
  }
}

inline std::string Succeed(const Arguments& arguments) {
  const CommandResult result = RunCommand(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

inline nlohmann::json SucceedJson(const Arguments& arguments) {
  return nlohmann::json::parse(Succeed(arguments));
}

inline std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace dlsim
