// SPDX-License-Identifier: Apache-2.0
#include "dlsim/trace.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "dlsim/measure.h"
#include "tests/support/trace_builder.h"
#include "tests/support/trace_test_util.h"

namespace dlsim {
namespace {

std::vector<float> AllValues(const TraceStep& step) {
  std::vector<float> all;
  VisitValues(step.recordings[0], step.recordings[0].tensors[0],
              [&](uint64_t begin, std::span<const float> values) {
                EXPECT_EQ(begin, all.size());
                EXPECT_LE(values.size(), kChunkElements);
                all.insert(all.end(), values.begin(), values.end());
              });
  return all;
}

TEST(VisitValues, GivesEveryElementInOrderFromFilesAndMemory) {
  const TempDir dir;
  std::vector<float> values;
  for (size_t i = 0; i < 2 * kChunkElements + 3; ++i) values.push_back(static_cast<float>(i));
  const std::string path =
      dir.Write("a.safetensors", BuildSafetensors({FloatTensor("w.grad", values)}));
  const TraceStep step = OpenTrace({path}).Load(0);
  EXPECT_EQ(AllValues(step), values);
  EXPECT_EQ(AllValues(InMemory(step).step()), values);
}

TEST(VisitValues, DividesByTheRecordedScaleAndWidens) {
  const TempDir dir;
  const BuiltTensor half = {"w.grad", "F16", {3}, LittleEndian(0x7BFF'3C00'0001, 6)};
  const std::string path =
      dir.Write("a.safetensors", BuildSafetensors({half}, {{"grad_scale", "1024"}}));
  EXPECT_EQ(AllValues(OpenTrace({path}).Load(0)),
            (std::vector<float>{0x1p-34f, 0x1p-10f, 65504.0f / 1024.0f}));
}

TEST(VisitValues, AnEmptyTensorHasNone) {
  const TempDir dir;
  const std::string path =
      dir.Write("a.safetensors", BuildSafetensors({FloatTensor("w.grad", {})}));
  EXPECT_EQ(AllValues(OpenTrace({path}).Load(0)), std::vector<float>());
}

}  // namespace
}  // namespace dlsim
