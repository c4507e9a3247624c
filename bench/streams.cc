// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "bench/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/streams.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "hwy/highway.h"
#include "src/codec/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace dlsim::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<uint8_t>;
using Vector = hn::Vec<Tag>;

HWY_INLINE Vector LoadVector(const void* from, size_t i) {
  return hn::Load(Tag(), static_cast<const uint8_t*>(from) + i * hn::Lanes(Tag()));
}

HWY_INLINE void StoreVector(Vector v, void* to, size_t i) {
  hn::Store(v, Tag(), static_cast<uint8_t*>(to) + i * hn::Lanes(Tag()));
}

// Joins each two vectors by the cheapest operation.
void Read4Write2(const void* from, void* to, size_t elements) {
  const size_t count = 2 * elements / hn::Lanes(Tag());
  for (size_t i = 0; i < count; i += 4) {
    for (size_t k = i; k < i + 4; ++k) {
      StoreVector(hn::Or(LoadVector(from, 2 * k), LoadVector(from, 2 * k + 1)), to, k);
    }
  }
}

// Writes each vector twice.
void Read2Write4(const void* from, void* to, size_t elements) {
  const size_t count = 2 * elements / hn::Lanes(Tag());
  for (size_t i = 0; i < count; i += 4) {
    for (size_t k = i; k < i + 4; ++k) {
      const Vector v = LoadVector(from, k);
      StoreVector(v, to, 2 * k);
      StoreVector(v, to, 2 * k + 1);
    }
  }
}

// Four independent chains; their union is stored so that no load can be left out.
void Read4(const void* from, void* to, size_t elements) {
  const size_t count = 4 * elements / hn::Lanes(Tag());
  Vector a = hn::Zero(Tag()), b = a, c = a, d = a;
  for (size_t i = 0; i < count; i += 4) {
    a = hn::Or(a, LoadVector(from, i));
    b = hn::Or(b, LoadVector(from, i + 1));
    c = hn::Or(c, LoadVector(from, i + 2));
    d = hn::Or(d, LoadVector(from, i + 3));
  }
  StoreVector(hn::Or(hn::Or(a, b), hn::Or(c, d)), to, 0);
}

}  // namespace HWY_NAMESPACE
}  // namespace dlsim::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dlsim::bench {
namespace {

DLSIM_EXPORT(Read4Write2);
DLSIM_EXPORT(Read2Write4);
DLSIM_EXPORT(Read4);

}  // namespace

std::vector<Kernel> Streams() {
  return {{"Stream/read4write2/-", 6,
           [](Arrays& arrays, DataSet data) -> std::function<void()> {
             return [from = arrays.Values(data), to = arrays.Codes()] {
               DLSIM_DISPATCH(Read4Write2)(from.data(), to.data(), from.size());
             };
           }},
          {"Stream/read2write4/-", 6,
           [](Arrays& arrays, DataSet) -> std::function<void()> {
             return [from = arrays.Codes(), to = arrays.Floats()] {
               DLSIM_DISPATCH(Read2Write4)(from.data(), to.data(), from.size());
             };
           }},
          {"Stream/read4/-", 4, [](Arrays& arrays, DataSet data) -> std::function<void()> {
             return [from = arrays.Values(data), to = arrays.Codes()] {
               DLSIM_DISPATCH(Read4)(from.data(), to.data(), from.size());
             };
           }}};
}

}  // namespace dlsim::bench
#endif  // HWY_ONCE
