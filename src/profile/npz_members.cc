// SPDX-License-Identifier: Apache-2.0
#include "src/profile/npz_members.h"

#include <zip.h>

#include <algorithm>
#include <memory>
#include <new>
#include <span>

#include "dlsim/error.h"
#include "src/base/check.h"
#include "src/trace/tensor_rules.h"

namespace dlsim {
namespace {

constexpr std::string_view kMagic{"\x93NUMPY\x01\x00", 8};  // version 1.0
constexpr size_t kPrefixBytes = kMagic.size() + 2;
constexpr size_t kAlignment = 64;

// No array of a step is larger, so that damage cannot ask for more memory than there is.
constexpr uint64_t kMostBytes = uint64_t{1} << 32;

// What precedes the elements, as numpy writes it.
std::string NpyListHeader(std::string_view type, size_t elements) {
  std::string text = "{'descr': " + std::string(type) + ", 'fortran_order': False, 'shape': (" +
                     std::to_string(elements) + ",), }";
  const size_t used = kPrefixBytes + text.size() + 1;
  text.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  text += '\n';
  DLSIM_CHECK(text.size() < 1u << 16);
  std::string header(kMagic);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

// What fails here is memory.
void RequireZip(bool good) {
  if (!good) throw std::bad_alloc();
}

}  // namespace

std::string MakeNpyList(std::string_view type, size_t elements, std::string_view data) {
  std::string contents = NpyListHeader(type, elements);
  contents += data;
  return contents;
}

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

std::string ReadNpyList(const std::shared_ptr<NpzArchive>& archive, std::string_view name,
                        std::string_view type, size_t element_bytes) {
  const auto found = std::ranges::find(archive->members(), name, &NpzMember::name);
  if (found == archive->members().end()) {
    throw InputError(archive->place(), "array " + Quoted(name) + " is missing");
  }
  const std::string place = archive->place() + ": array " + Quoted(name);
  if (found->size > kMostBytes) {
    throw InputError(place, "too large", "at most " + std::to_string(kMostBytes) + " bytes",
                     std::to_string(found->size));
  }
  std::string contents(static_cast<size_t>(found->size), '\0');
  NpzStream(archive, *found).Read(0, std::as_writable_bytes(std::span(contents)), Skip::kByReading);
  // The header follows from the number of elements, up to the spaces at its end.
  const size_t text_bytes =
      contents.size() < kPrefixBytes
          ? 0
          : static_cast<uint8_t>(contents[8]) | size_t{static_cast<uint8_t>(contents[9])} << 8;
  const size_t begin = kPrefixBytes + text_bytes;
  if (!contents.starts_with(kMagic) || begin > contents.size()) {
    throw InputError(place, "is not a .npy file of version 1.0");
  }
  const auto without_spaces = [](std::string_view text) {
    return text.substr(0, text.find_last_not_of(" \n") + 1);
  };
  const size_t elements = (contents.size() - begin) / element_bytes;
  const std::string expected = NpyListHeader(type, elements);
  const std::string_view got = std::string_view(contents).substr(kPrefixBytes, text_bytes);
  if ((contents.size() - begin) % element_bytes != 0 ||
      without_spaces(got) != without_spaces(std::string_view(expected).substr(kPrefixBytes))) {
    throw InputError(place, "has another type or size",
                     Printable(without_spaces(std::string_view(expected).substr(kPrefixBytes))),
                     Printable(without_spaces(got)));
  }
  contents.erase(0, begin);
  return contents;
}

}  // namespace dlsim
