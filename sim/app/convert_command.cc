// SPDX-License-Identifier: Apache-2.0
// dlsim convert: .npy files between float32 and codes.
#include <memory>
#include <optional>
#include <string>

#include "sim/app/commands.h"
#include "sim/app/conversion_options.h"
#include "sim/app/convert_file.h"
#include "sim/app/device_option.h"
#include "sim/app/typed_options.h"

namespace dlsim::sim {
namespace {

struct ConvertCommandOptions {
  std::string to, from, input, output;
  std::optional<std::string> scale;
  std::optional<DType> npy_void;
  ConversionOptions conversion;
  DeviceChoice device;
};

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

void AddConvertCommand(CLI::App& app, Action& action) {
  const auto options = std::make_shared<ConvertCommandOptions>();
  CLI::App* command =
      app.add_subcommand("convert", "Convert a .npy file to the codes of a format, or back");
  CLI::Option_group* direction = command->add_option_group("Direction");
  OfferFormats(direction->add_option("--to", options->to, "Encode floats to this format"))
      ->option_text("FORMAT");
  OfferFormats(
      direction->add_option("--from", options->from, "Decode codes of this format to float32"))
      ->option_text("FORMAT");
  direction->require_option(1);
  AddConversionOptions(*command, options->conversion);
  command
      ->add_option("--scale", options->scale,
                   "Multiply by S in float32 before encoding, or by its reciprocal after decoding "
                   "(default 1)")
      ->option_text("S");
  AddChoice<DType>(*command, "--npy-void", options->npy_void, {{"bf16", DType::kBF16}}, "bf16",
                   "Read NumPy's dtype V2 as bf16: ml_dtypes saves bfloat16 this way");
  for (const char* name : {"--rounding", "--overflow", "--subnormals", "--seed", "--npy-void"}) {
    command->get_option(name)->excludes(direction->get_option("--from"));
  }
  AddDeviceOption(*command, options->device);
  AddThreadsOption(*command);
  command->add_option("IN", options->input, "Input .npy: f2, f4, f8, or uint16/uint32 codes")
      ->required();
  command->add_option("OUT", options->output, "Output .npy; - is standard output")->required();
  command->footer(
      "Examples:\n"
      "  dlsim convert --to cb16 --scale 2^15 g.npy codes.npy\n"
      "  dlsim convert --to fp8-e4m3 --rounding sr --seed 7 g.npy codes.npy\n"
      "  dlsim convert --to fp16 --device cuda g.npy codes.npy\n"
      "  dlsim convert --from cb16 --scale 2^15 codes.npy back.npy");
  command->callback([options, &action] { action = [options] { return RunConvert(*options); }; });
}

}  // namespace dlsim::sim
