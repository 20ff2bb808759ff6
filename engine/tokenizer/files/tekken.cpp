// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/tekken.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/text/base64.h"
#include "engine/tokenizer/text/byte_level.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr const char* kFile = "tekken.json";
constexpr size_t kMaxTokenBytes = 256;  // each cut of a token is looked up

// Those of files that name none.
constexpr std::array kUsualNames = {"<unk>",
                                    "<s>",
                                    "</s>",
                                    "[INST]",
                                    "[/INST]",
                                    "[AVAILABLE_TOOLS]",
                                    "[/AVAILABLE_TOOLS]",
                                    "[TOOL_RESULTS]",
                                    "[/TOOL_RESULTS]",
                                    "[TOOL_CALLS]",
                                    "[IMG]",
                                    "<pad>",
                                    "[IMG_BREAK]",
                                    "[IMG_END]",
                                    "[PREFIX]",
                                    "[MIDDLE]",
                                    "[SUFFIX]",
                                    "[SYSTEM_PROMPT]",
                                    "[/SYSTEM_PROMPT]",
                                    "[TOOL_CONTENT]"};
// The versions of such files.
constexpr std::array kVersionsWithoutNames = {"v1", "v2", "v3", "v7"};

Expected<int64_t> count_in(const Json& config, const char* key) {
  SLUICE_TRY(const int64_t count, json_integer_or(config, key, kFile, -1));
  if (count < 0 || count > kMaxTokenIds) {
    return json_error(kFile,
                      std::string(key) + ": found none or " + std::to_string(count) +
                          ", expected 0 to " + std::to_string(kMaxTokenIds));
  }
  return count;
}

// Returns the names of special tokens by id.
Expected<std::vector<std::string>> read_special(const Json& file,
                                                const Json& config,
                                                size_t count) {
  std::vector<std::string> names;
  const Json* const list = json_field(file, "special_tokens");
  if (list == nullptr) {
    SLUICE_TRY(const std::string version, json_string_or(config, "version", kFile, ""));
    if (std::ranges::find(kVersionsWithoutNames, version) == kVersionsWithoutNames.end()) {
      return make_error(ErrorCode::kUnsupported,
                        std::string(kFile) + ": special_tokens: found none of version \"" +
                            version.substr(0, 16) + "\", expected a list after version v7");
    }
    names.assign(kUsualNames.begin(), kUsualNames.end());
  } else {
    if (!list->is_array()) return json_error(kFile, "\"special_tokens\" has to be a list");
    if (list->size() <= count) names.resize(list->size());
    for (const Json& token : *list) {
      SLUICE_TRY(const int64_t id, json_integer_or(token, "rank", kFile, -1));
      SLUICE_TRY(std::string name, json_string(token, "token_str", kFile));
      if (id < 0 || static_cast<size_t>(id) >= names.size() || name.empty() ||
          !names[static_cast<size_t>(id)].empty()) {
        return json_error(kFile,
                          "special_tokens: found the rank " + std::to_string(id) +
                              " or no name, expected each from 0 on once, below "
                              "default_num_special_tokens");
      }
      names[static_cast<size_t>(id)] = std::move(name);
    }
  }
  if (names.size() > count) {
    return json_error(kFile,
                      "default_num_special_tokens: found " + std::to_string(count) +
                          ", expected at least the " + std::to_string(names.size()) +
                          " special tokens");
  }
  while (names.size() < count) names.push_back("<SPECIAL_" + std::to_string(names.size()) + ">");
  return names;
}

// Returns ids by the spelling of bytes, of the first `count` tokens.
Expected<Json> read_vocabulary(const Json& file, size_t count, size_t first_id) {
  const Json* const list = json_field(file, "vocab");
  if (list == nullptr || !list->is_array() || list->size() < count) {
    return json_error(kFile,
                      "vocab: expected a list of at least " + std::to_string(count) +
                          " tokens, as default_vocab_size says");
  }
  Json vocab = Json::object();
  for (size_t rank = 0; rank < count; ++rank) {
    const Json& token = (*list)[rank];
    const std::string where = "vocab: token " + std::to_string(rank) + ": ";
    SLUICE_TRY(const int64_t stated, json_integer_or(token, "rank", kFile, -1));
    SLUICE_TRY(const std::string text, json_string(token, "token_bytes", kFile));
    const std::optional<std::string> bytes = decode_base64(text);
    if (stated != static_cast<int64_t>(rank)) {
      return json_error(
          kFile,
          where + "rank: found " + std::to_string(stated) + ", expected its place in the list");
    }
    if (!bytes || bytes->empty() || bytes->size() > kMaxTokenBytes) {
      return json_error(kFile,
                        where + "token_bytes: expected 1 to " + std::to_string(kMaxTokenBytes) +
                            " bytes in base64");
    }
    if (!vocab.emplace(spell_bytes(*bytes), first_id + rank).second) {
      return json_error(kFile, where + "token_bytes: found those of a token before it");
    }
  }
  return vocab;
}

// Stops at config.version.
class VersionReader final : public nlohmann::json_sax<Json> {
 public:
  [[nodiscard]] bool is_bad() const { return is_bad_; }

  [[nodiscard]] std::string take() { return std::move(version_); }

  bool null() override { return true; }

  bool boolean(bool) override { return true; }

  bool number_integer(number_integer_t) override { return true; }

  bool number_unsigned(number_unsigned_t) override { return true; }

  bool number_float(number_float_t, const string_t&) override { return true; }

  bool binary(binary_t&) override { return true; }

  bool string(string_t& value) override {
    const bool is_found = level_ == 2 && is_in_config_ && is_version_;
    if (is_found) version_ = std::move(value);
    return !is_found;
  }

  bool start_object(size_t) override {
    ++level_;
    return true;
  }

  bool start_array(size_t) override {
    ++level_;
    return true;
  }

  bool key(string_t& name) override {
    if (level_ == 1) is_in_config_ = name == "config";
    is_version_ = name == "version";
    return true;
  }

  bool end_object() override { return end_array(); }

  bool end_array() override {
    --level_;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    is_bad_ = true;
    return false;
  }

 private:
  int64_t level_ = 0;
  bool is_in_config_ = false;  // of the member at level 1
  bool is_version_ = false;    // the name of the member that is read
  bool is_bad_ = false;
  std::string version_;
};

}  // namespace

Expected<std::string> tekken_version(std::string_view text) {
  VersionReader reader;
  Json::sax_parse(text, &reader);
  if (reader.is_bad()) return json_error(kFile, "it is not JSON");
  return reader.take();
}

Expected<Json> read_tekken(std::string_view text) {
  SLUICE_TRY(const Json file, json_object_in(std::string(text), kFile));
  const Json* const config = json_field(file, "config");
  if (config == nullptr || !config->is_object()) {
    return json_error(kFile, "config: found none, expected an object");
  }
  SLUICE_TRY(const std::string pattern, json_string(*config, "pattern", kFile));
  SLUICE_TRY(const int64_t num_special, count_in(*config, "default_num_special_tokens"));
  SLUICE_TRY(const int64_t num_tokens, count_in(*config, "default_vocab_size"));
  if (num_tokens <= num_special) {
    return json_error(kFile,
                      "default_vocab_size: found " + std::to_string(num_tokens) +
                          ", expected more than the special tokens");
  }
  const auto first_id = static_cast<size_t>(num_special);
  SLUICE_TRY(const std::vector<std::string> names, read_special(file, *config, first_id));
  SLUICE_TRY(Json vocab,
             read_vocabulary(file, static_cast<size_t>(num_tokens - num_special), first_id));
  Json added = Json::array();
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < names.size(); ++id) {
    if (!seen.insert(names[id]).second || vocab.contains(names[id])) {
      return json_error(kFile, "special_tokens: found " + names[id] + " twice, or as a token");
    }
    added.push_back({{"id", id}, {"content", names[id]}, {"special", true}});
  }
  Json json = {{"added_tokens", std::move(added)},
               {"pre_tokenizer",
                {{"type", "Sequence"},
                 {"pretokenizers",
                  {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
                   {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
               {"decoder", {{"type", "ByteLevel"}}},
               {"model", {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", std::move(vocab)}}}};
  const auto begin = std::ranges::find(names, "<s>");
  if (begin == names.end()) return json;
  const Json first = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const auto text_of = [](const char* id) {
    return Json{{"Sequence", {{"id", id}, {"type_id", 0}}}};
  };
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {first, text_of("A")}},
      {"pair", {first, text_of("A"), text_of("B")}},
      {"special_tokens",
       {{"<s>", {{"id", "<s>"}, {"ids", {begin - names.begin()}}, {"tokens", {"<s>"}}}}}}};
  return json;
}

}  // namespace sluice
