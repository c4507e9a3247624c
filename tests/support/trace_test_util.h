// SPDX-License-Identifier: Apache-2.0
// Files and expectations that the tests of the trace readers share.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "dlsim/trace.h"
#include "src/base/file.h"

namespace dlsim {

// A directory that is removed at the end of the test.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dlsim-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string path() const { return path_; }

  // Writes a file and returns its path.
  std::string Write(const std::string& name, std::string_view bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::string path_;
};

// Returns `value` as `count` little-endian bytes.
inline std::string LittleEndian(uint64_t value, size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  return bytes;
}

inline std::string Float32Bytes(std::initializer_list<float> values) {
  std::string bytes;
  for (const float value : values) bytes += LittleEndian(std::bit_cast<uint32_t>(value), 4);
  return bytes;
}

inline std::string SafetensorsBytes(std::string_view json, std::string_view data) {
  return LittleEndian(json.size(), 8).append(json).append(data);
}

// Returns a file with one F32 tensor of one element and the given metadata members.
inline std::string StepBytes(const std::string& metadata, const std::string& name = "w.grad",
                             float value = 1.0f) {
  return SafetensorsBytes("{\"__metadata__\":{" + metadata + "},\"" + name +
                              "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                          Float32Bytes({value}));
}

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Reads from `bytes`, which must outlive the source.
inline ByteSource MemorySource(std::string place, std::span<const std::byte> bytes) {
  return {.place = std::move(place),
          .size = bytes.size(),
          .read = [bytes](uint64_t offset, std::span<std::byte> out) {
            std::ranges::copy(bytes.subspan(offset, out.size()), out.begin());
          }};
}

// Expects `action` to fail as bad input, with one line that contains all `words`.
inline void ExpectInputError(const std::function<void()>& action,
                             std::initializer_list<std::string_view> words) {
  try {
    action();
    ADD_FAILURE() << "not refused; expected: " << *words.begin();
  } catch (const Error& error) {
    const std::string_view what = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kInput) << what;
    EXPECT_EQ(what.find('\n'), what.npos) << what;
    EXPECT_LT(what.size(), 2000u);
    EXPECT_EQ(what.find("[json.exception"), what.npos) << what;
    for (const std::string_view word : words) {
      EXPECT_NE(what.find(word), what.npos) << "'" << word << "' is not in: " << what;
    }
  }
}

inline TraceReader OpenTrace(const std::vector<std::string>& paths,
                             const TraceOptions& options = {}) {
  return TraceReader::Open(paths, options);
}

// Returns all bytes of a tensor, read in blocks of `block` bytes.
inline std::string TensorBytes(const TraceTensor& tensor, size_t block = 4096) {
  std::string bytes(tensor.elements * DTypeSize(tensor.info->dtype), '\0');
  const std::span<std::byte> out = std::as_writable_bytes(std::span(bytes));
  for (size_t begin = 0; begin < out.size(); begin += block) {
    const std::span<std::byte> part = out.subspan(begin, std::min(block, out.size() - begin));
    const std::byte* const from = tensor.Bytes(begin, part);
    if (from != part.data()) std::copy(from, from + part.size(), part.data());
  }
  return bytes;
}

// A step whose tensors lie in memory, each at an odd address.
class InMemory {
 public:
  explicit InMemory(TraceStep step) : step_(std::move(step)) {
    for (Recording& recording : step_.recordings) {
      for (TraceTensor& tensor : recording.tensors) {
        tensor.memory = Bytes(memory_.emplace_back("." + TensorBytes(tensor))).data() + 1;
        tensor.source = nullptr;
      }
    }
  }

  const TraceStep& step() const { return step_; }

 private:
  TraceStep step_;
  std::list<std::string> memory_;
};

// Opens a trace and reads every byte of every tensor. Returns the number of bytes.
inline size_t ReadWholeTrace(const std::vector<std::string>& paths,
                             const TraceOptions& options = {}) {
  const TraceReader reader = OpenTrace(paths, options);
  size_t bytes = 0;
  for (size_t i = 0; i < reader.step_count(); ++i) {
    for (const Recording& recording : reader.Load(i).recordings) {
      for (const TraceTensor& tensor : recording.tensors) bytes += TensorBytes(tensor).size();
    }
  }
  return bytes;
}

// A trace in a directory of its own.
class TraceDirectoryTest : public testing::Test {
 protected:
  void WriteStep(const std::string& name, const std::string& metadata = "") {
    dir_.Write(name, StepBytes(metadata));
  }

  TraceReader Open() { return OpenTrace({dir_.path()}); }

  // Expects an error of the directory or of a file in it.
  void ExpectRefused(std::initializer_list<std::string_view> words) {
    ExpectInputError([&] { ReadWholeTrace({dir_.path()}); }, {dir_.path()});
    ExpectInputError([&] { ReadWholeTrace({dir_.path()}); }, words);
  }

  std::string Path(const std::string& name) { return dir_.path() + "/" + name; }

  TempDir dir_;
};

inline std::vector<int64_t> StepNumbers(const TraceReader& reader) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < reader.step_count(); ++i) numbers.push_back(reader.step_number(i));
  return numbers;
}

}  // namespace dlsim
