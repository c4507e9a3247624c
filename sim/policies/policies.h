// SPDX-License-Identifier: Apache-2.0
// The rows of the registry, each defined in the file of its family.
#pragma once

#include "dlsim/sim/policies.h"

namespace dlsim::sim {

PolicyInfo StaticPolicy();
PolicyInfo CerebrasPolicy();
PolicyInfo Cerebras210Policy();
PolicyInfo CerebrasTfPolicy();
PolicyInfo TorchPolicy();
PolicyInfo Torch113Policy();
PolicyInfo FairseqPolicy();
PolicyInfo MetaseqPolicy();
PolicyInfo FairscalePolicy();
PolicyInfo FlaxPolicy();
PolicyInfo JmpPolicy();
PolicyInfo MxnetPolicy();
PolicyInfo MindsporeAmpPolicy();
PolicyInfo MindsporeCellPolicy();
PolicyInfo ApexPolicy();
PolicyInfo ApexFp16UtilsPolicy();
PolicyInfo ApexHysteresisPolicy();
PolicyInfo DeepSpeedPolicy();
PolicyInfo DeepSpeed016Policy();
PolicyInfo DeepSpeedFp16OptimizerPolicy();
PolicyInfo MegatronPolicy();
PolicyInfo ColossalAiPolicy();
PolicyInfo MindSporeManagerPolicy();
PolicyInfo TfPolicy();
PolicyInfo Keras2Policy();
PolicyInfo KerasPolicy();
PolicyInfo TfContribPolicy();
PolicyInfo PaddlePolicy();
PolicyInfo PaddleStaticPolicy();
PolicyInfo OpenSeq2SeqBackoffPolicy();
PolicyInfo OpenSeq2SeqLogMaxPolicy();
PolicyInfo PopartPolicy();
PolicyInfo AdaLossPolicy();
PolicyInfo Fairseq2Policy();
PolicyInfo IcefallPolicy();
PolicyInfo GuidedDiffusionPolicy();
PolicyInfo BmtrainPolicy();

}  // namespace dlsim::sim
