// SPDX-License-Identifier: Apache-2.0
// dlsim convert: .npy files between float32 and codes.
#include <memory>
#include <optional>
#include <string>

#include "sim/app/commands.h"
#include "sim/app/conversion_options.h"
#include "sim/app/convert_file.h"
#include "sim/app/device_option.h"
#include "sim/app/trace_arguments.h"

namespace dlsim::sim {
namespace {

struct ConvertCommandOptions {
  std::string to, from, input, output;
  std::optional<std::string> scale;
  std::optional<DType> npy_void;
  ConversionOptions conversion;
  DeviceChoice device;

  void Visit(OptionRows& option);
};

void ConvertCommandOptions::Visit(OptionRows& option) {
  const char* const direction = "Direction";
  option("--to", to, "FORMAT", "Encode floats to this format", FormatNames()).one_of = direction;
  option("--from", from, "FORMAT", "Decode codes of this format to float32", FormatNames()).one_of =
      direction;
  conversion.Visit(option);
  option("--scale", scale, "S",
         "Multiply by S in float32 before encoding, or by its reciprocal after decoding (default "
         "1)");
  VisitNpyVoid(option, npy_void);
  for (const char* name : {"--rounding", "--overflow", "--subnormals", "--seed", "--npy-void"}) {
    option.Named(name).excludes = "--from";
  }
  VisitDevice(option, device);
  option.Threads();
  option.Argument("IN", input, "Input .npy file: f2, f4 or f8 values, or uint16 or uint32 codes")
      .required = true;
  OptionRow& out = option.Argument("OUT", output, "Output .npy file; - is standard output");
  out.required = out.is_output = true;
}

int RunConvert(const ConvertCommandOptions& options) {
  const float scale = options.scale ? ParseScale(*options.scale) : 1.0f;
  const bool decodes = !options.from.empty();
  const NamedFormat format = ParseFormat(decodes ? options.from : options.to);
  const std::unique_ptr<ComputeDevice> device =
      OpenDevice(options.device, BytesOfFile(options.input));
  if (decodes) {
    DecodeNpyFile(options.input, options.output, format, scale, device.get());
    return 0;
  }
  ArrayConversion how;
  how.conversion = options.conversion.Of(format.format);
  how.scale = scale;
  how.random.seed = options.conversion.seed;
  EncodeNpyFile(options.input, options.output, how, options.npy_void, device.get());
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
