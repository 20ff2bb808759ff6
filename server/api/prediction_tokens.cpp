// SPDX-License-Identifier: Apache-2.0
#include "server/api/prediction_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"
#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kName = "prediction";
constexpr size_t kMaxTokenBytes = 1024;  // no token has more; the rest is not tokenized

tl::unexpected<Error> wrong(const std::string& rule, const Json& got) {
  return make_error(
      ErrorCode::kInvalidArgument, kName + rule + ", got " + show_value(got) + ".", kName);
}

Expected<std::string> read_content(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return wrong(".content must be a string or an array of parts", content);
  std::string text;
  for (const Json& part : content) {
    const Json* type = part.is_object() ? find_field(part, "type") : nullptr;
    const Json* piece = part.is_object() ? find_field(part, "text") : nullptr;
    if (type == nullptr || *type != "text" || piece == nullptr || !piece->is_string()) {
      return wrong(R"(.content must have parts {"type": "text", "text": string})", part);
    }
    text += piece->get_ref<const std::string&>();
  }
  return text;
}

}  // namespace

Expected<std::vector<TokenId>> read_prediction(const Json& body,
                                               const Tokenizer& tokenizer,
                                               int64_t max_tokens) {
  std::vector<TokenId> tokens;
  const Json* prediction = find_field(body, kName);
  if (prediction == nullptr) return tokens;
  if (!prediction->is_object()) return wrong(" must be an object", *prediction);
  const Json* type = find_field(*prediction, "type");
  if (type == nullptr || *type != "content") {
    return wrong(".type must be \"content\"", type != nullptr ? *type : Json(nullptr));
  }
  const Json* content = find_field(*prediction, "content");
  SLUICE_TRY(const std::string text, read_content(content != nullptr ? *content : Json(nullptr)));
  const auto most = static_cast<size_t>(std::max<int64_t>(max_tokens, 0));
  const std::string_view front = std::string_view(text).substr(0, most * kMaxTokenBytes);
  SLUICE_TRY_VOID(tokenizer.encode(front, SpecialText::kText, tokens));
  if (tokens.size() > most) tokens.resize(most);
  return tokens;
}

}  // namespace sluice
