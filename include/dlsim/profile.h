// SPDX-License-Identifier: Apache-2.0
// A profile: a folder with the tables of a trace's steps, a file for each, and profile.json with
// what all have in common. Each file appears by rename, complete: to resume is to skip what is
// there, to extend is to add files, and several machines may write into one folder.
// docs/profiles.md has what the files hold; NumPy opens them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dlsim/scaled_format.h"
#include "dlsim/step_tables.h"

namespace dlsim {

// What shaped the tables of a profile.
struct ProfileSettings {
  std::vector<NamedScaledFormat> scaled = {};  // without delayed scaling
  std::vector<float> mantissas = {};           // as StepOptions::mantissas; ascending
  std::string tensors = "*";                   // as TraceOptions::tensors
  Accumulation accumulation = Accumulation::kQuantizeThenSum;
  int64_t accumulate_steps = 1;                    // as ReplayOptions::accumulate_steps
  std::map<std::string, std::string> description;  // of the trace

  friend bool operator==(const ProfileSettings&, const ProfileSettings&) = default;
};

class ProfileWriter {
 public:
  enum class Existing : uint8_t {
    kContinue,  // its steps stay; it must have the same settings
    kReplace,   // its steps are removed
  };

  // Creates the folder, with its profile.json, or continues it. What killed writers left of files
  // that they did not finish is removed. Throws Error (exit code 3).
  ProfileWriter(std::string folder, const ProfileSettings& settings, Existing existing);

  // The files that a step was made from, if the folder has it with these settings; nothing else of
  // it is read.
  std::optional<std::vector<RecordedFile>> FilesOf(int64_t step) const;

  // Writes a step, in the place of one that is there. Any number of threads and processes may write
  // at once. Throws Error (exit code 3).
  void Write(const StepTables& step) const;

  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  ProfileSettings settings_;
};

// A profile opened for reading.
class ProfileReader {
 public:
  // Returns whether a path is a folder with a profile.json.
  static bool IsProfile(const std::string& path);

  // Opens a profile; its steps ascend by number. Throws Error (exit code 3) naming file and defect.
  static ProfileReader Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const ProfileSettings& settings() const { return settings_; }
  size_t step_count() const { return steps_.size(); }
  int64_t step_number(size_t i) const { return steps_[i]; }
  uint64_t file_bytes() const { return file_bytes_; }

  // Reads and validates a step. Thread-safe.
  StepTables Load(size_t i) const;

  // The same without tables: its tensors, metadata and files.
  StepTables LoadHead(size_t i) const;

 private:
  ProfileReader() = default;

  std::string folder_;
  ProfileSettings settings_;
  std::vector<int64_t> steps_;
  uint64_t file_bytes_ = 0;
};

// Returns RecordedFile::content of a file: the hash that docs/profiles.md defines, never 0. A file
// of at most 320 KiB is read whole; of a larger one its first 64 KiB, where headers are, and 64
// samples of 4 KiB, evenly spread up to its end. Throws InputError.
uint64_t ContentHash(const std::string& path);

}  // namespace dlsim
