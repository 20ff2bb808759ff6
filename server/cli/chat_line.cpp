// SPDX-License-Identifier: Apache-2.0
#include "server/cli/chat_line.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>


namespace sluice {
namespace {

constexpr float kTemperature = 0.7F;
constexpr float kTopP = 0.95F;
constexpr std::string_view kSpaces = " \t";

struct CommandRow {
  std::string_view name;
  ChatCommand command;
};

constexpr CommandRow kCommands[] = {
    {"help", ChatCommand::kHelp},
    {"system", ChatCommand::kSystem},
    {"regen", ChatCommand::kRegenerate},
    {"set", ChatCommand::kSet},
    {"save", ChatCommand::kSave},
    {"clear", ChatCommand::kClear},
    {"quit", ChatCommand::kQuit},
};

constexpr std::string_view kHelp =
    "/help              this list\n"
    "/system TEXT       another system prompt; /system - none; /system alone shows it\n"
    "/regen             another answer to the last question\n"
    "/set NAME VALUE    a sampling parameter, as in /set temperature 0.7; /set alone shows them\n"
    "/save FILE         the conversation as JSON messages\n"
    "/clear             forgets the conversation\n"
    "/quit              leaves, as Ctrl-D does\n"
    "Ctrl-C stops an answer, or drops the line. A line that ends with \\ goes on in the next one;\n"
    "\"\"\" begins a message of several lines and ends it. What is pasted is one message.\n";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

Error wrong(std::string message) {
  return Error{ErrorCode::kInvalidArgument, std::move(message), {}, {}};
}

// All of `text` as a number.
template <class Number>
bool parse(std::string_view text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end && !text.empty();
}

Expected<void> set_value(SamplingParams& params,
                         const SamplingField& field,
                         std::string_view value) {
  const std::string name(field.name);
  if (field.kind == ParamKind::kBoolean) {
    if (value != "true" && value != "false") {
      return tl::unexpected(wrong(name + " must be true or false"));
    }
    return set_sampling_field(params, field, value == "true" ? 1 : 0);
  }
  if (field.kind == ParamKind::kInteger) {
    int64_t integer = 0;
    if (!parse(value, integer)) return tl::unexpected(wrong(name + " must be an integer"));
    return set_sampling_integer(params, field, integer);
  }
  double number = 0;
  if (!parse(value, number)) return tl::unexpected(wrong(name + " must be a number"));
  return set_sampling_field(params, field, number);
}

}  // namespace

ChatLine parse_chat_line(std::string_view line) {
  if (!line.starts_with('/')) return {ChatCommand::kText, std::string(line)};
  const auto end = std::ranges::find_if_not(line.substr(1), is_letter);
  const auto length = static_cast<size_t>(end - line.substr(1).begin());
  const std::string_view name = line.substr(1, length);
  const std::string_view rest = line.substr(1 + length);
  const bool is_command = !name.empty() && (rest.empty() || kSpaces.find(rest[0]) != kSpaces.npos);
  if (!is_command) return {ChatCommand::kText, std::string(line)};
  const auto* row = std::ranges::find(kCommands, name, &CommandRow::name);
  if (row == std::end(kCommands)) return {ChatCommand::kUnknown, std::string(name)};
  return {row->command, std::string(trim(rest))};
}

std::string_view chat_help() { return kHelp; }

Expected<void> set_by_text(SamplingParams& params, std::string_view text) {
  const size_t gap = text.find_first_of(" \t=");
  std::string name(text.substr(0, gap));
  std::ranges::replace(name, '-', '_');
  const SamplingField* field = find_sampling_field(name);
  if (field == nullptr) {
    std::string names;
    for (const SamplingField& known : sampling_fields()) {
      names += (names.empty() ? "" : ", ") + std::string(known.name);
    }
    return tl::unexpected(wrong("there is no parameter " + name + "; there are " + names));
  }
  const size_t begin = gap == std::string_view::npos ? gap : text.find_first_not_of(" \t=", gap);
  if (begin == std::string_view::npos) {
    return tl::unexpected(wrong(name + " needs a value, as in /set " + name + " 0.7"));
  }
  // Rules between fields too: what breaks one is as if it had not been said.
  SamplingParams changed = params;
  SLUICE_TRY_VOID(set_value(changed, *field, trim(text.substr(begin))));
  SLUICE_TRY_VOID(validate(changed));
  params = std::move(changed);
  return {};
}

std::string describe_sampling(const SamplingParams& params) {
  const SamplingParams defaults;
  std::string text;
  for (const SamplingField& field : sampling_fields()) {
    const bool is_main = field.name == "temperature" || field.name == "top_p";
    if (!is_main && field.get(params) == field.get(defaults)) continue;
    if (field.name == "max_tokens" && params.max_tokens == std::numeric_limits<int32_t>::max()) continue;
    char number[40];
    std::snprintf(number, sizeof number, "%.6g", field.get(params));
    text += (text.empty() ? "" : ", ") + std::string(field.name) + " " + number;
  }
  return text;
}

SamplingParams chat_defaults(const SamplingParams& of_model) {
  SamplingParams params = of_model;
  const SamplingParams none;
  const bool says_nothing = params.temperature == none.temperature && params.top_p == none.top_p &&
                            params.top_k == none.top_k && params.min_p == none.min_p;
  if (says_nothing) {
    params.temperature = kTemperature;
    params.top_p = kTopP;
  }
  return params;
}

std::string shown_on_terminal(std::string_view answer) {
  std::string shown;
  for (size_t at = 0; at < answer.size(); ++at) {
    const auto byte = static_cast<unsigned char>(answer[at]);
    const auto next = static_cast<unsigned char>(at + 1 < answer.size() ? answer[at + 1] : 0);
    const bool is_c1 = byte == 0xC2 && next >= 0x80 && next < 0xA0;
    if (is_c1 || byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t')) {
      shown += "\uFFFD";
      if (is_c1) ++at;
    } else {
      shown += answer[at];
    }
  }
  return shown;
}

}  // namespace sluice
