// SPDX-License-Identifier: Apache-2.0
// Calls, and how the models of each family write them: one writer for each mechanism.
#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/tools/transcript.h"

namespace sluice {

struct TestCall {
  std::string name;
  nlohmann::ordered_json arguments;  // an object
};

// One family, as its models write.
struct FamilyWriter {
  std::string_view calls;
  std::string_view reasoning;
  std::vector<std::string_view> specials;
  // Text of calls, markers included.
  std::string (*write)(const std::vector<TestCall>& calls);
  std::string_view reasoning_begin = {};
  std::string_view reasoning_end = {};
  std::string_view content_begin = {};  // before text that is content
  std::string_view content_end = {};
  bool keeps_bytes = false;       // arguments come out as they were written (dump() of them)
  bool may_hold_markers = false;  // strings may hold the markers' letters
  bool takes_text_before = true;
  bool takes_text_after = true;
  bool takes_several = true;
};

std::vector<FamilyWriter> family_writers();

// What a schema of these calls' tools says: the types of their arguments.
TestTools tools_of(const std::vector<TestCall>& calls);

// Strings with all that JSON, tags and code escape; nested values. `markers`: text to put into
// some.
TestCall random_call(std::mt19937& random, std::string_view markers);

}  // namespace sluice
