// SPDX-License-Identifier: Apache-2.0
#include "sim/commands/trace_arguments.h"

#include "sim/commands/typed_options.h"

namespace dlsim {

void AddTraceArguments(CLI::App& command, TraceArguments& arguments) {
  command
      .add_option("TRACE", arguments.paths,
                  "A directory of step-*.safetensors or act_dumps*.npz, a .safetensors file, a "
                  "*.safetensors.index.json, a .npy or a .npz; several are read one after another")
      ->required();
  command
      .add_option("--tensors", arguments.options.tensors,
                  "Read only tensors whose name matches this pattern (* ? [])")
      ->option_text("GLOB");
  command.add_flag("--no-mmap", arguments.no_mmap,
                   "Read with system calls instead of mapping files: slower, but safe if a file is "
                   "cut while it is read");
  AddChoice<DType>(command, "--npy-void", arguments.options.npy_void2, {{"bf16", DType::kBF16}},
                   "bf16",
                   "What numpy's nameless 2-byte type V2 holds; ml_dtypes saves bfloat16 so");
}

TraceReader OpenTrace(const TraceArguments& arguments) {
  TraceOptions options = arguments.options;
  options.memory_map = !arguments.no_mmap;
  return TraceReader::Open(arguments.paths, options);
}

}  // namespace dlsim
