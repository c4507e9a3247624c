// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <system_error>
#include <tuple>
#include <utility>

#include "dlsim/profile_file.h"
#include "src/base/check.h"
#include "src/profile/chunk.h"
#include "src/profile/part_code.h"
#include "src/profile/settings_json.h"
#include "src/profile/stored_profile.h"
#include "src/trace/read_only_file.h"

namespace dlsim {
struct ProfileReader::Impl {
  struct Step {
    int64_t number = 0;
    size_t file = 0, index = 0;
  };
  std::vector<StoredProfile> files;
  std::vector<Step> steps;  // ascending
  ProfileSettings settings;

  // The first step, of which much is asked before all are read in order: it is kept until another
  // is read.
  std::mutex mutex;
  std::shared_ptr<const ProfileStep> first;

  const StoredProfile& FileOf(const Step& step) const { return files[step.file]; }
  EncodedStep Encoded(const Step& step) const { return FileOf(step).LoadEncoded(step.index); }

  // Which of two copies of a step to take, whatever their order. Another version of libzstd may
  // have compressed the same to other bytes. Throws InputError if they differ in what they say.
  bool Prefer(const Step& step, const Step& other) const;
};

bool ProfileReader::Impl::Prefer(const Step& step, const Step& other) const {
  const EncodedStep a = Encoded(step), b = Encoded(other);
  if (a.tensors == b.tensors && a.bytes == b.bytes) return false;
  if (FileOf(step).Load(step.index) == FileOf(other).Load(other.index)) {
    return std::tie(a.tensors, a.bytes) < std::tie(b.tensors, b.bytes);
  }
  throw InputError(FileOf(step).place(), "holds another step " + std::to_string(step.number) +
                                             " than " + FileOf(other).place());
}

namespace {

void RequireSameMaking(const StoredProfile& first, const StoredProfile& other) {
  RequireSameSettings(first.place(), first.settings_text(), other.place(), other.settings_text());
  if (first.edges() == other.edges()) return;
  throw InputError(other.place(), "made with other edges than " + first.place(),
                   std::to_string(first.edges().bits().size()) + " edges",
                   std::to_string(other.edges().bits().size()) + " that are not all the same");
}

}  // namespace

bool ProfileReader::IsProfile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::status(path, error).type();
  const bool is_unknown = type == std::filesystem::file_type::none;
  if (!is_unknown && type != std::filesystem::file_type::regular) return false;
  const std::shared_ptr<const ReadOnlyFile> file = ReadOnlyFile::Open(path);
  std::string magic(std::min<uint64_t>(file->size(), kProfileMagic.size()), '\0');
  file->ReadAt(0, std::as_writable_bytes(std::span(magic)));
  return magic == kProfileMagic;
}

ProfileReader ProfileReader::Open(std::span<const std::string> paths) {
  DLSIM_CHECK(!paths.empty());
  auto impl = std::make_unique<Impl>();
  for (const std::string& path : paths) {
    const StoredProfile& file = impl->files.emplace_back(FileSource(ReadOnlyFile::Open(path)));
    if (impl->files.size() > 1) RequireSameMaking(impl->files.front(), file);
    for (size_t i = 0; i < file.entries().size(); ++i) {
      impl->steps.push_back({file.entries()[i].step, impl->files.size() - 1, i});
    }
  }
  std::stable_sort(impl->steps.begin(), impl->steps.end(),
                   [](const Impl::Step& a, const Impl::Step& b) { return a.number < b.number; });
  std::vector<Impl::Step> distinct;
  for (const Impl::Step& step : impl->steps) {
    if (distinct.empty() || distinct.back().number != step.number) {
      distinct.push_back(step);
    } else if (impl->Prefer(step, distinct.back())) {
      distinct.back() = step;
    }
  }
  impl->steps = std::move(distinct);
  impl->settings = impl->files.front().settings();
  std::vector<std::optional<ProfilePart>> parts;
  for (const StoredProfile& file : impl->files) parts.push_back(file.settings().part);
  impl->settings.part = JoinParts(parts);
  return ProfileReader(std::move(impl));
}

ProfileReader::ProfileReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProfileReader::ProfileReader(ProfileReader&&) noexcept = default;
ProfileReader& ProfileReader::operator=(ProfileReader&&) noexcept = default;
ProfileReader::~ProfileReader() = default;

const ProfileSettings& ProfileReader::settings() const { return impl_->settings; }
const HistogramEdges& ProfileReader::edges() const { return impl_->files.front().edges(); }
size_t ProfileReader::step_count() const { return impl_->steps.size(); }
int64_t ProfileReader::step_number(size_t i) const { return impl_->steps[i].number; }

uint64_t ProfileReader::file_bytes() const {
  uint64_t bytes = 0;
  for (const StoredProfile& file : impl_->files) bytes += file.file_bytes();
  return bytes;
}

uint64_t ProfileReader::trace_bytes() const {
  uint64_t bytes = 0;
  for (const Impl::Step& step : impl_->steps) {
    bytes += impl_->FileOf(step).entries()[step.index].trace_bytes;
  }
  return bytes;
}

ProfileStep ProfileReader::Load(size_t i) const {
  const auto load = [&] { return impl_->FileOf(impl_->steps[i]).Load(impl_->steps[i].index); };
  std::unique_lock lock(impl_->mutex);
  if (i > 0) {
    impl_->first.reset();
    lock.unlock();
    return load();
  }
  if (impl_->first == nullptr) impl_->first = std::make_shared<const ProfileStep>(load());
  return *impl_->first;
}

ProfileTotals ProfileReader::LoadTotals(size_t i) const {
  return impl_->FileOf(impl_->steps[i]).LoadTotals(impl_->steps[i].index);
}

EncodedStep ProfileReader::LoadEncoded(size_t i) const { return impl_->Encoded(impl_->steps[i]); }

}  // namespace dlsim
