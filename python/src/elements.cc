// SPDX-License-Identifier: Apache-2.0
#include "python/src/elements.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "dlsim/table.h"
#include "src/base/parallel.h"
#include "src/measure/load_floats.h"

namespace dlsim::python {
namespace {

template <class T>
using Chunk = std::array<T, kChunkElements>;

// Calls body(begin, count) for the chunks of a block.
template <class Body>
void ForChunksOf(size_t begin, size_t count, const Body& body) {
  const size_t end = begin + count;
  for (; begin < end; begin += kChunkElements) body(begin, std::min(kChunkElements, end - begin));
}

// Returns the values of a chunk: where they are if they are float32, else turned into float32.
std::span<const float> LoadChunk(const Elements& values, size_t begin, size_t count,
                                 Chunk<float>& buffer) {
  const std::byte* from = values.data + begin * DTypeSize(values.dtype);
  if (values.dtype == DType::kF32) return {reinterpret_cast<const float*>(from), count};
  const std::span<float> loaded(buffer.data(), count);
  LoadFloats(values.dtype, from, 1.0f, loaded);
  return loaded;
}

// Calls body(begin, values) for all chunks on all threads.
template <class Body>
void ForChunks(const Elements& values, const Body& body) {
  ParallelForBlocks(values.count, [&](size_t block, size_t length) {
    alignas(64) Chunk<float> buffer;
    ForChunksOf(block, length, [&](size_t begin, size_t count) {
      body(begin, LoadChunk(values, begin, count, buffer));
    });
  });
}

ArrayConversion From(ArrayConversion how, size_t begin) {
  how.first_index += begin;
  return how;
}

// Codes of one byte pass through two.
void EncodeBytes(const ArrayConversion& how, std::span<const float> values, std::byte* codes) {
  alignas(64) Chunk<uint16_t> buffer;
  EncodeArray(how, values, std::span(buffer.data(), values.size()));
  for (size_t i = 0; i < values.size(); ++i) codes[i] = static_cast<std::byte>(buffer[i]);
}

void EncodeChunk(const ArrayConversion& how, std::span<const float> values,
                 const CodesOf<std::byte>& codes, size_t begin) {
  std::byte* to = codes.data + begin * codes.bytes;
  if (codes.bytes == 1) {
    EncodeBytes(how, values, to);
  } else if (codes.bytes == 2) {
    EncodeArray(how, values, std::span(reinterpret_cast<uint16_t*>(to), values.size()));
  } else {
    EncodeArray(how, values, std::span(reinterpret_cast<uint32_t*>(to), values.size()));
  }
}

void DecodeBytes(const Format& format, const std::byte* codes, std::span<float> values) {
  ParallelForBlocks(values.size(), [&](size_t block, size_t length) {
    alignas(64) Chunk<uint16_t> buffer;
    ForChunksOf(block, length, [&](size_t begin, size_t count) {
      for (size_t i = 0; i < count; ++i) buffer[i] = static_cast<uint16_t>(codes[begin + i]);
      DecodeArray(format, std::span<const uint16_t>(buffer.data(), count),
                  values.subspan(begin, count));
    });
  });
}

template <class Code>
void QuantizeWith(const ArrayConversion& how, Unscale unscale, const Elements& values,
                  std::span<float> results) {
  const float inverse = unscale == Unscale::kYes ? 1.0f / how.scale : 1.0f;
  ForChunks(values, [&](size_t begin, std::span<const float> chunk) {
    alignas(64) Chunk<Code> buffer;
    const std::span<Code> codes(buffer.data(), chunk.size());
    EncodeArray(From(how, begin), chunk, codes);
    const std::span<float> out = results.subspan(begin, chunk.size());
    DecodeArray(how.conversion.format, std::span<const Code>(codes), out);
    if (inverse == 1.0f) return;
    for (float& value : out) value *= inverse;
  });
}

}  // namespace

void EncodeElements(const ArrayConversion& how, const Elements& values,
                    const CodesOf<std::byte>& codes) {
  if (values.dtype == DType::kF32 && codes.bytes > 1) {
    const auto* floats = reinterpret_cast<const float*>(values.data);
    EncodeChunk(how, std::span(floats, values.count), codes, 0);
    return;
  }
  ForChunks(values, [&](size_t begin, std::span<const float> chunk) {
    EncodeChunk(From(how, begin), chunk, codes, begin);
  });
}

void DecodeElements(const Format& format, const CodesOf<const std::byte>& codes,
                    std::span<float> values) {
  if (codes.bytes == 1) {
    DecodeBytes(format, codes.data, values);
  } else if (codes.bytes == 2) {
    const auto* from = reinterpret_cast<const uint16_t*>(codes.data);
    DecodeArray(format, std::span(from, codes.count), values);
  } else {
    const auto* from = reinterpret_cast<const uint32_t*>(codes.data);
    DecodeArray(format, std::span(from, codes.count), values);
  }
}

void QuantizeElements(const ArrayConversion& how, Unscale unscale, const Elements& values,
                      std::span<float> results) {
  if (CodeBits(how.conversion.format) <= 16) {
    QuantizeWith<uint16_t>(how, unscale, values, results);
  } else {
    QuantizeWith<uint32_t>(how, unscale, values, results);
  }
}

std::span<const float> FloatsOf(const Elements& values, float grad_scale,
                                std::vector<float>& room) {
  if (values.dtype == DType::kF32 && grad_scale == 1) {
    return {reinterpret_cast<const float*>(values.data), values.count};
  }
  room.resize(values.count);
  ParallelForBlocks(values.count, [&](size_t block, size_t length) {
    ForChunksOf(block, length, [&](size_t begin, size_t count) {
      LoadFloats(values.dtype, values.data + begin * DTypeSize(values.dtype), grad_scale,
                 std::span(room).subspan(begin, count));
    });
  });
  return room;
}

std::vector<TensorStats> MeasureElements(const Elements& values,
                                         std::span<const Measurement> questions) {
  std::vector<float> room;
  const std::span<const float> floats = FloatsOf(values, 1, room);
  const TensorTable table = Tabulate(floats);
  std::vector<TensorStats> answers = Measure(floats, questions);
  for (size_t q = 0; q < questions.size(); ++q) {
    answers[q].sum_of_squares = table.sum_of_squares;
    const auto told = Ask(table, questions[q].conversion, questions[q].scale);
    if (!told) continue;
    answers[q].error_sum_of_squares = told->error_sum_of_squares;
    answers[q].underflow_sum_of_squares = told->underflow_sum_of_squares;
  }
  return answers;
}

}  // namespace dlsim::python
