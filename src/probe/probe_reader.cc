// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "dlsim/probe.h"
#include "src/probe/probe_index.h"
#include "src/probe/stored_probe.h"
#include "src/profile/chunk.h"
#include "src/trace/read_only_file.h"

namespace dlsim {

struct ProbeReader::Impl {
  StoredProbe file;
};

bool ProbeReader::IsProbe(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::status(path, error).type();
  const bool is_unknown = type == std::filesystem::file_type::none;
  if (!is_unknown && type != std::filesystem::file_type::regular) return false;
  const ByteSource file = FileSource(ReadOnlyFile::Open(path));
  return file.size >= kProbeMagic.size() && ReadBytes(file, 0, kProbeMagic.size()) == kProbeMagic;
}

ProbeReader ProbeReader::Open(const std::string& path) {
  return ProbeReader(std::make_unique<Impl>(StoredProbe(FileSource(ReadOnlyFile::Open(path)))));
}

ProbeReader::ProbeReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProbeReader::ProbeReader(ProbeReader&&) noexcept = default;
ProbeReader& ProbeReader::operator=(ProbeReader&&) noexcept = default;
ProbeReader::~ProbeReader() = default;

const ProbeHead& ProbeReader::head() const { return impl_->file.head(); }
size_t ProbeReader::step_count() const { return impl_->file.step_count(); }
uint64_t ProbeReader::cut_bytes() const { return impl_->file.cut_bytes(); }
ProbeStep ProbeReader::ReadStep(size_t i) const { return impl_->file.ReadStep(i); }
std::optional<ProbeValues> ProbeReader::ReadValues(size_t i) const {
  return impl_->file.ReadValues(i);
}

}  // namespace dlsim
