// SPDX-License-Identifier: Apache-2.0
// Lists of functions of others as strict tools: each gives a grammar, or is refused by name.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/sampling/grammar/structural_tag_gate.h"
#include "server/tools/output_format.h"
#include "server/tools/tool_call_grammar.h"
#include "tests/server/tools/transcript.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Expected<std::shared_ptr<const Grammar>> compile(const CallForm& form,
                                                 std::span<const CallableTool> tools) {
  SLUICE_TRY(GrammarSpec spec, tool_call_grammar(form, tools, {}));
  SLUICE_TRY(spec.text, gate_structural_tag(spec.text, spec.is_best_effort, {}));
  return testing::byte_backend({.max_whitespace = 1})->compile(spec);
}

struct Counts {
  int num_grammars = 0;
  std::map<std::string, int> refused;  // by message, without what it names
  int num_calls = 0;
  int num_accepted = 0;  // of calls that others hold for right
};

std::string without_names(const std::string& message) {
  return message.substr(0, message.find_first_of("'#"));
}

void read_list(const Json& line, const CallForm& form, Counts& counts) {
  std::vector<CallableTool> tools;
  for (const Json& tool : line["tools"]) {
    tools.push_back({tool["name"], tool["parameters"].dump(), true});
  }
  const auto grammar = compile(form, tools);
  if (!grammar) {
    const ErrorCode code = grammar.error().code;
    EXPECT_TRUE(code == ErrorCode::kUnsupported || code == ErrorCode::kInvalidArgument)
        << line["id"] << ": " << grammar.error().message;
    ++counts.refused[without_names(grammar.error().message)];
    return;
  }
  ++counts.num_grammars;
  for (const Json& call : line["calls"]) {
    const std::string text = "<tool_call>\n{\"name\": " + call["name"].dump() +
                             ", \"arguments\": " + call["arguments"].dump() + "}\n</tool_call>";
    ++counts.num_calls;
    if (testing::accepts(**grammar, text)) ++counts.num_accepted;
  }
}

// The file is what bench/function_lists.py writes.
TEST(FunctionLists, GiveGrammarsOrAreRefused) {
  const char* path = std::getenv("SLUICE_FUNCTION_LISTS");
  if (path == nullptr) GTEST_SKIP() << "SLUICE_FUNCTION_LISTS names no file of lists of functions";
  const auto tokenizer = make_byte_tokenizer({});
  for (const char* name : {"hermes", "qwen3_coder", "pythonic", "gemma4"}) {
    const CallForm form = call_form(*find_call_family(name), *tokenizer);
    Counts counts;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      Json list = Json::parse(line);
      if (form.style != ArgumentStyle::kJson) list["calls"] = Json::array();
      read_list(list, form, counts);
    }
    std::cout << name << ": " << counts.num_grammars << " grammars; calls accepted "
              << counts.num_accepted << " of " << counts.num_calls << "\n";
    for (const auto& [message, count] : counts.refused) {
      std::cout << "  " << count << " refused: " << message << "\n";
    }
    EXPECT_GT(counts.num_grammars, 0);
  }
}

}  // namespace
}  // namespace sluice
