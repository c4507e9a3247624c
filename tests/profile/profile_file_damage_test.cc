// SPDX-License-Identifier: Apache-2.0
// Profiles that are cut, changed or forged.
#include <gtest/gtest.h>

#include "src/profile/bits.h"
#include "src/profile/bytes.h"
#include "src/profile/chunk.h"
#include "src/profile/compress.h"
#include "src/profile/edges_code.h"
#include "src/profile/settings_json.h"
#include "src/profile/step_code.h"
#include "src/profile/step_index.h"
#include "src/profile/stored_profile.h"
#include "tests/support/profile_test_util.h"

namespace dlsim {
namespace {

// A small profile in memory, and what happens to readers of it.
class ProfileDamageTest : public testing::Test {
 protected:
  ProfileDamageTest() {
    std::vector<ProfileStep> steps = FewTensors(StepsOf(kSingle, edges_));
    steps.erase(steps.begin() + 3, steps.end());
    steps[2].tensors[1].name = "renamed";
    steps_ = Encode(steps, edges_);
    WriteProfile(dir_.path() + "/a", settings_, steps_);
    bytes_ = ReadBytes(dir_.path() + "/a");
  }

  static void ReadAll(const std::string& bytes) {
    const StoredProfile profile(MemorySource("a.dlprof", Bytes(bytes)));
    for (size_t i = 0; i < profile.entries().size(); ++i) {
      profile.LoadTotals(i);
      profile.Load(i);
    }
  }

  static void ExpectRefused(const std::string& bytes, const std::string& what) {
    SCOPED_TRACE(what);
    ExpectInputError([&] { ReadAll(bytes); }, {"a.dlprof"});
  }

  TempDir dir_;
  ProfileSettings settings_ = SettingsOf(SmallLadder());
  HistogramEdges edges_ = EdgesOf(settings_.ladder);
  std::vector<EncodedStep> steps_;
  std::string bytes_;
};

TEST_F(ProfileDamageTest, TheUndamagedFileIsRead) { EXPECT_NO_THROW(ReadAll(bytes_)); }

TEST_F(ProfileDamageTest, EveryTruncationIsRefused) {
  for (size_t size = 0; size < bytes_.size(); ++size) {
    ExpectRefused(bytes_.substr(0, size), "cut at " + std::to_string(size));
  }
  ExpectRefused(bytes_ + '\0', "one byte more");
}

TEST_F(ProfileDamageTest, EveryFlippedBitIsRefused) {
  for (size_t bit = 0; bit < 8 * bytes_.size(); ++bit) {
    std::string bytes = bytes_;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    ExpectRefused(bytes, "bit " + std::to_string(bit));
  }
}

TEST_F(ProfileDamageTest, EveryLostByteIsRefused) {
  for (size_t at = 0; at < bytes_.size(); ++at) {
    std::string bytes = bytes_;
    ExpectRefused(bytes.erase(at, 1), "without byte " + std::to_string(at));
  }
}

TEST_F(ProfileDamageTest, AnotherVersionIsNamed) {
  for (const char version : {'\0', '\4'}) {
    bytes_[6] = version;
    ExpectInputError([&] { ReadAll(bytes_); },
                     {"another version, expected 2 or 3, got " + std::to_string(int{version})});
  }
}

// Builds a file of given steps with right checksums, whatever the steps hold.
struct Forged {
  std::string tensors, totals, histograms;
};

class ProfileForgeryTest : public ProfileDamageTest {
 protected:
  ProfileForgeryTest() {
    const StepParts parts = SplitStep("step", steps_[0].bytes);
    good_ = {steps_[0].tensors, std::string(parts.totals), std::string(parts.histograms)};
    number_ = steps_[0].step;
  }

  std::string FileOf(const Forged& forged) const {
    std::string bytes = ProfileOpening(SettingsText("a", settings_), edges_);
    IndexEntry entry = {number_, 1, forged.tensors.size(), forged.totals.size(),
                        forged.histograms.size()};
    PutChunk(ChunkType::kTensors, forged.tensors, bytes.size(), bytes);
    PutChunk(ChunkType::kTotals, forged.totals, bytes.size(), bytes);
    PutChunk(ChunkType::kHistograms, forged.histograms, bytes.size(), bytes);
    return WithIndex(bytes, EncodeIndex({entry}));
  }

  static std::string WithIndex(std::string bytes, const std::string& index) {
    const uint64_t offset = bytes.size();
    PutChunk(ChunkType::kIndex, index, offset, bytes);
    return bytes + EncodeFooter({offset, index.size()});
  }

  // Replaces one byte of what is compressed, once by every of some values.
  template <class Check>
  static void ForEachChange(const std::string& packed, const Check& check) {
    const std::string place = "place";
    ByteReader reader(place, packed);
    const std::string raw = TakeCompressed(reader, 1 << 20);
    const std::string bits(reader.rest());
    for (size_t at = 0; at < raw.size(); ++at) {
      for (const int value : {0, 1, 2, 64, 65, 127, 128, 255}) {
        std::string changed = raw, bytes;
        changed[at] = static_cast<char>(value);
        PutCompressed(changed, bytes);
        check(bytes + bits);
      }
    }
    for (size_t at = 0; at < bits.size(); ++at) {
      std::string changed = bits, bytes;
      changed[at] = static_cast<char>(~changed[at]);
      PutCompressed(raw, bytes);
      check(bytes + changed);
    }
  }

  // What a forged file holds is either refused, or histograms that some values have.
  void ExpectRefusedOrSound(const std::string& bytes) const {
    try {
      const StoredProfile profile(MemorySource("a.dlprof", Bytes(bytes)));
      for (const Histogram& histogram : profile.LoadTotals(0).gradients) ExpectSound(histogram);
      for (const std::vector<Histogram>& part : profile.Load(0).histograms) {
        for (const Histogram& histogram : part) ExpectSound(histogram);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    }
  }

  void ExpectSound(const Histogram& histogram) const {
    uint64_t elements = histogram.zeros + histogram.nan + histogram.inf;
    for (const SignHistogram& sign : histogram.signs) {
      for (size_t i = 0; i < sign.bins.size(); ++i) {
        const HistogramBin& bin = sign.bins[i];
        ASSERT_LT(bin.bin, edges_.bin_count());
        ASSERT_TRUE(i == 0 || sign.bins[i - 1].bin < bin.bin);
        const uint128_t low = Significand(edges_.bits()[bin.bin]);
        const uint128_t high = Significand(edges_.bits()[bin.bin + 1] - 1);
        ASSERT_GE(bin.count, 1u);
        ASSERT_TRUE(bin.squares >= low * low * bin.count && bin.squares <= high * high * bin.count);
        elements += bin.count;
      }
      if (sign.bins.empty()) {
        ASSERT_EQ(sign.largest, 0u);
      } else {
        ASSERT_EQ(edges_.BinOf(sign.largest), sign.bins.back().bin);
      }
    }
    ASSERT_EQ(elements, histogram.elements);
  }

  Forged good_;
  int64_t number_ = 0;
};

TEST_F(ProfileForgeryTest, TheUnchangedFileIsRead) { EXPECT_NO_THROW(ReadAll(FileOf(good_))); }

TEST_F(ProfileForgeryTest, NumbersOfHistogramsAreChecked) {
  ForEachChange(good_.histograms, [&](const std::string& changed) {
    ExpectRefusedOrSound(FileOf({good_.tensors, good_.totals, changed}));
  });
}

TEST_F(ProfileForgeryTest, NumbersOfTotalsAreChecked) {
  ForEachChange(good_.totals, [&](const std::string& changed) {
    ExpectRefusedOrSound(FileOf({good_.tensors, changed, good_.histograms}));
  });
}

TEST_F(ProfileForgeryTest, NumbersOfTensorsAreChecked) {
  ForEachChange(good_.tensors, [&](const std::string& changed) {
    ExpectRefusedOrSound(FileOf({changed, good_.totals, good_.histograms}));
  });
}

TEST_F(ProfileForgeryTest, PartsOfOtherStepsAreRefused) {
  const StepParts other = SplitStep("step", steps_[1].bytes);
  ExpectRefused(FileOf({good_.tensors, std::string(other.totals), good_.histograms}), "totals");
  ExpectRefused(FileOf({good_.tensors, good_.totals, good_.totals}), "histograms");
  ExpectRefused(FileOf({good_.totals, good_.totals, good_.histograms}), "tensors");
}

TEST_F(ProfileForgeryTest, HugeSizesAreRefusedBeforeTheyAreAllocated) {
  std::string huge;
  PutVarint(uint64_t{1} << 60, huge);
  PutString("x", huge);
  ExpectRefused(FileOf({huge, good_.totals, good_.histograms}), "tensors");
  ExpectRefused(FileOf({good_.tensors, huge, good_.histograms}), "totals");
  ExpectRefused(FileOf({good_.tensors, good_.totals, huge}), "histograms");
  std::string zeros;
  PutCompressed(std::string(size_t{1} << 26, '\0'), zeros);
  ExpectRefused(FileOf({zeros, good_.totals, good_.histograms}), "tensors of zeros");
  ExpectRefused(FileOf({good_.tensors, zeros, good_.histograms}), "totals of zeros");
  ExpectRefused(FileOf({good_.tensors, good_.totals, zeros}), "histograms of zeros");
}

TEST_F(ProfileForgeryTest, WrongIndexesAreRefused) {
  const std::string opening = ProfileOpening(SettingsText("a", settings_), edges_);
  EXPECT_NO_THROW(ReadAll(WithIndex(opening, EncodeIndex({}))));
  const auto refuse = [&](const std::vector<IndexEntry>& entries, const std::string& what) {
    ExpectRefused(WithIndex(opening + std::string(200, 'x'), EncodeIndex(entries)), what);
  };
  constexpr uint64_t kMany = ~uint64_t{0};
  refuse({}, "bytes of no step");
  refuse({{1, 0, 40, 50, 60}}, "beyond the file");
  refuse({{1, 0, 40, 50, 40}}, "bytes left over");
  refuse({{1, 0, 40, 50, 50}}, "no such chunks");
  refuse({{1, 0, kMany, 50, 50}}, "a huge list");
  refuse({{1, 0, 40, kMany, 50}}, "huge totals");
  refuse({{1, 0, 40, 50, kMany - 100}}, "huge histograms");
  refuse({{1, 0, 0, 100, 60}}, "no list");
  refuse({{1, 0, 20, 20, 20}, {1, 0, 0, 20, 20}}, "a step twice");
  refuse({{2, 0, 20, 20, 20}, {1, 0, 0, 20, 20}}, "out of order");
  std::string count;
  PutVarint(uint64_t{1} << 50, count);
  PutCompressed("", count);
  ExpectRefused(WithIndex(opening, count), "very many steps");
}

TEST_F(ProfileForgeryTest, WrongEdgesAreRefused) {
  const auto file_of = [&](const std::string& edges) {
    std::string bytes = ProfileMagic();
    PutChunk(ChunkType::kSettings, SettingsText("a", settings_), bytes.size(), bytes);
    PutChunk(ChunkType::kEdges, edges, bytes.size(), bytes);
    return WithIndex(bytes, EncodeIndex({}));
  };
  EXPECT_NO_THROW(ReadAll(file_of(EncodeEdges(edges_))));
  const std::string payload = EncodeEdges(edges_), place = "place";
  ByteReader in(place, payload);
  std::string cut;
  PutVarint(in.Varint(), cut);
  PutVarint(in.Varint() - 1, cut);
  const std::string raw = TakeCompressed(in, 1 << 20);
  PutCompressed(raw.substr(0, raw.size() - 1), cut);
  ExpectRefused(file_of(cut), "without infinity");
  ExpectRefused(file_of(""), "empty");
  std::string none;
  PutVarint(0, none);
  PutVarint(0, none);
  PutCompressed("", none);
  ExpectRefused(file_of(none), "no edges");
  std::string beyond;
  PutVarint(1, beyond);
  PutVarint(300, beyond);
  PutCompressed(std::string(301, '\0'), beyond);
  ExpectRefused(file_of(beyond), "beyond infinity");
}

TEST_F(ProfileForgeryTest, WrongSettingsAreRefused) {
  const std::string good = SettingsText("a", settings_);
  const auto file_of = [&](const std::string& text) {
    std::string bytes = ProfileMagic();
    PutChunk(ChunkType::kSettings, text, bytes.size(), bytes);
    PutChunk(ChunkType::kEdges, EncodeEdges(edges_), bytes.size(), bytes);
    return WithIndex(bytes, EncodeIndex({}));
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    const size_t at = good.find(from);
    EXPECT_NE(at, good.npos) << from;
    return file_of(std::string(good).replace(at, from.size(), to));
  };
  EXPECT_NO_THROW(ReadAll(file_of(good)));
  ExpectRefused(file_of(""), "empty");
  ExpectRefused(file_of("{}"), "nothing in it");
  ExpectRefused(file_of("[1]"), "no object");
  ExpectRefused(file_of(good + " "), "space behind it");
  ExpectRefused(with("profile/1", "profile/2"), "another schema");
  ExpectRefused(with("rne", "sr"), "rounding");
  ExpectRefused(with("0x1p+0", "0x1p+12"), "order of scales");
  ExpectRefused(with("0x1p+0", "-0x1p+0"), "sign of a scale");
  ExpectRefused(with("0x1p+0", "0x1p+900"), "infinite scale");
  ExpectRefused(with("0x1p+0", "1"), "decimal scale");
  ExpectRefused(with("\"exponent_bits\":5", "\"exponent_bits\":50"), "bits");
  ExpectRefused(with("\"bias\":15", "\"bias\":99999999999"), "bias");
  ExpectRefused(with("\"bias\":15", "\"bias\":15.5"), "broken bias");
  ExpectRefused(with("\"tensors\":\"*\"", "\"tensors\":7"), "type");
  ExpectRefused(with("\"tensors\"", "\"new\":1,\"tensors\""), "a setting of the future");
  ExpectRefused(with("\"tensors\":\"*\",", ""), "a missing setting");
}

}  // namespace
}  // namespace dlsim
