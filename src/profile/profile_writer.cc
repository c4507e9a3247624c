// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <span>
#include <utility>

#include "dlsim/profile_file.h"
#include "src/base/check.h"
#include "src/profile/partial_file.h"
#include "src/profile/settings_json.h"
#include "src/profile/stored_profile.h"
#include "src/profile/unfinished.h"
#include "src/profile/write_profile.h"
#include "src/trace/read_only_file.h"

namespace dlsim {

struct ProfileWriter::Impl {
  explicit Impl(const std::string& path) : file(path) {}

  PartialFile file;
  int64_t done_at = 0;
  bool replaced = false;
  bool is_new = false;  // the steps in PATH.partial are those of PATH
};

namespace {

bool IsFile(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

int64_t ChangedAt(const std::string& path) {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return 0;
  return int64_t{status.st_mtim.tv_sec} * kNanoseconds + int64_t{status.st_mtim.tv_nsec};
}

// True if the steps of the complete file are the first ones, in whole or in part changed.
bool HoldsStepsOf(const PartialFile& partial, const StoredProfile& complete) {
  const auto same = [](const IndexEntry& entry, const ProfileWriter::Done& done) {
    return entry.step == done.step;
  };
  const std::vector<IndexEntry>& entries = complete.entries();
  const std::vector<ProfileWriter::Done>& done = partial.done();
  return entries.size() <= done.size() &&
         std::equal(entries.begin(), entries.end(), done.begin(), same);
}

// True if the file is a complete profile of just these steps, left by a run that ended before it
// could rename it.
bool IsResult(const ByteSource& file, const std::string& opening, size_t steps,
              const std::function<EncodedStep(size_t)>& step) {
  if (!IsCompleteProfile(file)) return false;
  std::string begin(std::min<uint64_t>(file.size, opening.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(begin)));
  const StoredProfile complete(file);
  if (begin != opening || complete.entries().size() != steps) return false;
  for (size_t i = 0; i < steps; ++i) {
    const EncodedStep found = complete.LoadEncoded(i), wanted = step(i);
    if (found.step != wanted.step || found.tensors != wanted.tensors ||
        found.bytes != wanted.bytes) {
      return false;
    }
  }
  return true;
}

}  // namespace

ProfileWriter::ProfileWriter(const std::string& path, const ProfileSettings& settings,
                             Existing existing)
    : ProfileWriter(path, settings, EdgesOf(settings.ladder), existing) {}

ProfileWriter::ProfileWriter(const std::string& path, const ProfileSettings& settings,
                             const HistogramEdges& edges, Existing existing)
    : impl_(std::make_unique<Impl>(path)) {
  PartialFile& file = impl_->file;
  const std::string place = Printable(path);
  const std::string text = SettingsText(place, settings);
  const std::string opening = ProfileOpening(text, edges, settings.part);
  if (existing == Existing::kReplace || !IsFile(file.target())) {
    impl_->replaced = file.Resume(opening);
    impl_->done_at = file.created_at();
    return;
  }
  const StoredProfile complete(FileSource(ReadOnlyFile::Open(file.target())));
  RequireSameSettings("the steps to be added", text, place, complete.settings_text());
  if (complete.edges() != edges) {
    throw InputError(place, "made by another version of dlsim, which had other edges");
  }
  impl_->replaced = file.Resume(opening);
  impl_->done_at = file.created_at();
  if (HoldsStepsOf(file, complete)) return;
  impl_->done_at = ChangedAt(file.target());
  impl_->is_new = file.done().empty();
  file.Restart(opening);
  for (size_t i = 0; i < complete.entries().size(); ++i) file.Append(complete.LoadEncoded(i));
}

ProfileWriter::~ProfileWriter() = default;

std::span<const ProfileWriter::Done> ProfileWriter::done() const { return impl_->file.done(); }
int64_t ProfileWriter::done_at() const { return impl_->done_at; }
bool ProfileWriter::replaced_partial() const { return impl_->replaced; }
void ProfileWriter::Truncate(size_t i) { impl_->file.Truncate(i); }
void ProfileWriter::Abandon() {
  if (impl_->is_new) impl_->file.Discard();
}
void ProfileWriter::Append(const EncodedStep& step) { impl_->file.Append(step); }
void ProfileWriter::Commit() { impl_->file.Commit(); }

void WriteProfileLike(const ProfileReader& like, const std::string& output,
                      const std::function<EncodedStep(size_t)>& step) {
  PartialFile file(output);
  try {
    const ProfileSettings& settings = like.settings();
    const std::string opening =
        ProfileOpening(SettingsText(Printable(output), settings), like.edges(), settings.part);
    if (IsResult(file.Source(), opening, like.step_count(), step)) {
      file.Resume(opening);
      return file.Commit();
    }
    file.Restart(opening);
    for (size_t i = 0; i < like.step_count(); ++i) file.Append(step(i));
    file.Commit();
  } catch (...) {
    file.Discard();
    throw;
  }
}

void MergeProfiles(std::span<const std::string> paths, const std::string& output) {
  const ProfileReader reader = ProfileReader::Open(paths);
  WriteProfileLike(reader, output, [&](size_t i) { return reader.LoadEncoded(i); });
}

}  // namespace dlsim
