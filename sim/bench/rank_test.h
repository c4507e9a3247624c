// SPDX-License-Identifier: Apache-2.0
// The Mann-Whitney U test: do two samples come from one distribution, judged by ranks alone?
#pragma once

#include <span>
#include <vector>

namespace dlsim::sim {

struct RankTest {
  double u = 0;            // pairs with b > a; a tied pair counts one half
  double superiority = 0;  // u / (size of a * size of b): the probability that b > a
  double p = 1;            // two-sided
};

// Tests `a` against `b`, neither empty. The p value is exact without ties and up to 25 values a
// side; else that of the normal approximation with corrections for ties and continuity.
RankTest MannWhitney(std::span<const double> a, std::span<const double> b);

// Returns the two-sided p value of the exact null distribution of U, an integer without ties.
double ExactP(double u, size_t a_size, size_t b_size);

// Returns the two-sided p value of the normal approximation. `ties` holds the sizes of the groups
// of equal values.
double AsymptoticP(double u, size_t a_size, size_t b_size, std::span<const double> ties);

// Returns Holm's step-down correction of the p values, in their order: rejecting what is below
// alpha keeps the probability of even one false rejection below alpha.
std::vector<double> HolmCorrected(std::span<const double> p);

}  // namespace dlsim::sim
