// SPDX-License-Identifier: Apache-2.0
#include "src/profile/part_code.h"

#include <algorithm>
#include <vector>

#include "src/profile/bytes.h"

namespace dlsim {
namespace {

using Range = ProfilePart::Range;

// Ranges that touch or overlap become one.
std::vector<Range> Joined(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::first);
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    const bool touches =
        !joined.empty() && range.first <= joined.back().first + joined.back().count;
    if (!touches) {
      joined.push_back(range);
      continue;
    }
    Range& last = joined.back();
    last.count = std::max(last.count, range.first + range.count - last.first);
  }
  return joined;
}

bool IsWhole(const ProfilePart& part) {
  return part.ranges.size() == 1 && part.ranges.front() == Range{0, part.steps};
}

// The first range between those that are there.
Range FirstGap(const ProfilePart& part) {
  uint64_t begin = 0;
  for (const Range& range : part.ranges) {
    if (range.first > begin) return {begin, range.first - begin};
    begin = range.first + range.count;
  }
  return {begin, part.steps - begin};
}

}  // namespace

std::string EncodePart(const ProfilePart& part) {
  std::string bytes;
  PutVarint(part.steps, bytes);
  PutVarint(part.ranges.size(), bytes);
  for (const Range& range : part.ranges) {
    PutVarint(range.first, bytes);
    PutVarint(range.count, bytes);
  }
  return bytes;
}

ProfilePart DecodePart(const std::string& place, std::string_view payload) {
  ByteReader in(place, payload);
  ProfilePart part;
  part.steps = in.Varint();
  part.ranges.resize(in.Count(2));
  uint64_t free_from = 0;  // where the next range may begin
  for (Range& range : part.ranges) {
    range = {in.Varint(), 0};
    range.count = in.Varint();
    const bool fits = range.first >= free_from && range.first < part.steps && range.count > 0 &&
                      range.count <= part.steps - range.first;
    in.Require(fits, "damaged: no such part of a trace");
    free_from = range.first + range.count + 1;
  }
  in.RequireEnd();
  in.Require(!IsWhole(part), "damaged: a part that is the whole");
  return part;
}

std::optional<ProfilePart> JoinParts(std::span<const std::optional<ProfilePart>> parts) {
  ProfilePart joined;
  std::vector<Range> ranges;
  for (const std::optional<ProfilePart>& part : parts) {
    if (!part) return std::nullopt;
    joined.steps = std::max(joined.steps, part->steps);
    ranges.insert(ranges.end(), part->ranges.begin(), part->ranges.end());
  }
  joined.ranges = Joined(std::move(ranges));
  if (IsWhole(joined) || joined.steps == 0) return std::nullopt;
  return joined;
}

std::string MissingSteps(const ProfilePart& part) {
  const Range gap = FirstGap(part);
  const std::string whole = " of " + std::to_string(part.steps) + " (counted from 1)";
  if (gap.count == 1) return "step " + std::to_string(gap.first + 1) + whole;
  return "steps " + std::to_string(gap.first + 1) + " to " + std::to_string(gap.first + gap.count) +
         whole;
}

}  // namespace dlsim
