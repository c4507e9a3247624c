// SPDX-License-Identifier: Apache-2.0
#include "dlsim/gpu/convert.h"

#include <string>

#include "dlsim/error.h"
#include "gpu/base/check_cuda.h"
#include "gpu/base/device_code.h"
#include "gpu/encode/convert_body.h"

namespace dlsim::gpu {
namespace {

void CheckFirstIndex(uint64_t first_index) {
  if (first_index % kElementsPerPhiloxBlock == 0) return;
  throw InputError(kEncodeCall, "bad first_index", "a multiple of 8", std::to_string(first_index));
}

void LaunchEncode(const EncodeJob& job, const Conversion& conversion, Stream stream) {
  if (conversion.format == kFp16) return LaunchEncodeTo<kFp16>(job, conversion, stream);
  if (conversion.format == kBf16) return LaunchEncodeTo<kBf16>(job, conversion, stream);
  if (conversion.format == kCb16) return LaunchEncodeTo<kCb16>(job, conversion, stream);
  LaunchEncodeToAny(job, conversion, stream);
}

EncodeJob JobOf(const ArrayConversion& how) {
  CheckFirstIndex(how.first_index);
  EncodeJob job;
  job.scale = how.scale;
  job.seed = how.random.seed;
  job.first_index = how.first_index;
  return job;
}

}  // namespace

void Encode(const ArrayConversion& how, const DeviceTensor& tensor, Stream stream) {
  EncodeJob job = JobOf(how);
  if (tensor.elements == 0) return;
  const size_t code_bytes = CodeBytes(how.conversion.format);
  const int device = CheckPointer(kEncodeCall, "values", tensor.values, DTypeSize(tensor.dtype));
  CheckCurrentDevice(kEncodeCall, device);
  CheckCurrentDevice(kEncodeCall, CheckPointer(kEncodeCall, "codes", tensor.codes, code_bytes));
  job.elements = tensor.elements;
  job.tensor = PieceOf(tensor);
  job.tensor.random_stream = how.random.stream;
  LaunchEncode(job, how.conversion, stream);
}

void Encode(const ArrayConversion& how, const TensorList& tensors, Stream stream) {
  EncodeJob job = JobOf(how);
  if (tensors.piece_count() == 0) return;
  tensors.CheckCodes(kEncodeCall, CodeBytes(how.conversion.format));
  CheckCurrentDevice(kEncodeCall, tensors.device());
  job.pieces = tensors.pieces();
  job.piece_count = tensors.piece_count();
  LaunchEncode(job, how.conversion, stream);
}

}  // namespace dlsim::gpu
