// SPDX-License-Identifier: Apache-2.0
// Edges repeat from one binade to the next: written are the distinct mantissas, and the edges as
// their numbers. Every power of two is an edge, so that mantissa zero begins the next binade.
#include "src/profile/edges_code.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dlsim/codec.h"
#include "src/profile/bytes.h"
#include "src/profile/compress.h"

namespace dlsim {
namespace {

constexpr uint64_t kMaxEdges = uint64_t{1} << 24;
constexpr uint64_t kMantissaVarint = 4;  // of a mantissa or its number
constexpr int kMantissaBits = 23;
constexpr uint32_t kLastExponent = codec::kInfinityBits >> kMantissaBits;

}  // namespace

std::string EncodeEdges(const HistogramEdges& edges) {
  std::vector<uint32_t> mantissas;
  for (const uint32_t bits : edges.bits()) mantissas.push_back(bits & codec::kMantissaMask);
  std::sort(mantissas.begin(), mantissas.end());
  mantissas.erase(std::unique(mantissas.begin(), mantissas.end()), mantissas.end());
  std::string columns, payload;
  uint32_t last = 0;
  for (const uint32_t mantissa : mantissas) {
    PutVarint(mantissa - last, columns);
    last = mantissa;
  }
  for (const uint32_t bits : edges.bits()) {
    const auto at =
        std::lower_bound(mantissas.begin(), mantissas.end(), bits & codec::kMantissaMask);
    PutVarint(static_cast<uint64_t>(at - mantissas.begin()), columns);
  }
  PutVarint(mantissas.size(), payload);
  PutVarint(edges.bits().size(), payload);
  PutCompressed(columns, payload);
  return payload;
}

HistogramEdges DecodeEdges(const std::string& place, std::string_view payload) {
  ByteReader packed(place, payload);
  const uint64_t distinct = packed.Varint(), count = packed.Varint();
  packed.Require(distinct > 0 && distinct <= count && count <= kMaxEdges,
                 "damaged: a number of edges that no ladder has");
  const std::string columns = TakeCompressed(packed, (distinct + count) * kMantissaVarint);
  packed.RequireEnd();
  packed.Require(distinct + count <= columns.size(), "damaged: more edges than bytes");
  ByteReader in(place, columns);
  std::vector<uint32_t> mantissas(static_cast<size_t>(distinct)), bits;
  uint64_t value = 0;
  for (uint32_t& mantissa : mantissas) {
    value += std::min<uint64_t>(in.Varint(), codec::kInfinityBits);
    in.Require(value <= codec::kMantissaMask, "damaged: a mantissa of too many bits");
    mantissa = static_cast<uint32_t>(value);
  }
  uint32_t exponent = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t number = in.Varint();
    in.Require(number < distinct, "damaged: an edge without a mantissa");
    const uint32_t mantissa = mantissas[static_cast<size_t>(number)];
    if (mantissa == 0) ++exponent;
    in.Require(exponent < kLastExponent || (exponent == kLastExponent && mantissa == 0),
               "damaged: an edge beyond infinity");
    bits.push_back(exponent << kMantissaBits | mantissa);
  }
  in.RequireEnd();
  HistogramEdges edges(bits);
  in.Require(std::equal(bits.begin(), bits.end(), edges.bits().begin(), edges.bits().end()),
             "damaged: edges that no ladder has");
  return edges;
}

}  // namespace dlsim
