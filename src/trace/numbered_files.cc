// SPDX-License-Identifier: Apache-2.0
#include "src/trace/numbered_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "dlsim/error.h"
#include "src/trace/layout.h"

namespace dlsim {
namespace {

constexpr std::array<std::string_view, 3> kExtensions = {".safetensors", ".npz", ".npy"};
constexpr std::string_view kDigits = "0123456789";

// A name in its parts.
struct NameParts {
  std::string_view stem, extension;
  int64_t number = 0;
};

std::optional<NameParts> PartsOf(std::string_view name) {
  NameParts parts;
  for (const std::string_view extension : kExtensions) {
    if (name.ends_with(extension)) parts.extension = extension;
  }
  if (parts.extension.empty()) return std::nullopt;
  name.remove_suffix(parts.extension.size());
  const size_t last = name.find_last_not_of(kDigits);
  const size_t digits = last == name.npos ? 0 : last + 1;
  parts.stem = name.substr(0, digits);
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + digits, end, parts.number);
  if (digits == name.size() || error != std::errc() || rest != end) return std::nullopt;
  return parts;
}

[[noreturn]] void RefuseUnnumbered(const std::string& directory,
                                   const std::vector<std::string>& names) {
  if (names.empty()) throw InputError(Printable(directory), "no step found", kReadable);
  throw InputError(Printable(directory), "no number of a step in the names of its files",
                   "such as step-12.safetensors, or the files themselves, one per step",
                   Quoted(names.front()));
}

}  // namespace

bool IsContainerName(std::string_view name) {
  return std::ranges::any_of(kExtensions, [&](std::string_view e) { return name.ends_with(e); });
}

bool AreArraysOfOneStep(const std::vector<std::string>& names) {
  const auto is_array = [](const std::string& name) { return name.ends_with(".npy"); };
  if (names.empty() || !std::ranges::all_of(names, is_array)) return false;
  const std::optional<NameParts> first = PartsOf(names.front());
  return std::ranges::any_of(names, [&](const std::string& name) {
    const std::optional<NameParts> parts = PartsOf(name);
    return !parts || !first || parts->stem != first->stem;
  });
}

std::vector<NumberedFile> FindNumberedFiles(const std::string& directory,
                                            const std::vector<std::string>& names) {
  std::vector<NumberedFile> files;
  for (const std::string& name : names) {
    const std::optional<NameParts> parts = PartsOf(name);
    if (!parts) continue;
    if (parts->stem.ends_with("-of-")) {
      throw InputError(Printable(directory), "holds shards without their index",
                       "*.safetensors.index.json beside them", Quoted(name));
    }
    if (!files.empty()) {
      const NameParts first = *PartsOf(files.front().name);
      if (first.stem != parts->stem || first.extension != parts->extension) {
        throw InputError(Printable(directory), "holds several kinds of numbered files",
                         "names that differ in the number of the step alone",
                         Quoted(files.front().name) + " and " + Quoted(name));
      }
    }
    files.push_back({parts->number, name});
  }
  if (files.empty()) RefuseUnnumbered(directory, names);
  std::ranges::sort(files, {}, &NumberedFile::step);
  const auto twice = std::ranges::adjacent_find(files, {}, &NumberedFile::step);
  if (twice != files.end()) {
    throw InputError(Printable(directory), "a step twice", "each number once",
                     Quoted(twice->name) + " and " + Quoted(std::next(twice)->name));
  }
  return files;
}

}  // namespace dlsim
