// SPDX-License-Identifier: Apache-2.0
#include "src/trace/npz.h"

#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "dlsim/error.h"
#include "src/base/file.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr uint64_t kMaxDeflateRatio = 1032;  // what the best deflate stream reaches
constexpr std::string_view kNpySuffix = ".npy";

// Refuses what names no array. Names may look like paths, as those of JAX parameters do: they are
// never used as such.
std::string ArrayName(const std::string& place, std::string_view member) {
  const std::string member_place = place + ": member " + Quoted(member);
  if (!member.ends_with(kNpySuffix) || member.size() == kNpySuffix.size()) {
    throw InputError(member_place, "is not an array", "a name ending in .npy");
  }
  if (member.size() > kMaxNameBytes) {
    throw InputError(member_place, "name too long",
                     "at most " + std::to_string(kMaxNameBytes) + " bytes",
                     std::to_string(member.size()));
  }
  return std::string(member.substr(0, member.size() - kNpySuffix.size()));
}

// Refuses members whose declared sizes cannot be true.
void CheckMember(const std::string& place, const zip_stat_t& stat) {
  if (stat.encryption_method != ZIP_EM_NONE) throw InputError(place, "is encrypted");
  if (stat.comp_method != ZIP_CM_STORE && stat.comp_method != ZIP_CM_DEFLATE) {
    throw InputError(place, "unsupported compression", "stored or deflated",
                     "method " + std::to_string(stat.comp_method));
  }
  if (stat.comp_method == ZIP_CM_STORE && stat.size != stat.comp_size) {
    throw InputError(place, "is stored with two different sizes", std::to_string(stat.comp_size),
                     std::to_string(stat.size));
  }
  if (stat.size / kMaxDeflateRatio > stat.comp_size) {
    throw InputError(place, "declares an impossible size",
                     "at most 1032 times its " + std::to_string(stat.comp_size) + " bytes",
                     std::to_string(stat.size));
  }
}

}  // namespace

std::shared_ptr<NpzArchive> NpzArchive::Open(const std::string& path) {
  // Opened here first: its messages for missing files and directories are better than libzip's.
  const std::shared_ptr<const ReadOnlyFile> file = ReadOnlyFile::Open(path);
  if (file->size() == 0) throw InputError(file->place(), "is empty", "a .npz archive");
  zip_source_t* source = zip_source_file_create(path.c_str(), 0, -1, nullptr);
  if (source == nullptr) throw InputError(file->place(), "cannot be opened");
  return std::shared_ptr<NpzArchive>(new NpzArchive(file->place(), source, file->size()));
}

std::shared_ptr<NpzArchive> NpzArchive::OpenMemory(const std::string& place,
                                                   std::span<const std::byte> bytes) {
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, nullptr);
  if (source == nullptr) throw InputError(place, "cannot be opened");
  return std::shared_ptr<NpzArchive>(new NpzArchive(place, source, bytes.size()));
}

NpzArchive::NpzArchive(std::string place, zip_source_t* source, uint64_t size)
    : place_(std::move(place)), size_(size) {
  zip_error_t error;
  zip_error_init(&error);
  zip_ = zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error);
  const int code = zip_error_code_zip(&error);
  const std::string reason =
      code == ZIP_ER_EXISTS ? "duplicate name" : Printable(zip_error_strerror(&error));
  zip_error_fini(&error);
  const bool is_intact = zip_ != nullptr;
  // From version to version libzip looks at more; what is said of a member below tells more.
  if (code == ZIP_ER_INCONS) zip_ = zip_open_from_source(source, ZIP_RDONLY, nullptr);
  if (zip_ == nullptr) {
    zip_source_free(source);
    throw InputError(place_, "is not an intact .npz archive: " + reason);
  }
  try {
    ListMembers();
    if (!is_intact) throw InputError(place_, "is not an intact .npz archive: " + reason);
  } catch (...) {
    zip_discard(zip_);  // the destructor does not run
    throw;
  }
}

NpzArchive::~NpzArchive() { zip_discard(zip_); }

void NpzArchive::ListMembers() {
  const uint64_t count =
      static_cast<uint64_t>(std::max<zip_int64_t>(zip_get_num_entries(zip_, 0), 0));
  if (count > kMaxTensors) {
    throw InputError(place_, "too many arrays", "at most " + std::to_string(kMaxTensors));
  }
  std::unordered_set<std::string> names;
  uint64_t left = size_;  // members that overlap would need more bytes than there are
  for (uint64_t i = 0; i < count; ++i) {
    zip_stat_t stat;
    zip_stat_init(&stat);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                                     ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(zip_, i, 0, &stat) != 0 || (stat.valid & kNeeded) != kNeeded) {
      throw InputError(place_, "member " + std::to_string(i) + " cannot be read");
    }
    const std::string name =
        ArrayName(place_, stat.name == nullptr ? "" : stat.name);  // null if empty
    if (!names.insert(name).second) throw InputError(TensorPlace(place_, name), "duplicate name");
    CheckMember(TensorPlace(place_, name), stat);
    if (stat.comp_size > left) {
      throw InputError(TensorPlace(place_, name), "members are larger than the archive",
                       "at most " + std::to_string(size_) + " bytes together");
    }
    left -= stat.comp_size;
    members_.push_back({.name = name, .index = i, .size = stat.size});
  }
}

namespace {

// One pass over a member; see SourceOf.
class NpzStream {
 public:
  NpzStream(std::shared_ptr<NpzArchive> archive, NpzMember member)
      : archive_(std::move(archive)), member_(std::move(member)) {}
  ~NpzStream() {
    const std::lock_guard lock(archive_->mutex());
    Close();
  }
  NpzStream(const NpzStream&) = delete;
  NpzStream& operator=(const NpzStream&) = delete;

  // Fills `out` from `offset` on.
  void Read(uint64_t offset, std::span<std::byte> out) {
    if (out.empty()) return;
    const std::lock_guard lock(archive_->mutex());
    if (offset < position_ && TakeKept(offset, out)) return;
    if (file_ == nullptr || offset < position_) {
      Reopen();
      Ignore(offset);
    }
    if (position_ < offset) KeepUpTo(offset);
    Fill(out);
    if (position_ == member_.size) CheckEnd();
  }

 private:
  // Threads ask nearly in order: what one of them jumps over, another asks for next. No more than
  // this is kept for it.
  static constexpr uint64_t kMostKept = uint64_t{64} << 20;
  struct Kept {
    std::vector<std::byte> bytes;
    size_t left;  // of them, to be asked for
  };

  bool TakeKept(uint64_t offset, std::span<std::byte> out) {
    auto kept = kept_.upper_bound(offset);
    if (kept == kept_.begin()) return false;
    auto& [begin, piece] = *--kept;
    if (offset - begin + out.size() > piece.bytes.size()) return false;
    std::copy_n(piece.bytes.data() + (offset - begin), out.size(), out.data());
    piece.left -= std::min(piece.left, out.size());
    if (piece.left > 0) return true;
    kept_bytes_ -= piece.bytes.size();
    kept_.erase(kept);
    return true;
  }

  void KeepUpTo(uint64_t offset) {
    const uint64_t begin = position_, count = offset - begin;
    if (kept_bytes_ + count > kMostKept) Forget();
    if (count > kMostKept) return Ignore(offset);
    std::vector<std::byte> bytes(count);
    Fill(bytes);
    kept_bytes_ += count;
    kept_[begin] = {std::move(bytes), count};
  }

  void Forget() {
    kept_.clear();
    kept_bytes_ = 0;
  }

  void Ignore(uint64_t offset) {
    std::array<std::byte, 16384> ignored;
    while (position_ < offset) {
      Fill(std::span(ignored).first(std::min<uint64_t>(ignored.size(), offset - position_)));
    }
  }

  void Reopen() {
    Close();
    Forget();
    position_ = 0;
    file_ = zip_fopen_index(archive_->zip(), member_.index, 0);
    if (file_ == nullptr) Fail(zip_strerror(archive_->zip()));
  }

  void Close() {
    if (file_ != nullptr) zip_fclose(file_);
    file_ = nullptr;
  }

  void Fill(std::span<std::byte> out) {
    while (!out.empty()) {
      const zip_int64_t count = zip_fread(file_, out.data(), out.size());
      if (count < 0) Fail(zip_file_strerror(file_));
      if (count == 0) Fail("it ends before its declared size");
      position_ += static_cast<uint64_t>(count);
      out = out.subspan(static_cast<size_t>(count));
    }
  }

  // libzip compares the checksum when a read finds the end.
  void CheckEnd() {
    std::byte extra{};
    const zip_int64_t count = zip_fread(file_, &extra, 1);
    if (count < 0) Fail(zip_file_strerror(file_));
    if (count > 0) Fail("it is longer than its declared size");
    Close();
  }

  [[noreturn]] void Fail(const std::string& reason) const {
    throw InputError(TensorPlace(archive_->place(), member_.name),
                     "cannot be read: " + Printable(reason));
  }

  std::shared_ptr<NpzArchive> archive_;
  NpzMember member_;
  zip_file_t* file_ = nullptr;
  uint64_t position_ = 0;
  std::map<uint64_t, Kept> kept_;  // by offset
  uint64_t kept_bytes_ = 0;
};

}  // namespace

ByteSource SourceOf(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member) {
  return {.place = TensorPlace(archive->place(), member.name),
          .size = member.size,
          .read = [stream = std::make_shared<NpzStream>(archive, member)](
                      uint64_t offset, std::span<std::byte> out) { stream->Read(offset, out); }};
}

NpyHeader ReadNpzHeader(const std::shared_ptr<NpzArchive>& archive, const NpzMember& member) {
  return ReadNpyHeader(SourceOf(archive, member), kTraceNpyTypes);
}

namespace {

// What fails here is memory.
void RequireZip(bool good) {
  if (!good) throw std::bad_alloc();
}

}  // namespace

std::string MakeNpz(const std::vector<NpzBytes>& members) {
  constexpr int kLevel = 7;  // 9 takes up to six times as long, for 3 % fewer bytes
  constexpr zip_uint16_t kTime = 0, kDate = 1 << 5 | 1;  // 1980-01-01 00:00
  zip_source_t* const target = zip_source_buffer_create(nullptr, 0, 0, nullptr);
  RequireZip(target != nullptr);
  zip_source_keep(target);
  const std::unique_ptr<zip_source_t, void (*)(zip_source_t*)> kept(target, zip_source_free);
  zip_t* zip = zip_open_from_source(target, ZIP_TRUNCATE, nullptr);
  if (zip == nullptr) {
    zip_source_free(target);
    throw std::bad_alloc();
  }
  const auto discard = [](zip_t* archive) { zip_discard(archive); };
  std::unique_ptr<zip_t, void (*)(zip_t*)> owner(zip, discard);
  for (const NpzBytes& member : members) {
    zip_source_t* source =
        zip_source_buffer(zip, member.contents.data(), member.contents.size(), 0);
    RequireZip(source != nullptr);
    const zip_int64_t index =
        zip_file_add(zip, (member.name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      throw std::bad_alloc();
    }
    const auto i = static_cast<zip_uint64_t>(index);
    RequireZip(zip_set_file_compression(zip, i, ZIP_CM_DEFLATE, kLevel) == 0);
    RequireZip(zip_file_set_dostime(zip, i, kTime, kDate, 0) == 0);
  }
  RequireZip(zip_close(zip) == 0);
  static_cast<void>(owner.release());
  RequireZip(zip_source_open(target) == 0);
  RequireZip(zip_source_seek(target, 0, SEEK_END) == 0);
  std::string bytes(static_cast<size_t>(std::max<zip_int64_t>(zip_source_tell(target), 0)), '\0');
  RequireZip(zip_source_seek(target, 0, SEEK_SET) == 0);
  const zip_int64_t count = zip_source_read(target, bytes.data(), bytes.size());
  zip_source_close(target);
  RequireZip(count == static_cast<zip_int64_t>(bytes.size()));
  return bytes;
}

}  // namespace dlsim
