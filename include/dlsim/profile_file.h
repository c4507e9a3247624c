// SPDX-License-Identifier: Apache-2.0
// Files of profiles (.dlprof): written step by step, read at random, merged without loss. The
// layout is in docs/profile-format.md. Every byte is covered by a checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dlsim/profile.h"

namespace dlsim {

// A step in the form in which a file holds it; made by any thread or process, the same everywhere.
struct EncodedStep {
  int64_t step = 0;
  std::string tensors;  // the encoded list of its tensors, which a file repeats only if it changes
  std::string bytes;    // totals and histograms, compressed
};

EncodedStep EncodeStep(const ProfileStep& step, const HistogramEdges& edges);

// Writes a profile. What is complete is safe: after a crash another writer for the same file goes
// on behind it, and the final bytes are those of an uninterrupted run.
class ProfileWriter {
 public:
  enum class Existing : uint8_t {
    kReplace,  // a complete file of that name is replaced by the new one
    kExtend,   // its steps are taken over first; it must have the same settings
  };

  // Opens or resumes PATH.partial. Throws Error (exit code 3) if that is impossible.
  ProfileWriter(const std::string& path, const ProfileSettings& settings, Existing existing);

  // The same for a caller that has EdgesOf(settings.ladder), which takes long to find.
  ProfileWriter(const std::string& path, const ProfileSettings& settings,
                const HistogramEdges& edges, Existing existing);
  ~ProfileWriter();  // keeps PATH.partial unless committed
  ProfileWriter(const ProfileWriter&) = delete;
  ProfileWriter& operator=(const ProfileWriter&) = delete;

  // The files of the steps that are there already, in order, by which a caller checks whether they
  // are those of its trace; Append continues behind them.
  struct Done {
    int64_t step = 0;
    std::vector<ProfileFile> files;
  };
  std::span<const Done> done() const;

  // Files changed after this time, in nanoseconds since 1970, must be read again: when PATH.partial
  // was created, or when PATH was changed last if its steps have just been taken over.
  int64_t done_at() const;

  // True if PATH.partial was there with other settings, and has been replaced.
  bool replaced_partial() const;

  // Forgets the steps of done() from the i-th on.
  void Truncate(size_t i);

  // Leaves no PATH.partial if there was none before.
  void Abandon();

  // Appends a step; step numbers must ascend. Throws Error (exit code 3) if the device is full.
  void Append(const EncodedStep& step);

  // Writes the index, flushes to the device, and renames to the final name.
  void Commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A profile opened for reading; several files of one trace (shards) read as one.
class ProfileReader {
 public:
  // Returns whether a file begins as a profile does; what is no regular file does not. Throws
  // InputError for one that cannot be read.
  static bool IsProfile(const std::string& path);

  // Opens and validates one or several files. Throws Error (exit code 3) naming file and defect,
  // also if settings differ or two files hold different steps of one number.
  static ProfileReader Open(std::span<const std::string> paths);

  ProfileReader(ProfileReader&&) noexcept;
  ProfileReader& operator=(ProfileReader&&) noexcept;
  ~ProfileReader();

  const ProfileSettings& settings() const;  // the part is that of all files together
  const HistogramEdges& edges() const;
  size_t step_count() const;
  int64_t step_number(size_t i) const;
  uint64_t file_bytes() const;   // of the profile
  uint64_t trace_bytes() const;  // of the files that it was made from

  // Decodes a step, or only its totals, which is much less work. Thread-safe.
  ProfileStep Load(size_t i) const;
  ProfileTotals LoadTotals(size_t i) const;

  // Returns the step as the file holds it.
  EncodedStep LoadEncoded(size_t i) const;

 private:
  struct Impl;
  explicit ProfileReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Merges profiles of parts of one trace into one, whatever their order; a step that several hold
// must be the same in all. The bytes are those of the profile of the whole trace, or of the part
// that they are together. Throws Error and leaves nothing of the output then.
void MergeProfiles(std::span<const std::string> paths, const std::string& output);

// Writes one profile with the tensors of several, which hold the same steps of other shards of a
// model. Throws Error.
void JoinProfiles(std::span<const std::string> paths, const std::string& output);

}  // namespace dlsim
