// SPDX-License-Identifier: Apache-2.0
// Files that users name. Results go to a temporary file next to the target and are renamed when
// complete: a reader never sees half a result, and a failed command leaves none. A link to a file
// stays one, and what is replaced keeps its mode. Texts are read from files, pipes and standard
// input.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace dlsim::sim {

class RowSink;

class OutputFile {
 public:
  // Opens a temporary file next to `path`; "-" is standard output. Throws InputError.
  explicit OutputFile(const std::string& path);
  ~OutputFile();  // removes the temporary file unless committed
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Throws InputError when the device is full or gone.
  void Write(std::string_view bytes);

  // Whether the caller took the rows of the object that is to be written, in place of its bytes.
  bool GiveRows(const std::function<void(RowSink& row)>& tell);

  // Flushes and renames to the final name.
  void Commit();

 private:
  void CreateTemporary();
  void Flush();
  void WriteAll(std::string_view bytes);
  [[noreturn]] void Fail(const char* what) const;

  std::string path_;       // as given, for messages
  std::string target_;     // what is replaced: path_ or what it links to
  std::string temporary_;  // empty if there is none
  std::string buffer_;
  int descriptor_ = -1;
};

// Follows symbolic links at the end of `path`, also to a file that does not exist yet. Returns
// nothing if they do not end.
std::optional<std::string> LinkTarget(const std::string& path);

// Writes a whole result; "-" is standard output.
void WriteOutput(const std::string& path, std::string_view text);

// Where a command's results go.
struct ResultPaths {
  std::optional<std::string> json, csv, summaries;
  bool quiet = false;  // no report

  // False where a report would be mixed with data.
  bool wants_report() const { return json != "-" && csv != "-" && summaries != "-" && !quiet; }
};

// The files of these paths, opened before the work, so that a bad path fails at once.
struct ResultFiles {
  explicit ResultFiles(const ResultPaths& paths);
  void Commit();

  std::optional<OutputFile> json, csv, summaries;
};

// Removes the temporary files of results that are not complete yet, of the few that a command
// writes at once. Async-signal-safe.
void RemoveTemporaries();

// Texts that users name: files, pipes and standard input.

// Returns how messages name an input: its path, or "standard input" for "-".
std::string InputName(const std::string& path);

// Reads a file or pipe to its end, or standard input for "-". Throws InputError if it cannot be
// read or holds more than `max_bytes`.
std::string ReadTextInput(const std::string& path, uint64_t max_bytes);

}  // namespace dlsim::sim
