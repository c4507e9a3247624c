// SPDX-License-Identifier: Apache-2.0
// The check of the kernels finds what is wrong.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "dlsim/error.h"
#include "gpu/check/checks.h"
#include "gpu/check/cpu_sweep.h"
#include "gpu/check/device_arrays.h"
#include "gpu/check/encode_sweep.h"
#include "gpu/check/formats.h"
#include "gpu/check/input_order.h"
#include "gpu/check/options.h"
#include "gpu/check/report.h"

namespace dlsim::gpu_check {
namespace {

constexpr RandomStream kRandom = {31, 4};

TEST(GpuCheck, SweepsTakeEveryInputOnce) {
  for (const uint32_t run_bits : {0u, 8u}) {
    // Of a permutation of runs, the top 16 bits of the first 2^16 runs' spread are distinct.
    std::vector<bool> seen(size_t{1} << 24);
    for (uint32_t run = 0; run < 1u << 16; ++run) {
      const uint32_t bits = InputBits(run << run_bits, run_bits) >> run_bits;
      const uint32_t place = bits & 0xFFFFFF;
      EXPECT_FALSE(seen[place]);
      seen[place] = true;
    }
    EXPECT_EQ(InputBits(5, 8), 5u);
  }
}

TEST(GpuCheck, RandomBitsOfABlockAreThoseOfItsElements) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{8}, uint64_t{1} << 35}) {
    const auto bits = RandomBitsOfBlock(kRandom, first);
    for (size_t i = 0; i < bits.size(); ++i) EXPECT_EQ(bits[i], RandomBits(kRandom, first + i));
  }
}

std::vector<float> Inputs(uint32_t count) {
  std::vector<float> values;
  for (uint32_t i = 0; i < count; ++i) values.push_back(std::bit_cast<float>(InputBits(i, 0)));
  return values;
}

TEST(GpuCheck, HostHashIsThatOfTheReference) {
  for (const Conversion& conversion : ConversionsTo(kFp16)) {
    const ArrayConversion how = {conversion, 1.0f, kRandom, 0};
    const std::vector<float> values = Inputs(1000);
    uint64_t hash = 0;
    const std::vector<uint32_t> codes = EncodeReference(how, values);
    for (uint32_t i = 0; i < 1000; ++i) hash += MixCode(i, codes[i]);
    EXPECT_EQ(HashOfSweep(how, 0, 1000), hash);
  }
}

// Values and their right codes on the device, for one code to be made wrong.
struct Encoded {
  ArrayConversion how;
  std::vector<float> values;
  std::vector<uint16_t> codes;

  Comparison Compare() const {
    const gpu::OwnedStream stream;
    const auto on_device = ToDevice(std::span(values), stream.get());
    const auto codes_on_device = ToDevice(std::span(codes), stream.get());
    return CompareOnDevice(how, on_device.data(), codes_on_device.data(), values.size(),
                           stream.get());
  }
};

Encoded EncodedBy(const Conversion& conversion) {
  Encoded encoded = {{conversion, 1.0f, kRandom, 16}, Inputs(777), {}};
  for (const uint32_t code : EncodeReference(encoded.how, encoded.values)) {
    encoded.codes.push_back(static_cast<uint16_t>(code));
  }
  return encoded;
}

TEST(GpuCheck, RightCodesAreEqual) {
  for (const NamedFormat& format : CheckedFormats()) {
    if (CodeBits(format.format) > 16) continue;
    for (const Conversion& conversion : ConversionsTo(format.format)) {
      EXPECT_EQ(EncodedBy(conversion).Compare().mismatches, 0u) << NameOf(format.name, conversion);
    }
  }
}

TEST(GpuCheck, OneWrongBitIsFoundAndChangesTheHash) {
  for (const size_t place : {size_t{0}, size_t{255}, size_t{400}, size_t{776}}) {
    Encoded encoded = EncodedBy({kCb16, Rounding::kStochastic});
    const Comparison right = encoded.Compare();
    encoded.codes[place] ^= 1;
    encoded.codes[776] = 0x1234;
    const Comparison wrong = encoded.Compare();
    EXPECT_EQ(wrong.first_mismatch, place);
    EXPECT_EQ(wrong.mismatches, place == 776 ? 1u : 2u);
    EXPECT_NE(wrong.hash, right.hash);
  }
}

TEST(GpuCheck, SwappedCodesChangeTheHash) {
  Encoded encoded = EncodedBy({kFp16});
  const Comparison right = encoded.Compare();
  ASSERT_NE(encoded.codes[3], encoded.codes[4]);
  std::swap(encoded.codes[3], encoded.codes[4]);
  EXPECT_NE(encoded.Compare().hash, right.hash);
}

TEST(GpuCheck, ADifferenceFailsTheReport) {
  Report report;
  report.Add({"encode", "fp16 rne", 10, ""});
  EXPECT_TRUE(report.passed());
  testing::internal::CaptureStdout();
  report.Add({"encode", "fp16 rtz", 10, "element 3"});
  report.Print();
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_FALSE(report.passed());
  EXPECT_NE(text.find("DIFFERS: encode fp16 rtz: element 3"), std::string::npos) << text;
  EXPECT_NE(text.find("   1 of    2 equal"), std::string::npos) << text;
  EXPECT_NE(text.find("verdict: FAILED"), std::string::npos) << text;
}

TEST(GpuCheck, ATargetIsMetOnBothDataSetsOrMissed) {
  TimedRow row = {"encode", "copy", 0.92, 6, {4000, 4000}, {0.93, 0.95}};
  Report report;
  report.SetTimes({row});
  testing::internal::CaptureStdout();
  report.Print();
  EXPECT_NE(testing::internal::GetCapturedStdout().find("0.92 met"), std::string::npos);
  row.of_limit[1] = 0.91;
  report.SetTimes({row});
  testing::internal::CaptureStdout();
  report.Print();
  EXPECT_NE(testing::internal::GetCapturedStdout().find("0.92 MISSED"), std::string::npos);
}

TEST(GpuCheck, ReadsTheTimesOfOtherPrograms) {
  const std::string path = testing::TempDir() + "gpu_check_peers.tsv";
  std::ofstream(path) << "a\tnormal\t100\na\tgrad\t90\nb\tgrad\t5\n";
  const std::vector<TimedRow> rows = ReadPeers(path);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].gbs[0], 100);
  EXPECT_EQ(rows[0].gbs[1], 90);
  EXPECT_EQ(rows[1].gbs[0], 0);
  std::ofstream(path) << "a\tother\t100\n";
  EXPECT_THROW(ReadPeers(path), Error);
  EXPECT_THROW(ReadPeers(path + ".not"), Error);
}

TEST(GpuCheck, RejectsWrongOptions) {
  const auto parse = [](std::vector<const char*> arguments) { return ParseOptions(arguments); };
  EXPECT_EQ(parse({}).inputs, kAllInputs);
  EXPECT_EQ(parse({"--quick", "--device", "3"}).device, 3);
  EXPECT_TRUE(parse({"--only", "encode,bench"}).Wants("bench"));
  EXPECT_FALSE(parse({"--only", "encode,bench"}).Wants("multi"));
  for (const std::vector<const char*>& wrong : {std::vector<const char*>{"--only", "encode,"},
                                                {"--only"},
                                                {"--device", "-1"},
                                                {"--inputs", "4294967297"},
                                                {"--elements", "1k"},
                                                {"--what", "1"},
                                                {"quick"}}) {
    EXPECT_THROW(parse(wrong), Error) << wrong[0];
  }
  // More rounds may count more values than a table takes.
  EXPECT_EQ(parse({"--rounds", "250"}).rounds, 250);
  EXPECT_THROW(parse({"--rounds", "251"}), Error);
}

}  // namespace
}  // namespace dlsim::gpu_check
