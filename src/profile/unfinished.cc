// SPDX-License-Identifier: Apache-2.0
#include "src/profile/unfinished.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "dlsim/error.h"
#include "src/profile/chunk.h"
#include "src/profile/stored_profile.h"

namespace dlsim {
namespace {

Error Refusal(const std::string& name, const char* problem) {
  return InputError(Printable(name), std::string(problem) + " and is not overwritten",
                    "no file of that name, or another output");
}

}  // namespace

void RequireOwn(const std::string& name, const ByteSource& file, uint64_t links) {
  if (links > 1) throw Refusal(name, "has another name, too (a hard link)");
  const std::string magic = ProfileMagic();
  std::string bytes(std::min<uint64_t>(file.size, magic.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  size_t different = 0;
  for (size_t i = 0; i < bytes.size(); ++i) different += bytes[i] == magic[i] ? 0 : 1;
  // What is shorter was cut off; one byte may be damaged, or tell another version.
  if (different > (bytes.size() < magic.size() ? 0 : 1)) {
    throw Refusal(name, "is not an unfinished profile");
  }
}

void RequireUnfinished(const std::string& name, const ByteSource& file) {
  if (IsCompleteProfile(file)) throw Refusal(name, "is a complete profile");
}

bool IsCompleteProfile(const ByteSource& file) {
  try {
    const StoredProfile complete(file);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace dlsim
