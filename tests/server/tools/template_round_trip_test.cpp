// SPDX-License-Identifier: Apache-2.0
// What chat templates write of calls in a history is what a parser finds in it: same names, same
// arguments. The family is the one that the template itself shows. SLUICE_TEMPLATES names a folder
// with more templates, of which those that print no calls are passed over.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <set>
#include <sstream>

#include "server/prompt/chat_template.h"
#include "server/tools/output_format.h"
#include "tests/server/tools/call_generator.h"
#include "tests/server/tools/transcript.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Names of control tokens that a template's source holds.
std::vector<std::string> control_names(const std::string& source) {
  std::set<std::string> names;
  for (const auto& [begin, end] :
       {std::pair<std::string, std::string>{"<|", "|>"}, {"<｜", "｜>"}}) {
    for (size_t at = source.find(begin); at != std::string::npos; at = source.find(begin, at + 1)) {
      const size_t stop = source.find(end, at);
      if (stop == std::string::npos || stop - at > 40) continue;
      const std::string name = source.substr(at, stop + end.size() - at);
      if (name.find_first_of(" {}'\"\n") == std::string::npos) names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

Json variables(const ChatTemplate& chat, const std::vector<TestCall>& calls, bool has_answer) {
  Json messages = Json::array({{{"role", "user"}, {"content", "Please."}}});
  Json tools = Json::array();
  Json made = Json::array();
  for (const TestCall& call : calls) {
    Json properties = Json::object();
    for (const auto& [key, value] : call.arguments.items()) {
      properties[key] = {{"type", "string"}, {"description", "d"}};
    }
    const Json parameters = {
        {"type", "object"}, {"properties", properties}, {"required", Json::array()}};
    tools.push_back(
        {{"type", "function"},
         {"function",
          {{"name", call.name}, {"description", "A tool."}, {"parameters", parameters}}}});
    made.push_back({{"id", "abcdefghi"},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  if (has_answer)
    messages.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", made}});
  fit_messages(chat.forms(), messages);
  if (has_answer && chat.forms().null_beside_calls) messages.back()["content"] = nullptr;
  return {{"messages", messages},
          {"tools", tools},
          {"add_generation_prompt", !has_answer},
          {"bos_token", ""},
          {"eos_token", ""},
          {"enable_thinking", false},
          {"date_string", "01 Jan 2026"},
          {"functions", tools.dump()},
          {"datetime", "01 Jan 2026"}};
}

struct Found {
  std::vector<TestCall> calls;
  std::string pieces;
};

Found parse_calls(const DetectedFamilies& families,
                  const Tokenizer& tokenizer,
                  const Transcript& transcript) {
  OutputParser parser(resolve_format(families.calls, families.reasoning, tokenizer),
                      transcript.tools.schemas,
                      transcript.prompt_tail,
                      {});
  Pieces pieces;
  for (size_t at = 0; at < transcript.text.size();) {
    TokenId token = static_cast<uint8_t>(transcript.text[at]);
    size_t length = 1;
    for (TokenId id = 256; id < tokenizer.vocab_size(); ++id) {
      const std::string_view name = tokenizer.token_bytes(id);
      if (name.size() <= length || transcript.text.compare(at, name.size(), name) != 0) continue;
      token = id;
      length = name.size();
    }
    parser.feed(token, std::string_view(transcript.text).substr(at, length), token >= 256, pieces);
    at += length;
  }
  parser.finish(FinishReason::kStop, pieces);
  Found found;
  for (const Piece& piece : joined(pieces)) {
    if (piece.kind == PieceKind::kCallBegin) found.calls.push_back({piece.text, {}});
    if (piece.kind == PieceKind::kArguments) {
      found.calls.back().arguments = Json::parse(piece.text, nullptr, false);
    }
  }
  found.pieces = describe(joined(pieces));
  return found;
}

// Empty: all came back; else what did not. Nothing: the template writes no calls of a history, or
// cannot be rendered in a sandbox.
std::optional<std::string> round_trip(const ChatTemplate& chat,
                                      const DetectedFamilies& families,
                                      const Tokenizer& tokenizer,
                                      const std::vector<TestCall>& calls) {
  const Expected<std::string> full = chat.render_text(variables(chat, calls, true));
  const Expected<std::string> prompt = chat.render_text(variables(chat, calls, false));
  if (!full || !prompt) {
    std::cout << (full ? prompt : full).error().message << " ";
    return std::nullopt;
  }
  const auto [end, other] = std::ranges::mismatch(*full, *prompt);
  auto common = static_cast<size_t>(end - full->begin());
  // Two markers may begin alike.
  const size_t open = full->rfind('<', common);
  if (open != std::string::npos && full->find('>', open) >= common) common = std::min(common, open);
  const Transcript transcript{
      .text = full->substr(common),
      .prompt_tail = full->substr(common - std::min<size_t>(common, 40), 40),
      .tools = tools_of(calls)};
  if (transcript.text.find(calls[0].name) == std::string::npos) return std::nullopt;
  const Found found = parse_calls(families, tokenizer, transcript);
  const bool is_same =
      std::ranges::equal(found.calls, calls, [](const TestCall& a, const TestCall& b) {
        return a.name == b.name && nlohmann::json(a.arguments) == nlohmann::json(b.arguments);
      });
  return is_same ? "" : "written: " + transcript.text + "\nfound: " + found.pieces;
}

// MiniMax M3's template leaves null out, and what stands in elements in elements has no type of its
// own here.
void drop_untyped(TestCall& call) {
  for (auto item = call.arguments.begin(); item != call.arguments.end();) {
    const bool is_dropped = item->is_structured() || item->is_null();
    item = is_dropped ? call.arguments.erase(item) : std::next(item);
  }
}

void expect_round_trips(const std::filesystem::path& path, int count) {
  SCOPED_TRACE(path.filename().string());
  const std::string source = read(path);
  Expected<ChatTemplate> chat = ChatTemplate::compile(source);
  ASSERT_TRUE(chat.has_value());
  std::vector<std::string> names = control_names(source);
  const std::vector<std::string_view> specials(names.begin(), names.end());
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer(specials);
  const DetectedFamilies families = detect_families(source, *tokenizer);
  const std::string family =
      families.calls == nullptr ? "none" : std::string(name_of(*families.calls));
  const std::string reasoning =
      families.reasoning == nullptr ? "none" : std::string(name_of(*families.reasoning));
  std::string what;
  std::mt19937 random(7);
  int num_same = 0;
  for (int i = 0; i < count && families.calls != nullptr && what.empty(); ++i) {
    std::vector<TestCall> calls;
    const bool takes_several =
        family != "llama3_json" && family != "gigachat3" && family != "openai";
    for (uint32_t n = takes_several ? 1 + random() % 2 : 1; n > 0; --n) {
      calls.push_back(random_call(random, ""));
      if (family == "minimax_m3") drop_untyped(calls.back());
    }
    const std::optional<std::string> result = round_trip(*chat, families, *tokenizer, calls);
    if (!result) {
      std::cout << "writes no calls: ";
      break;
    }
    what = *result;
    if (what.empty()) ++num_same;
  }
  std::cout << path.filename().string() << ": " << family << ", " << reasoning << ": " << num_same
            << " of " << count << "\n";
  EXPECT_EQ(what, "");
}

TEST(TemplateRoundTrip, CallsComeBack) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(golden_folder()) / "templates" / "tools")) {
    if (entry.path().extension() != ".jinja") continue;
    expect_round_trips(entry.path(), 100);
    ++count;
  }
  EXPECT_GE(count, 3);
}

TEST(TemplateRoundTrip, CallsComeBackFromMoreTemplates) {
  const char* folder = std::getenv("SLUICE_TEMPLATES");
  if (folder == nullptr) GTEST_SKIP() << "SLUICE_TEMPLATES names no folder of chat templates";
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  for (const auto& path : paths) expect_round_trips(path, 1000);
}

}  // namespace
}  // namespace sluice
