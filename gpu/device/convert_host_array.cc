// SPDX-License-Identifier: Apache-2.0
#include "gpu/device/convert_host_array.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "dlsim/gpu/convert.h"
#include "src/base/parallel.h"

namespace dlsim::gpu {
namespace {

// Elements that are converted at once: some MiB, and a multiple of 8, as random streams need it.
constexpr size_t kPieceElements = size_t{1} << 22;

// Calls convert(begin, count) for the pieces of an array.
template <class Convert>
void ForEachPiece(size_t elements, const Convert& convert) {
  for (size_t begin = 0; begin < elements; begin += kPieceElements) {
    convert(begin, std::min(kPieceElements, elements - begin));
  }
}

void CopyBytes(std::span<const std::byte> from, std::byte* to) {
  ParallelForBlocks(from.size(), [&](size_t begin, size_t count) {
    std::memcpy(to + begin, from.data() + begin, count);
  });
}

// Copies codes that may become wider or narrower.
template <class From, class To>
void CopyCodes(std::span<const From> from, To* to) {
  ParallelForBlocks(from.size(), [&](size_t begin, size_t count) {
    for (size_t i = begin; i < begin + count; ++i) to[i] = static_cast<To>(from[i]);
  });
}

// Copy between the host's codes and those of the device, which may be narrower.
template <class Code>
void CopyCodes(const std::byte* from, size_t code_bytes, std::span<Code> to) {
  if (code_bytes == sizeof(Code)) {
    CopyBytes({from, to.size_bytes()}, reinterpret_cast<std::byte*>(to.data()));
  } else if constexpr (std::is_same_v<Code, uint32_t>) {
    CopyCodes(std::span(reinterpret_cast<const uint16_t*>(from), to.size()), to.data());
  }
}
template <class Code>
void CopyCodes(std::span<const Code> from, size_t code_bytes, std::byte* to) {
  if (code_bytes == sizeof(Code)) {
    CopyBytes(std::as_bytes(from), to);
  } else if constexpr (std::is_same_v<Code, uint32_t>) {
    CopyCodes(from, reinterpret_cast<uint16_t*>(to));
  }
}

}  // namespace

template <class Code>
void EncodeHostArray(SlotRing& slots, const ArrayConversion& how, DType dtype,
                     std::span<const std::byte> bytes, std::span<Code> codes) {
  const SlotUse use(slots);
  const size_t size = DTypeSize(dtype), code_bytes = CodeBytes(how.conversion.format);
  ForEachPiece(codes.size(), [&](size_t begin, size_t count) {
    Slot& slot = slots.Next(count * size, count * code_bytes);
    CopyBytes(bytes.subspan(begin * size, count * size), slot.host_input());
    slot.Send(count * size);
    ArrayConversion piece = how;
    piece.first_index += begin;
    DeviceTensor tensor;
    tensor.values = slot.device_input();
    tensor.elements = count;
    tensor.dtype = dtype;
    tensor.codes = slot.device_output();
    Encode(piece, tensor, slot.stream());
    slot.Fetch(count * code_bytes);
    slots.Submit(slot, [from = slot.host_output(), code_bytes, to = codes.subspan(begin, count)] {
      CopyCodes(from, code_bytes, to);
    });
  });
  slots.Finish();
}

template <class Code>
void DecodeHostArray(SlotRing& slots, const Format& format, std::span<const Code> codes,
                     std::span<float> values) {
  const SlotUse use(slots);
  const size_t code_bytes = CodeBytes(format);
  ForEachPiece(codes.size(), [&](size_t begin, size_t count) {
    Slot& slot = slots.Next(count * code_bytes, count * sizeof(float));
    CopyCodes(codes.subspan(begin, count), code_bytes, slot.host_input());
    slot.Send(count * code_bytes);
    Decode(format, slot.device_input(), reinterpret_cast<float*>(slot.device_output()), count,
           slot.stream());
    slot.Fetch(count * sizeof(float));
    slots.Submit(slot, [from = slot.host_output(), to = values.subspan(begin, count)] {
      CopyBytes({from, to.size_bytes()}, reinterpret_cast<std::byte*>(to.data()));
    });
  });
  slots.Finish();
}

template void EncodeHostArray(SlotRing&, const ArrayConversion&, DType, std::span<const std::byte>,
                              std::span<uint16_t>);
template void EncodeHostArray(SlotRing&, const ArrayConversion&, DType, std::span<const std::byte>,
                              std::span<uint32_t>);
template void DecodeHostArray(SlotRing&, const Format&, std::span<const uint16_t>,
                              std::span<float>);
template void DecodeHostArray(SlotRing&, const Format&, std::span<const uint32_t>,
                              std::span<float>);

}  // namespace dlsim::gpu
