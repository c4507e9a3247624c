// SPDX-License-Identifier: Apache-2.0
// Steps of a profile as bytes, and their tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dlsim/profile_file.h"

namespace dlsim {

// The two parts of EncodedStep::bytes: a sweep decodes only the first.
struct StepParts {
  std::string_view totals;      // what is known of the step, and its totals
  std::string_view histograms;  // of the tensors
};

// Splits EncodedStep::bytes and joins them again. Throws InputError at a defect.
StepParts SplitStep(const std::string& place, std::string_view bytes);
std::string JoinStep(const StepParts& parts);

// These throw InputError for bytes that no step has.
std::vector<ProfileTensor> DecodeTensors(const std::string& place, std::string_view bytes);
ProfileTotals DecodeTotals(const std::string& place, std::string_view totals,
                           const HistogramEdges& edges);
ProfileStep DecodeStep(const std::string& place, const StepParts& parts,
                       const std::vector<ProfileTensor>& tensors, const HistogramEdges& edges,
                       size_t scaled_formats);

// The number and the files of a step, without its histograms.
ProfileStep DecodeHead(const std::string& place, std::string_view totals);

}  // namespace dlsim
