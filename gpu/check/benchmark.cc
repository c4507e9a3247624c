// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>

#include "dlsim/error.h"
#include "dlsim/gpu/convert.h"
#include "dlsim/gpu/measure.h"
#include "gpu/check/bench_kernels.h"
#include "gpu/check/checks.h"
#include "gpu/check/device_arrays.h"
#include "gpu/check/formats.h"
#include "gpu/check/ladder_count.h"
#include "gpu/check/timing.h"

namespace dlsim::gpu_check {
namespace {

constexpr double kConvertTarget = 0.92, kMeasureTarget = 0.9, kProfileTarget = 0.6;
constexpr double kEncodeBytes = 6, kDecodeBytes = 6, kReadBytes = 4;
constexpr const char* kDataSetNames[2] = {"normal", "grad"};

struct Job {
  TimedRow row;
  std::function<void(size_t data)> run;
};

// Everything in device memory, made once.
class Workload {
 public:
  Workload(uint64_t count, gpu::Stream stream);

  std::vector<Job> Jobs();

 private:
  Job Copy();
  Job Read();
  Job Toolkit(const ToolkitConversion& conversion);
  Job Encode(const char* format, Rounding rounding);
  Job Decode(size_t format);
  Job Measure(const std::string& name, std::vector<Measurement> questions, double target);
  Job Profile();

  uint64_t count_;
  gpu::Stream stream_;
  gpu::DeviceBuffer<float> values_[2];
  gpu::DeviceBuffer<uint16_t> codes_[2][kTunedFormats];  // of the values
  gpu::DeviceBuffer<float> output_;
  gpu::DeviceBuffer<uint32_t> read_result_;
  std::optional<gpu::TensorList> lists_[2];
  LadderCount count_ladder_;
};

Workload::Workload(uint64_t count, gpu::Stream stream)
    : count_(count), stream_(stream), output_(count), read_result_(1) {
  const std::vector<NamedFormat> formats = CheckedFormats();
  for (size_t data = 0; data < 2; ++data) {
    values_[data] = gpu::DeviceBuffer<float>(count);
    DrawOnDevice(static_cast<DataSet>(data), 2023, values_[data].data(), count, stream);
    for (size_t f = 0; f < kTunedFormats; ++f) {
      codes_[data][f] = gpu::DeviceBuffer<uint16_t>(count);
      gpu::Encode({{formats[f].format}},
                  TensorAt(values_[data].data(), count, codes_[data][f].data()), stream);
    }
    const gpu::DeviceTensor tensor = TensorAt(values_[data].data(), count, output_.data());
    lists_[data].emplace(std::span(&tensor, 1));
  }
}

Job Workload::Copy() {
  const size_t bytes = count_ * static_cast<size_t>(kEncodeBytes) / 2;  // read, and written again
  return {{"copy", "", 0, kEncodeBytes}, [this, bytes](size_t data) {
            gpu::CheckCuda(cudaMemcpyAsync(output_.data(), values_[data].data(), bytes,
                                           cudaMemcpyDeviceToDevice, stream_),
                           "cudaMemcpyAsync");
          }};
}

Job Workload::Read() {
  return {{"read", "", 0, kReadBytes}, [this](size_t data) {
            ReadValues(values_[data].data(), count_, read_result_.data(), stream_);
          }};
}

Job Workload::Toolkit(const ToolkitConversion& conversion) {
  return {{conversion.name, "copy", 0, kEncodeBytes}, [this, conversion](size_t data) {
            conversion.encode(values_[data].data(), count_,
                              reinterpret_cast<uint16_t*>(output_.data()), stream_);
          }};
}

Job Workload::Encode(const char* format, Rounding rounding) {
  const ArrayConversion how = {{ParseFormat(format).format, rounding}, 1.0f, {1, 0}, 0};
  return {{NameOf(std::string("encode ") + format, how.conversion), "copy", kConvertTarget,
           kEncodeBytes},
          [this, how](size_t data) {
            gpu::Encode(how, TensorAt(values_[data].data(), count_, output_.data()), stream_);
          }};
}

Job Workload::Decode(size_t format) {
  const NamedFormat named = CheckedFormats()[format];
  return {{"decode " + named.name, "copy", kConvertTarget, kDecodeBytes},
          [this, named, format](size_t data) {
            gpu::Decode(named.format, codes_[data][format].data(), output_.data(), count_, stream_);
          }};
}

Job Workload::Measure(const std::string& name, std::vector<Measurement> questions, double target) {
  auto measurers = std::make_shared<std::vector<gpu::Measurer>>();
  for (const auto& list : lists_) measurers->emplace_back(*list, questions.size());
  return {{name, "read", target, kReadBytes},
          [this, measurers, questions = std::move(questions)](size_t data) {
            (*measurers)[data].Measure(questions, stream_);
          }};
}

Job Workload::Profile() {
  auto tables = std::make_shared<std::vector<gpu::CountMemory>>();
  for (const auto& list : lists_) tables->push_back(count_ladder_.TablesFor(*list));
  return {{"profile, default ladder", "read", kProfileTarget, kReadBytes},
          [this, tables](size_t data) {
            count_ladder_.Launch(*lists_[data], (*tables)[data], stream_);
          }};
}

std::vector<Measurement> ManyQuestions() {
  std::vector<Measurement> questions;
  for (const Format& format : {kFp16, kBf16, kCb16}) {
    for (int k = 0; k < 8; ++k) {
      questions.push_back({{format}, static_cast<float>(1 << (2 * k)), {}});
    }
  }
  return questions;
}

std::vector<Job> Workload::Jobs() {
  std::vector<Job> jobs;
  jobs.push_back(Copy());
  jobs.push_back(Read());
  for (const ToolkitConversion& conversion : ToolkitConversions()) {
    jobs.push_back(Toolkit(conversion));
  }
  for (const char* format : {"fp16", "bf16", "cb16"}) {
    jobs.push_back(Encode(format, Rounding::kNearestEven));
  }
  for (const Rounding rounding : {Rounding::kTowardZero, Rounding::kNearestAway,
                                  Rounding::kTowardPositive, Rounding::kTowardNegative}) {
    jobs.push_back(Encode("cb16", rounding));
  }
  for (const char* format : {"fp16", "bf16", "cb16"}) {
    jobs.push_back(Encode(format, Rounding::kStochastic));
  }
  jobs.push_back(Encode("fp8-e4m3", Rounding::kNearestEven));
  for (size_t format = 0; format < kTunedFormats; ++format) jobs.push_back(Decode(format));
  for (const auto& [name, format] : {std::pair("fp16", kFp16), std::pair("cb16", kCb16)}) {
    jobs.push_back(Measure(std::string("measure ") + name + ", one scale",
                           {{{format}, 1024.0f, {}}}, kMeasureTarget));
  }
  jobs.push_back(Measure("measure 3 formats x 8 scales", ManyQuestions(), 0));
  jobs.push_back(Profile());
  return jobs;
}

// The shares of the limits, which are rows themselves.
void FillShares(std::vector<TimedRow>& rows) {
  for (TimedRow& row : rows) {
    const auto limit = std::ranges::find_if(
        rows, [&](const TimedRow& other) { return !row.limit.empty() && other.name == row.limit; });
    if (limit == rows.end()) continue;
    for (size_t data = 0; data < 2; ++data) {
      if (limit->gbs[data] > 0) row.of_limit[data] = row.gbs[data] / limit->gbs[data];
    }
  }
}

// The elements for which there is memory, with as much again to spare.
uint64_t ElementsFor(const Options& options) {
  constexpr uint64_t kBytesPerElement = 2 * (4 + 3 * 2) + 4, kSpare = 2;
  size_t free = 0, total = 0;
  gpu::CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const uint64_t most = free / (kBytesPerElement * kSpare);
  return std::max<uint64_t>(kBlockElements,
                            std::min(options.elements, most) / kBlockElements * kBlockElements);
}

}  // namespace

std::vector<TimedRow> ReadPeers(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw InputError(Printable(path), "cannot read");
  std::vector<TimedRow> rows;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string name, data;
    double gbs = 0;
    if (!std::getline(fields, name, '\t') || !std::getline(fields, data, '\t') ||
        !(fields >> gbs) || (data != kDataSetNames[0] && data != kDataSetNames[1])) {
      throw InputError(Printable(path), "bad line", "name TAB normal|grad TAB GB/s", Quoted(line));
    }
    if (rows.empty() || rows.back().name != name) {
      rows.push_back({name, "copy", 0, kEncodeBytes});
    }
    rows.back().gbs[data == kDataSetNames[1]] = gbs;
  }
  return rows;
}

void TimeKernels(const Options& options, Report& report) {
  const gpu::OwnedStream stream;
  const uint64_t count = ElementsFor(options);
  Workload workload(count, stream.get());
  const std::vector<Job> jobs = workload.Jobs();
  std::vector<std::function<void()>> runs;
  for (const Job& job : jobs) {
    for (size_t data = 0; data < 2; ++data) runs.push_back([&job, data] { job.run(data); });
  }
  const std::vector<double> seconds = MedianSeconds(runs, options.rounds, stream.get());
  std::vector<TimedRow> rows;
  for (size_t j = 0; j < jobs.size(); ++j) {
    rows.push_back(jobs[j].row);
    for (size_t data = 0; data < 2; ++data) {
      const double bytes = rows[j].bytes * static_cast<double>(count);
      rows[j].gbs[data] = bytes / seconds[2 * j + data] * 1e-9;
    }
  }
  if (!options.peers.empty()) {
    const std::vector<TimedRow> peers = ReadPeers(options.peers);
    rows.insert(rows.begin() + 2, peers.begin(), peers.end());
  }
  FillShares(rows);
  report.SetTimes(std::move(rows));
  report.AddNote("times: medians of " + std::to_string(options.rounds) + " rounds over " +
                 std::to_string(count) + " elements");
}

}  // namespace dlsim::gpu_check
