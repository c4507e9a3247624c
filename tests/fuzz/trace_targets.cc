// SPDX-License-Identifier: Apache-2.0
// Fuzz targets of traces.
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>

#include "src/trace/npy.h"
#include "src/trace/npz.h"
#include "src/trace/recording.h"
#include "src/trace/safetensors.h"
#include "src/trace/tensor_rules.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/target_support.h"
#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

constexpr uint64_t kMaxBytesRead = 1 << 16;  // of a tensor: enough to reach every state, and fast

std::span<const std::byte> AsBytes(const uint8_t* bytes, size_t size) {
  return std::as_bytes(std::span(bytes, size));
}

// Reads the first bytes in blocks, then once more from the beginning.
template <typename Read>
void ReadBlocks(const Read& read, uint64_t size) {
  std::array<std::byte, 1000> block;
  const uint64_t bytes = std::min(size, kMaxBytesRead);
  for (uint64_t begin = 0; begin < bytes; begin += block.size()) {
    read(begin, std::span(block).first(std::min<uint64_t>(block.size(), bytes - begin)));
  }
  if (bytes > 0) read(0, std::span(block).first(1));
}

void ReadTensor(const TraceTensor& tensor) {
  const uint64_t size = DTypeSize(tensor.info->dtype);
  Require(ElementCount(tensor.info->shape, size) == tensor.elements);
  ReadBlocks([&](uint64_t offset, std::span<std::byte> out) { tensor.Read(offset, out); },
             tensor.elements * size);
}

void ReadTensors(const std::vector<TraceTensor>& tensors) {
  for (const TraceTensor& tensor : tensors) RunTarget([&] { ReadTensor(tensor); });
}

// A trace of three steps, of which trace.json may tell order, numbers and roles.
class StepFolder {
 public:
  StepFolder() {
    for (const char digit : {'0', '1', '2'}) {
      dir_.Write(std::string("step-") + digit + ".safetensors", StepBytes(""));
    }
  }

  std::string path() const { return dir_.path(); }
  void WriteTraceJson(std::string_view text) { dir_.Write("trace.json", text); }

 private:
  TempDir dir_;
};

}  // namespace

int FuzzSafetensors(const uint8_t* bytes, size_t size) {
  return RunTarget([&] {
    const SafetensorsHeader header =
        ReadSafetensorsHeader(MemorySource("fuzz", AsBytes(bytes, size)));
    uint64_t position = 0;
    for (const SafetensorsTensor& tensor : *header.tensors) {
      Require(tensor.begin == position);
      const uint64_t dense = tensor.elements * DTypeSize(tensor.info->dtype);
      Require(!tensor.unsupported.empty() || tensor.end - tensor.begin == dense);
      position = tensor.end;
    }
    Require(header.data_start + position == size);
  });
}

int FuzzNpy(const uint8_t* bytes, size_t size) {
  return RunTarget([&] {
    const NpyHeader header = ReadNpyHeader(MemorySource("fuzz", AsBytes(bytes, size)));
    Require(header.data_start + header.elements * header.item_bytes == size);
    Require(ElementCount(header.shape, header.item_bytes) == header.elements);
  });
}

int FuzzNpz(const uint8_t* bytes, size_t size) {
  return RunTarget([&] {
    const auto archive = NpzArchive::OpenMemory("fuzz", AsBytes(bytes, size));
    for (const NpzMember& member : archive->members()) {
      RunTarget([&] {
        const NpyHeader header = ReadNpzHeader(archive, member);
        ReadBlocks(SourceOf(archive, member).read,
                   header.data_start + header.elements * header.item_bytes);
      });
    }
  });
}

int FuzzDump(const uint8_t* bytes, size_t size) {
  constexpr uint64_t kMaxSteps = 4;
  return RunTarget([&] {
    const auto archive = NpzArchive::OpenMemory("act_dumps.npz", AsBytes(bytes, size));
    const TraceOptions options;
    const Dump dump = ReadDump(archive, &options);
    const auto read = [&](uint64_t step) {
      std::vector<TraceTensor> tensors = dump.arrays;
      for (TraceTensor& tensor : tensors) {
        tensor.begin += step * tensor.elements * DTypeSize(tensor.info->dtype);
      }
      ReadTensors(tensors);
    };
    for (uint64_t i = 0; i < std::min(dump.steps, kMaxSteps); ++i) read(i);
    if (dump.steps > 0) read(dump.steps - 1);
  });
}

int FuzzShardIndex(const uint8_t* bytes, size_t size) {
  static const TempDir dir;
  static const std::string shards[] = {dir.Write("a.safetensors", StepBytes("", "a")),
                                       dir.Write("b.safetensors", StepBytes("", "b"))};
  return RunTarget([&] {
    const std::string index = dir.Write("x.safetensors.index.json", TextOf(bytes, size));
    const Recording whole = LoadShards(index, {});
    for (const TraceTensor& tensor : whole.tensors) {
      Require(tensor.info->name == "a" || tensor.info->name == "b");
      ReadTensor(tensor);
    }
  });
}

int FuzzTraceJson(const uint8_t* bytes, size_t size) {
  static StepFolder folder;
  return RunTarget([&] {
    folder.WriteTraceJson(TextOf(bytes, size));
    const TraceReader trace = OpenTrace({folder.path()});
    for (size_t i = 0; i < trace.step_count(); ++i) {
      Require(i == 0 || trace.step_number(i) > trace.step_number(i - 1));
      for (const Recording& recording : trace.Load(i).recordings) ReadTensors(recording.tensors);
    }
  });
}

}  // namespace dlsim
