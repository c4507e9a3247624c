// SPDX-License-Identifier: Apache-2.0
#include "bench/streams.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "dlsim/simd.h"

// Targets are named one by one, without dynamic dispatch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/streams.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef DLSIM_BENCH_STREAMS_ONCE
#define DLSIM_BENCH_STREAMS_ONCE
namespace dlsim::bench {

enum class Store : uint8_t { kPlain, kNonTemporal };

// Bytes that software fetches ahead. Hardware prefetchers stop at a page; which is faster in DRAM
// depends on the machine.
inline constexpr size_t kPrefetchBytes = 2048;

using Stream = void (*)(const std::byte* from, std::byte* to, size_t elements);

struct StreamRow {
  const char* format;
  const char* mode;
  Traffic traffic;
  Stream stream;
};

}  // namespace dlsim::bench
#endif

HWY_BEFORE_NAMESPACE();
namespace dlsim::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<uint8_t>;
using Vector = hn::Vec<Tag>;

template <Store kStore>
HWY_INLINE void StoreVector(Vector v, std::byte* to) {
  uint8_t* bytes = reinterpret_cast<uint8_t*>(to);
  if constexpr (kStore == Store::kNonTemporal) {
    hn::Stream(v, Tag(), bytes);
  } else {
    hn::Store(v, Tag(), bytes);
  }
}

HWY_INLINE Vector LoadVector(const std::byte* from) {
  return hn::Load(Tag(), reinterpret_cast<const uint8_t*>(from));
}

// Fetches `bytes` bytes ahead of `from`, line by line.
template <size_t kAhead>
HWY_INLINE void PrefetchLines(const std::byte* from, size_t bytes) {
  if constexpr (kAhead != 0) {
    for (size_t line = 0; line < bytes; line += 64) hwy::Prefetch(from + kAhead + line);
  }
}

// Each step reads eight vectors and writes one for each `kJoined`: these are joined by the cheapest
// operation.
template <size_t kJoined, Store kStore, size_t kAhead>
void ReadJoinWrite(const std::byte* from, std::byte* to, size_t elements) {
  const size_t size = hn::Lanes(Tag());
  for (const std::byte* end = from + 4 * elements; from != end; from += 8 * size) {
    PrefetchLines<kAhead>(from, 8 * size);
    for (size_t i = 0; i < 8; i += kJoined, to += size) {
      Vector joined = LoadVector(from + i * size);
      for (size_t k = 1; k < kJoined; ++k) {
        joined = hn::Or(joined, LoadVector(from + (i + k) * size));
      }
      StoreVector<kStore>(joined, to);
    }
  }
  if constexpr (kStore == Store::kNonTemporal) hwy::FlushStream();
}

// Each step reads four vectors and writes each `kTimes`.
template <size_t kTimes, Store kStore, size_t kAhead>
void ReadWriteTimes(const std::byte* from, std::byte* to, size_t elements) {
  const size_t size = hn::Lanes(Tag());
  const size_t read = 4 / kTimes;  // bytes of an element
  for (const std::byte* end = from + read * elements; from != end; from += 4 * size) {
    PrefetchLines<kAhead>(from, 4 * size);
    for (size_t i = 0; i < 4; ++i) {
      const Vector v = LoadVector(from + i * size);
      for (size_t k = 0; k < kTimes; ++k, to += size) StoreVector<kStore>(v, to);
    }
  }
  if constexpr (kStore == Store::kNonTemporal) hwy::FlushStream();
}

// Eight independent chains; their union is stored so that no load can be left out.
template <size_t kAhead>
void Read4(const std::byte* from, std::byte* to, size_t elements) {
  const size_t size = hn::Lanes(Tag());
  Vector a = hn::Zero(Tag()), b = a, c = a, d = a;
  for (const std::byte* end = from + 4 * elements; from != end; from += 8 * size) {
    PrefetchLines<kAhead>(from, 8 * size);
    a = hn::Or(a, hn::Or(LoadVector(from), LoadVector(from + 4 * size)));
    b = hn::Or(b, hn::Or(LoadVector(from + size), LoadVector(from + 5 * size)));
    c = hn::Or(c, hn::Or(LoadVector(from + 2 * size), LoadVector(from + 6 * size)));
    d = hn::Or(d, hn::Or(LoadVector(from + 3 * size), LoadVector(from + 7 * size)));
  }
  StoreVector<Store::kPlain>(hn::Or(hn::Or(a, b), hn::Or(c, d)), to);
}

constexpr StreamRow kRows[] = {
    {"read4write2", "plain", kEncodeTraffic, ReadJoinWrite<2, Store::kPlain, 0>},
    {"read4write2", "prefetch", kEncodeTraffic, ReadJoinWrite<2, Store::kPlain, kPrefetchBytes>},
    {"read4write2", "nontemporal", kEncodeTraffic,
     ReadJoinWrite<2, Store::kNonTemporal, kPrefetchBytes>},
    {"read2write4", "plain", kDecodeTraffic, ReadWriteTimes<2, Store::kPlain, 0>},
    {"read2write4", "prefetch", kDecodeTraffic, ReadWriteTimes<2, Store::kPlain, kPrefetchBytes>},
    {"read2write4", "nontemporal", kDecodeTraffic,
     ReadWriteTimes<2, Store::kNonTemporal, kPrefetchBytes>},
    {"read4write1", "plain", kEncodeBytesTraffic, ReadJoinWrite<4, Store::kPlain, 0>},
    {"read4write1", "prefetch", kEncodeBytesTraffic,
     ReadJoinWrite<4, Store::kPlain, kPrefetchBytes>},
    {"read1write4", "plain", kDecodeBytesTraffic, ReadWriteTimes<4, Store::kPlain, 0>},
    {"read1write4", "prefetch", kDecodeBytesTraffic,
     ReadWriteTimes<4, Store::kPlain, kPrefetchBytes>},
    {"read4", "plain", kMeasureTraffic, Read4<0>},
    {"read4", "prefetch", kMeasureTraffic, Read4<kPrefetchBytes>},
};

}  // namespace HWY_NAMESPACE
}  // namespace dlsim::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim::bench {
namespace {

struct StreamTarget {
  std::string name;
  std::span<const StreamRow> rows;
};

// The two widest that this machine has: wider vectors are not always faster.
std::vector<StreamTarget> StreamTargets() {
  const std::vector<StreamTarget> compiled = {
#if HWY_TARGETS & HWY_AVX3
    {"AVX3", N_AVX3::kRows},
#endif
#if HWY_TARGETS & HWY_AVX2
    {"AVX2", N_AVX2::kRows},
#endif
#if HWY_TARGETS & HWY_SSE4
    {"SSE4", N_SSE4::kRows},
#endif
    {hwy::TargetName(HWY_STATIC_TARGET), HWY_NAMESPACE::kRows}
  };
  const std::vector<std::string> supported = SupportedSimdTargets();
  std::vector<StreamTarget> chosen;
  for (const StreamTarget& target : compiled) {
    if (chosen.size() < 2 && std::ranges::find(supported, target.name) != supported.end()) {
      chosen.push_back(target);
    }
  }
  return chosen;
}

Kernel MakeKernel(const StreamRow& row, const std::string& target) {
  const auto bind = [row](ArrayStore&, const Arrays& arrays) -> RangeKernel {
    const bool reads_floats = row.traffic.bytes_read == sizeof(float);
    const auto from = reads_floats ? std::as_bytes(arrays.values) : std::as_bytes(arrays.codes);
    const auto to =
        reads_floats ? std::as_writable_bytes(arrays.codes) : std::as_writable_bytes(arrays.floats);
    return [=](size_t begin, size_t count) {
      const std::byte* first = from.data() + begin * row.traffic.bytes_read;
      row.stream(first, to.data() + begin * row.traffic.bytes_written, count);
    };
  };
  return {Owner::kStream, Sharing::kByCaller, "Stream", row.format, row.mode,
          target,         row.traffic,        bind};
}

// Slices of one candidate; the fastest counts.
constexpr int kTrials = 7;

double BestSeconds(const Workload& workload, ArrayStore& store) {
  const RangeKernel kernel = Bind(workload, store, 0);
  const size_t elements = store.Elements(workload.size);
  Slice slice(workload.SliceClock(), [&] { kernel(0, elements); });
  double best = slice.Seconds();
  for (int trial = 1; trial < kTrials; ++trial) best = std::min(best, slice.Seconds());
  return best;
}

Workload FindLimit(Traffic traffic, Size size, int threads, ArrayStore& store) {
  std::optional<Workload> fastest;
  double best = 0;
  for (const Kernel& kernel : Streams()) {
    if (kernel.traffic != traffic || kernel.mode == "nontemporal") continue;
    const Workload candidate = {kernel, size, DataSet::kAny, threads};
    const double seconds = BestSeconds(candidate, store);
    if (fastest && seconds >= best) continue;
    fastest = candidate;
    best = seconds;
  }
  return fastest.value();
}

}  // namespace

std::vector<Kernel> Streams() {
  std::vector<Kernel> kernels;
  for (const StreamTarget& target : StreamTargets()) {
    for (const StreamRow& row : target.rows) kernels.push_back(MakeKernel(row, target.name));
  }
  return kernels;
}

const Workload& LimitOf(Traffic traffic, Size size, int threads, ArrayStore& store) {
  static std::mutex mutex;
  static std::map<std::tuple<size_t, Size, int>, Workload> known;
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(4 * traffic.bytes_read + traffic.bytes_written, size, threads);
  auto found = known.find(key);
  if (found == known.end()) {
    found = known.emplace(key, FindLimit(traffic, size, threads, store)).first;
  }
  return found->second;
}

}  // namespace dlsim::bench
#endif  // HWY_ONCE
