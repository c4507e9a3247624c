// SPDX-License-Identifier: Apache-2.0
// dlsim convert: .npy files between float32 and codes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dlsim/convert.h"
#include "dlsim/error.h"
#include "dlsim/trace.h"
#include "sim/app/commands.h"
#include "sim/app/shared_options.h"
#include "sim/base/files.h"
#include "src/base/file.h"
#include "src/device/compute_device.h"
#include "src/measure/step_blocks.h"
#include "src/trace/npy.h"

namespace dlsim::sim {
namespace {

// Elements converted at once: enough blocks for many threads, a few MiB of memory. A device copies
// while it converts, which needs more of them.
constexpr uint64_t kPieceElements = uint64_t{1} << 20;
constexpr uint64_t kDevicePieceElements = uint64_t{1} << 24;

template <class T>
std::string_view AsText(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// Calls convert(first element, bytes of the piece) for the pieces of the array. The next piece is
// read meanwhile.
template <class Convert>
void ForEachPiece(const ByteSource& source, const NpyHeader& header, uint64_t piece_elements,
                  const Convert& convert) {
  const size_t size = header.item_bytes;
  std::vector<std::byte> bytes, next;
  const auto read_next = [&](uint64_t first) {
    const uint64_t count = std::min(piece_elements, header.elements - first);
    next.resize(static_cast<size_t>(count) * size);
    source.read(header.data_start + first * size, next);
  };
  if (header.elements > 0) read_next(0);
  for (uint64_t first = 0; first < header.elements; first += piece_elements) {
    std::swap(bytes, next);
    std::future<void> reading;  // its destructor waits, so that errors leave no reader behind
    if (header.elements - first > piece_elements) {
      // Copied: where a thread cannot be started, libstdc++ has moved what std::async was given to
      // that thread already, and goes on with what is left of it.
      const auto read = [&, first] { read_next(first + piece_elements); };
      reading = std::async(std::launch::async | std::launch::deferred, read);
    }
    convert(first, std::span<const std::byte>(bytes));
    if (reading.valid()) reading.get();
  }
}

enum class Direction : uint8_t { kEncode, kDecode };

// Converts the array piece by piece, from elements of this type or from codes.
template <class Code>
void ConvertPieces(const ByteSource& source, const NpyHeader& header, Direction direction,
                   DType dtype, ArrayConversion how, ComputeDevice* device, OutputFile& out) {
  const Format& format = how.conversion.format;
  const float inverse = 1.0f / how.scale;
  std::vector<float> values;
  std::vector<Code> codes;
  const auto encode = [&](uint64_t first, std::span<const std::byte> bytes) {
    codes.resize(bytes.size() / header.item_bytes);
    how.first_index = first;
    if (device != nullptr) {
      device->Encode(how, dtype, bytes, std::as_writable_bytes(std::span(codes)));
    } else {
      values.resize(codes.size());
      LoadFloats(dtype, bytes.data(), 1.0f, values);
      EncodeArray(how, values, std::span<Code>(codes));
    }
    out.Write(AsText(std::span<const Code>(codes)));
  };
  const auto decode = [&](uint64_t, std::span<const std::byte> bytes) {
    codes.resize(bytes.size() / header.item_bytes);
    values.resize(codes.size());
    if (device != nullptr) {
      device->Decode(format, bytes, values);
    } else {
      std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(codes)).begin());
      DecodeArray(format, std::span<const Code>(codes), values);
    }
    if (how.scale != 1.0f) {
      for (float& value : values) value *= inverse;
    }
    out.Write(AsText(std::span<const float>(values)));
  };
  const uint64_t piece = device == nullptr ? kPieceElements : kDevicePieceElements;
  direction == Direction::kEncode ? ForEachPiece(source, header, piece, encode)
                                  : ForEachPiece(source, header, piece, decode);
}

struct ConvertCommandOptions {
  std::string to, from, input, output;
  std::optional<std::string> scale;
  std::optional<DType> npy_void;
  Conversion conversion;
  uint64_t seed = 0;
  DeviceChoice device;

  void Visit(OptionRows& option) {
    const char* const direction = "Direction";
    option("--to", to, "FORMAT", "Encode floats to this format", FormatNames()).one_of = direction;
    option("--from", from, "FORMAT", "Decode codes of this format to float32", FormatNames())
        .one_of = direction;
    VisitConversion(option, conversion, seed);
    option("--scale", scale, "S",
           "Multiply by S in float32 before encoding, or by its reciprocal after decoding (default "
           "1)");
    VisitNpyVoid(option, npy_void);
    for (const char* name : {"--rounding", "--overflow", "--subnormals", "--seed", "--npy-void"}) {
      option.Named(name).excludes = "--from";
    }
    VisitComputation(option, device);
    option.Argument("IN", input, "Input .npy file: f2, f4 or f8 values, or uint16 or uint32 codes")
        .required = true;
    OptionRow& out = option.Argument("OUT", output, "Output .npy file; - is standard output");
    out.required = out.is_output = true;
  }
};

// Returns the value of --scale.
float ParseScale(const std::string& text) {
  const double scale = ParseNumber(text, "--scale");
  const bool is_float = scale > 0 && scale <= std::numeric_limits<float>::max();
  if (is_float && static_cast<float>(scale) > 0) return static_cast<float>(scale);
  throw UsageError("--scale", "out of range", "a positive float32 number", Quoted(text));
}

// Encodes floats (f2, f4, f8, or V2 as the option says; rounded to float32 first), scaled, to
// uint16, or to uint32 for formats of more than 16 bits; or decodes such codes to float32 and
// unscales them (a multiplication with the float32 reciprocal of the scale). Shape and order are
// kept. The output appears complete or not at all.
int RunConvert(const ConvertCommandOptions& options) {
  const float scale = options.scale ? ParseScale(*options.scale) : 1.0f;
  const bool decodes = !options.from.empty();
  const NamedFormat format = ParseFormat(decodes ? options.from : options.to);
  std::error_code missing;  // whoever opens it says so
  const uintmax_t bytes = std::filesystem::file_size(options.input, missing);
  const std::unique_ptr<ComputeDevice> device = OpenDevice(options.device, missing ? 0 : bytes);
  const ByteSource source = FileSource(ReadOnlyFile::Open(options.input));
  const NpyHeader header = ReadNpyHeader(source, decodes ? kNpyTypes : kFloatNpyTypes);
  const bool wide = CodeBits(format.format) > 16;
  const std::string codes = wide ? "<u4" : "<u2";
  ArrayConversion how;
  how.conversion = options.conversion;
  how.conversion.format = format.format;
  how.scale = scale;
  how.random.seed = options.seed;
  DType dtype = DType::kF32;
  if (!decodes) {
    dtype = TraceDType(source.place, header.descr, options.npy_void, kFloatNpyTypes);
  } else if (header.descr != codes) {
    throw InputError(source.place, "no codes of " + format.name, codes, header.descr);
  }
  OutputFile out(options.output);
  out.Write(MakeNpyHeader(decodes ? "<f4" : codes, header.shape, header.fortran_order));
  const Direction direction = decodes ? Direction::kDecode : Direction::kEncode;
  if (wide) {
    ConvertPieces<uint32_t>(source, header, direction, dtype, how, device.get(), out);
  } else {
    ConvertPieces<uint16_t>(source, header, direction, dtype, how, device.get(), out);
  }
  out.Commit();
  return 0;
}

}  // namespace

Command ConvertCommand() {
  return MakeCommand<ConvertCommandOptions>(
      RunConvert, "convert", "Convert a .npy file to the codes of a format, or back",
      "Examples:\n"
      "  dlsim convert --to cb16 --scale 2^15 g.npy codes.npy\n"
      "  dlsim convert --to fp8-e4m3 --rounding sr --seed 7 g.npy codes.npy\n"
      "  dlsim convert --to fp16 --device cuda g.npy codes.npy\n"
      "  dlsim convert --from cb16 --scale 2^15 codes.npy back.npy");
}

}  // namespace dlsim::sim
