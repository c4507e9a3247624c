// SPDX-License-Identifier: Apache-2.0
// Bad arguments on a real device: each must be an Error that names the call and must leak nothing.
#include <cstdio>
#include <functional>

#include "dlsim/error.h"
#include "dlsim/gpu/convert.h"
#include "dlsim/gpu/histogram.h"
#include "dlsim/gpu/measure.h"
#include "dlsim/ladder.h"
#include "gpu/check/checks.h"
#include "gpu/check/device_arrays.h"

namespace dlsim::gpu_check {
namespace {

struct Memory {
  size_t free = 0, total = 0;
};

Memory DeviceMemory() {
  Memory memory;
  gpu::CheckCuda(cudaMemGetInfo(&memory.free, &memory.total), "cudaMemGetInfo");
  return memory;
}

// Returns a problem unless `action` throws an Error of one line that contains `word`.
std::string ExpectError(const std::string& word, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.find('\n') != std::string::npos) return "more than one line: " + Printable(text);
    return text.find(word) == std::string::npos ? "no '" + word + "' in: " + text : "";
  }
  return "no error";
}

struct ErrorCase {
  const char* name;
  const char* word;  // the error says
  std::function<void()> action;
};

void RunCases(std::span<const ErrorCase> cases, Report& report) {
  for (const ErrorCase& one : cases) {
    const std::string first = ExpectError(one.word, one.action);  // may initialise something
    const size_t before = DeviceMemory().free;
    std::string problem = ExpectError(one.word, one.action);
    const size_t after = DeviceMemory().free;
    if (problem.empty()) problem = first;
    if (problem.empty() && after < before) {
      problem = std::to_string(before - after) + " bytes of device memory are lost";
    }
    report.Add({"errors", one.name, 1, problem});
  }
}

void CheckMemory(Report& report) {
  const size_t too_much = DeviceMemory().total * 2;
  const std::vector<float> values(100, 1.0f);
  const gpu::OwnedStream stream;
  const auto on_device = ToDevice(std::span(values), stream.get());
  const gpu::DeviceTensor tensor = TensorAt(on_device.data(), values.size(), nullptr);
  const gpu::TensorList list({&tensor, 1});
  const size_t questions = too_much / sizeof(TensorStats);
  const ErrorCase cases[] = {
      {"a buffer larger than the device", "cudaMalloc",
       [&] { const gpu::DeviceBuffer<std::byte> buffer(too_much); }},
      {"a measurer larger than the device", "cuda", [&] { gpu::Measurer(list, questions); }}};
  RunCases(cases, report);
}

void CheckPointers(Report& report) {
  const gpu::OwnedStream stream;
  const gpu::DeviceBuffer<float> values(1024);
  const gpu::DeviceBuffer<uint16_t> codes(1024);
  std::vector<float> on_host(1024);
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  auto* code_bytes = reinterpret_cast<std::byte*>(codes.data());
  const ArrayConversion how = {{kFp16}};
  const auto encode = [&](const void* from, void* to) {
    gpu::Encode(how, TensorAt(from, 100, to), stream.get());
  };
  const auto list = [&](const void* from) {
    const gpu::DeviceTensor tensor = TensorAt(from, 100, nullptr);
    const gpu::TensorList tensors({&tensor, 1});
  };
  const ErrorCase cases[] = {
      {"Encode of unaligned values", "Encode", [&] { encode(bytes + 1, codes.data()); }},
      {"Encode to unaligned codes", "Encode", [&] { encode(bytes, code_bytes + 1); }},
      {"Encode of nothing but a size", "Encode", [&] { encode(nullptr, codes.data()); }},
      {"Encode to nowhere", "Encode", [&] { encode(bytes, nullptr); }},
      {"Decode of unaligned codes", "Decode",
       [&] { gpu::Decode(kFp16, code_bytes + 1, values.data(), 10, stream.get()); }},
      {"a list with unaligned values", "TensorList", [&] { list(bytes + 2); }},
      {"a list with values on the host", "TensorList", [&] { list(on_host.data()); }},
      {"a list with no values but a size", "TensorList", [&] { list(nullptr); }}};
  RunCases(cases, report);
}

void CheckDevices(int device, Report& report) {
  int count = 0;
  gpu::CheckCuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  const ErrorCase wrong[] = {
      {"a device that is not there", "cudaSetDevice",
       [&] { const gpu::CurrentDevice current(count); }},
      {"a negative device", "cudaSetDevice", [&] { const gpu::CurrentDevice current(-1); }}};
  RunCases(wrong, report);
  if (count < 2) {
    report.AddNote("errors: mixed devices not run, there is one device");
    return;
  }
  const gpu::DeviceBuffer<float> here(100);
  const gpu::CurrentDevice current(device == 0 ? 1 : 0);
  const gpu::DeviceBuffer<float> there(100);
  const ErrorCase mixed[] = {{"a list of two devices", "TensorList", [&] {
                                const gpu::DeviceTensor tensors[] = {
                                    TensorAt(here.data(), 100, nullptr),
                                    TensorAt(there.data(), 100, nullptr)};
                                const gpu::TensorList list(tensors);
                              }}};
  RunCases(mixed, report);
}

// Nothing to do is no error.
void CheckEmpty(Report& report) {
  std::string problem;
  try {
    const gpu::OwnedStream stream;
    gpu::Encode({{kFp16}}, gpu::DeviceTensor(), stream.get());
    gpu::Decode(kFp16, nullptr, nullptr, 0, stream.get());
    const gpu::DeviceTensor nothing;
    for (const size_t count : {size_t{0}, size_t{1}}) {
      const gpu::TensorList list({&nothing, count});
      const HistogramEdges edges({});
      gpu::Measurer measurer(list, 1);
      const Measurement question = {{kFp16}, 1.0f, {}};
      measurer.Measure({&question, 1}, stream.get());
      gpu::Counter counter(edges, list);
      counter.Count(stream.get());
      if (counter.Take(stream.get()).size() != count) problem = "wrong number of histograms";
    }
    gpu::CheckCuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  } catch (const Error& error) {
    problem = error.what();
  }
  report.Add({"errors", "nothing to do is done", 1, problem});
}

}  // namespace

void CheckErrors(const Options& options, Report& report) {
  CheckMemory(report);
  CheckPointers(report);
  CheckDevices(options.device, report);
  CheckEmpty(report);
}

}  // namespace dlsim::gpu_check
