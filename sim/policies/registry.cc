// SPDX-License-Identifier: Apache-2.0
#include "dlsim/sim/policies.h"

#include <algorithm>

#include "dlsim/error.h"
#include "sim/base/number.h"
#include "sim/base/suggest.h"
#include "sim/policies/policy.h"

namespace dlsim::sim {
namespace {

template <class Info>
bool HasName(const Info& info, std::string_view name) {
  return info.name == name || std::ranges::find(info.aliases, name) != info.aliases.end();
}

// Returns the entry of that name or alias; throws Error naming `place`, `problem` and the known.
template <class Info>
const Info& FindNamed(std::span<const Info> infos, std::string_view name, std::string_view place,
                      std::string_view problem) {
  std::vector<std::string_view> known;
  std::vector<std::string_view> aliases;
  for (const Info& info : infos) {
    if (HasName(info, name)) return info;
    known.push_back(info.name);
    aliases.insert(aliases.end(), info.aliases.begin(), info.aliases.end());
  }
  throw UsageError(place, WithSuggestion(problem, name, known, aliases), OneOf(known),
                   Quoted(name));
}

// Some originals take a negative scale, which turns every gradient round. Scales that never change
// are refused where they are read.
void RefuseNegativeScale(const PolicyInfo& policy, const ParameterInfo& parameter,
                         std::string_view text) {
  if (!text.starts_with('-') || parameter.role != ParameterRole::kStart) return;
  const std::string place = std::string(policy.name) + "." + std::string(parameter.name);
  if (ParseNumber(text, place) < 0) {
    throw UsageError(place, "not a loss scale", "a positive number", Quoted(text));
  }
}

}  // namespace

std::span<const PolicyInfo> Policies() {
  static const std::vector<PolicyInfo> kPolicies = {
      StaticPolicy(),                  //
      CerebrasPolicy(),                //
      Cerebras210Policy(),             //
      CerebrasTfPolicy(),              //
      TorchPolicy(),                   //
      Torch113Policy(),                //
      FairseqPolicy(),                 //
      MetaseqPolicy(),                 //
      FairscalePolicy(),               //
      FlaxPolicy(),                    //
      JmpPolicy(),                     //
      MxnetPolicy(),                   //
      MindsporeAmpPolicy(),            //
      MindsporeCellPolicy(),           //
      ApexPolicy(),                    //
      ApexFp16UtilsPolicy(),           //
      ApexHysteresisPolicy(),          //
      DeepSpeedPolicy(),               //
      DeepSpeed016Policy(),            //
      DeepSpeedFp16OptimizerPolicy(),  //
      MegatronPolicy(),                //
      ColossalAiPolicy(),              //
      MindSporeManagerPolicy(),        //
      TfPolicy(),                      //
      Keras2Policy(),                  //
      KerasPolicy(),                   //
      TfContribPolicy(),               //
      PaddlePolicy(),                  //
      PaddleStaticPolicy(),            //
      OpenSeq2SeqBackoffPolicy(),      //
      OpenSeq2SeqLogMaxPolicy(),       //
      PopartPolicy(),                  //
      AdaLossPolicy(),                 //
      Fairseq2Policy(),                //
      IcefallPolicy(),                 //
      GuidedDiffusionPolicy(),         //
      BmtrainPolicy(),                 //
  };
  return kPolicies;
}

const PolicyInfo& FindPolicy(std::string_view name) {
  return FindNamed(Policies(), name, "policy", "unknown name");
}

std::vector<const PolicyInfo*> NamedPolicies(std::span<const std::string> names) {
  std::vector<const PolicyInfo*> policies;
  const auto add = [&](const PolicyInfo& policy) {
    if (std::ranges::find(policies, &policy) == policies.end()) policies.push_back(&policy);
  };
  for (const std::string& name : names) {
    if (name == kAllPolicies) {
      for (const PolicyInfo& policy : Policies()) add(policy);
    } else {
      add(FindPolicy(name));
    }
  }
  return policies;
}

ParameterMap ResolveParameters(const PolicyInfo& policy, std::span<const std::string> settings) {
  ParameterMap parameters;
  for (const std::string_view setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string_view::npos) {
      throw UsageError(policy.name, "not a setting", "KEY=VALUE", Quoted(setting));
    }
    const ParameterInfo& parameter =
        FindNamed(std::span<const ParameterInfo>(policy.parameters), setting.substr(0, equals),
                  policy.name, "unknown parameter");
    RefuseNegativeScale(policy, parameter, setting.substr(equals + 1));
    const auto [position, inserted] =
        parameters.emplace(parameter.name, setting.substr(equals + 1));
    if (!inserted) {
      throw UsageError(policy.name, "parameter " + position->first + " is given twice");
    }
  }
  return parameters;
}

}  // namespace dlsim::sim
