// SPDX-License-Identifier: Apache-2.0
// A profile while it is written: PATH.partial, which becomes PATH when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/profile_file.h"
#include "src/profile/step_index.h"
#include "src/trace/byte_source.h"

namespace dlsim {

class PartialFile {
 public:
  // Opens or creates and locks PATH.partial. Throws Error; a file that no interrupted run left is
  // refused, here or by what would overwrite it.
  explicit PartialFile(const std::string& path);
  ~PartialFile();  // keeps the file unless it is empty
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Keeps the steps that are there behind this opening of the file, up to the first that is not
  // whole; nothing if the opening is another. Returns whether the file was of another opening.
  bool Resume(const std::string& opening);

  // Starts again.
  void Restart(const std::string& opening);

  // What is there; valid as long as this object is.
  ByteSource Source() const;

  // Removes a file that was started again, unless it is complete.
  void Discard();

  const std::vector<ProfileWriter::Done>& done() const { return done_; }
  const std::string& target() const { return target_; }

  // When the file was created, in nanoseconds since 1970; its last change where the file system
  // does not know.
  int64_t created_at() const;

  void Truncate(size_t i);
  void Append(const EncodedStep& step);
  void Commit();

 private:
  [[noreturn]] void Fail(const char* what) const;
  void OpenLocked();
  bool IsStillThere() const;
  bool ScanStep();
  void Write(std::string_view bytes);
  void Cut(uint64_t size);
  void Note(const EncodedStep& step, const ProfileStep& head, IndexEntry entry);

  std::string path_;     // as given, for messages
  std::string target_;   // what is replaced: path_ or what it links to
  std::string partial_;  // in the folder of target_
  int descriptor_ = -1;
  bool committed_ = false;
  bool is_new_ = false;    // nothing of an earlier run is left
  bool has_rest_ = false;  // behind what is whole
  uint64_t opening_ = 0;   // bytes
  uint64_t end_ = 0;       // of what is whole
  std::string tensors_;    // list in force behind the last step
  std::vector<IndexEntry> entries_;
  std::vector<ProfileWriter::Done> done_;
};

}  // namespace dlsim
