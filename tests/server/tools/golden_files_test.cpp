// SPDX-License-Identifier: Apache-2.0
// Outputs written by hand, in the forms of the families' templates: a file of golden/tools for each
// mechanism, parsed under every cut. A file begins with a line that says what it holds; a line
// "#### CALLS REASONING SPECIAL..." ("-": none) begins the transcripts of a family, "==== TITLE" a
// transcript, in front of whose text may stand "@prompt TAIL" ("\n" is a line feed) and "@length";
// behind "----" stand its pieces, as describe() writes them, and an empty line.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "server/tools/output_format.h"
#include "tests/server/tools/transcript.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

struct WrittenTranscript {
  std::string title;
  Transcript transcript;
  std::string pieces;
};

struct WrittenFamily {
  std::string calls;
  std::string reasoning;
  std::vector<std::string> specials;
  std::vector<WrittenTranscript> transcripts;
};

std::filesystem::path folder() { return std::filesystem::path(golden_folder()) / "tools"; }

TestTools read_tools() {
  std::ifstream file(folder() / "tools.json");
  Json parameters = Json::object();
  const Json list = Json::parse(file);
  for (const auto& [name, properties] : list.items()) {
    parameters[name] = {{"type", "object"}, {"properties", properties}};
  }
  return make_tools(parameters);
}

WrittenFamily read_family(std::string_view line) {
  std::istringstream words{std::string(line.substr(5))};
  WrittenFamily family;
  words >> family.calls >> family.reasoning;
  if (family.reasoning == "-") family.reasoning.clear();
  for (std::string word; words >> word;) family.specials.push_back(word);
  return family;
}

std::string unescaped(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_newline = text.substr(i).starts_with("\\n");
    result += is_newline ? '\n' : text[i];
    if (is_newline) ++i;
  }
  return result;
}

// Appends a line of a transcript or of its pieces.
void append_line(std::string_view line, bool is_first, std::string& text) {
  if (!is_first) text += '\n';
  text += line;
}

std::vector<WrittenFamily> read_families(const std::filesystem::path& path) {
  std::ifstream file(path);
  const TestTools tools = read_tools();
  std::vector<WrittenFamily> families;
  enum class Part : uint8_t { kOutside, kOptions, kText, kPieces } part = Part::kOutside;
  bool is_first = false;
  const auto end_pieces = [&] {
    if (part != Part::kPieces) return;
    std::string& pieces = families.back().transcripts.back().pieces;
    if (pieces.ends_with('\n')) pieces.pop_back();
  };
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#### ")) {
      end_pieces();
      families.push_back(read_family(line));
      part = Part::kOutside;
    } else if (line.starts_with("==== ")) {
      end_pieces();
      families.back().transcripts.push_back(
          {.title = line.substr(5), .transcript = {}, .pieces = {}});
      families.back().transcripts.back().transcript.tools = tools;
      part = Part::kOptions;
    } else if (part != Part::kOutside) {
      WrittenTranscript& written = families.back().transcripts.back();
      if (part == Part::kOptions && line == "@length") {
        written.transcript.reason = FinishReason::kLength;
      } else if (part == Part::kOptions && line.starts_with("@prompt ")) {
        written.transcript.prompt_tail = unescaped(std::string_view(line).substr(8));
      } else if (line == "----") {
        part = Part::kPieces;
        is_first = true;
      } else {
        if (part == Part::kOptions) is_first = true;
        if (part == Part::kOptions) part = Part::kText;
        append_line(line, is_first, part == Part::kText ? written.transcript.text : written.pieces);
        is_first = false;
      }
    }
  }
  end_pieces();
  return families;
}

enum class Bare : uint8_t { kMayBe, kMust };

// At least 30 transcripts, all of families that write calls in this way; kMust: an answer of each
// may begin with a call that no marker announces.
template <typename Calls>
void expect_goldens(const char* name, Bare bare = Bare::kMayBe) {
  size_t count = 0;
  for (const WrittenFamily& family : read_families(folder() / name)) {
    SCOPED_TRACE(family.calls + " " + family.reasoning);
    const std::vector<std::string_view> specials(family.specials.begin(), family.specials.end());
    const TestFormat format(family.calls, family.reasoning, specials);
    EXPECT_TRUE(std::holds_alternative<Calls>(format.format->calls()->mechanism));
    EXPECT_TRUE(bare == Bare::kMayBe || format.format->calls()->bare != '\0');
    for (const WrittenTranscript& written : family.transcripts) {
      EXPECT_EQ(describe(parse_every_way(format, written.transcript)), written.pieces)
          << written.title << "\n"
          << written.transcript.text;
    }
    count += family.transcripts.size();
  }
  EXPECT_GE(count, 30);
}

TEST(GoldenFiles, Json) { expect_goldens<JsonCalls>("json.txt"); }

TEST(GoldenFiles, BareJson) { expect_goldens<JsonCalls>("bare_json.txt", Bare::kMust); }

TEST(GoldenFiles, Named) { expect_goldens<NamedCalls>("named.txt"); }

TEST(GoldenFiles, Tagged) { expect_goldens<TaggedCalls>("tagged.txt"); }

TEST(GoldenFiles, Elements) { expect_goldens<ElementCalls>("elements.txt"); }

TEST(GoldenFiles, Python) { expect_goldens<PythonCalls>("python.txt"); }

TEST(GoldenFiles, Gemma) { expect_goldens<GemmaCalls>("gemma.txt"); }

TEST(GoldenFiles, Harmony) { expect_goldens<HarmonyTurns>("harmony.txt"); }

TEST(GoldenFiles, TurnTags) { expect_goldens<TagTurns>("turn_tags.txt"); }

}  // namespace
}  // namespace sluice
