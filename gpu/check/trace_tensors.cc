// SPDX-License-Identifier: Apache-2.0
// A reader of safetensors files without a JSON library. It checks only what keeps it in bounds:
// the files come from dlsim's own tests or have passed its reader.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "dlsim/error.h"
#include "gpu/check/data_sets.h"

namespace dlsim::gpu_check {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLengthBytes = 8;

std::vector<std::byte> ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<std::byte> bytes(in ? fs::file_size(path) : 0);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!in) throw InputError(Printable(path.string()), "cannot read");
  return bytes;
}

// The text between `before` and the next `after`; empty if `before` is not there.
std::string_view Between(std::string_view text, std::string_view before, char after) {
  const size_t begin = text.find(before);
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin + before.size());
  return text.substr(0, text.find(after));
}

// One entry of the header, without spaces: "name":{"dtype":"F32",...,"data_offsets":[0,4]}.
bool ReadEntry(std::string_view entry, std::span<const std::byte> body, HostTensor& tensor) {
  const std::string_view dtype = Between(entry, "\"dtype\":\"", '"');
  const std::string_view offsets = Between(entry, "\"data_offsets\":[", ']');
  const size_t comma = offsets.find(',');
  if (comma == std::string_view::npos) return false;
  size_t begin = 0, end = 0;
  std::from_chars(offsets.data(), offsets.data() + comma, begin);
  std::from_chars(offsets.data() + comma + 1, offsets.data() + offsets.size(), end);
  for (const DType known : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    if (dtype != DTypeName(known) || begin > end || end > body.size()) continue;
    tensor.dtype = known;
    tensor.bytes.assign(body.begin() + static_cast<ptrdiff_t>(begin),
                        body.begin() + static_cast<ptrdiff_t>(end));
    return true;
  }
  return false;
}

void ReadTensors(const fs::path& path, std::vector<HostTensor>& tensors) {
  const std::vector<std::byte> bytes = ReadFile(path);
  uint64_t length = 0;
  if (bytes.size() >= kLengthBytes) std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length == 0 || length > bytes.size() - kLengthBytes) {
    throw InputError(Printable(path.string()), "no safetensors file");
  }
  std::string header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  std::erase_if(header, [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; });
  const std::span<const std::byte> body = std::span(bytes).subspan(kLengthBytes + length);
  std::string_view rest = std::string_view(header).substr(1);
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find('}'));
    HostTensor tensor;
    if (ReadEntry(entry, body, tensor)) {
      tensor.name = path.filename().string() + ":" + std::string(Between(entry, "\"", '"'));
      tensor.random_stream = static_cast<uint32_t>(tensors.size());
      tensors.push_back(std::move(tensor));
    }
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
  }
}

}  // namespace

std::vector<HostTensor> TraceTensors(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<HostTensor> tensors;
  for (const fs::path& path : paths) ReadTensors(path, tensors);
  if (tensors.empty()) throw InputError(Printable(folder), "no tensors in .safetensors files here");
  return tensors;
}

}  // namespace dlsim::gpu_check
