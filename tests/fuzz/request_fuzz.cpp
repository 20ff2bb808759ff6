// SPDX-License-Identifier: Apache-2.0
// Bytes of an HTTP client through the validator, and where it is another API's, through its codec
// first. The first byte picks the endpoint.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "server/api/messages_codec.h"
#include "server/api/responses_codec.h"
#include "server/json/json_reader.h"
#include "tests/fuzz/request_oracle.h"
#include "tests/fuzz/target.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Expected<GenerationRequest> decode(std::string_view body,
                                   Endpoint endpoint,
                                   IgnoredArguments& ignored) {
  const ValidationContext& context = fuzz_context();
  SLUICE_TRY(Json parsed, parse_json(body, context.config.max_json_depth));
  if (!parsed.is_object()) return make_error(ErrorCode::kInvalidArgument, "No object.");
  SLUICE_TRY_VOID(check_parameters(parsed, endpoint, ignored));
  std::vector<ResponseTool> tools;
  SLUICE_TRY(Json chat,
             endpoint == Endpoint::kMessages
                 ? chat_of_messages(parsed, {}, ignored)
                 : chat_of_responses(parsed, Json::array(), ignored, tools));
  return validate_parameters(context, chat, Endpoint::kChat, ignored);
}

}  // namespace
}  // namespace sluice

static int request_input(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr sluice::Endpoint kEndpoints[] = {sluice::Endpoint::kMessages,
                                             sluice::Endpoint::kResponses,
                                             sluice::Endpoint::kCompletion,
                                             sluice::Endpoint::kChat};
  const sluice::Endpoint endpoint = kEndpoints[data[0] & 3];
  sluice::IgnoredArguments ignored(sluice::UnknownArguments::kIgnore);
  const bool is_coded = (data[0] & 2) == 0;
  sluice::judge(is_coded
                    ? sluice::decode(body, endpoint, ignored)
                    : sluice::validate_generation(sluice::fuzz_context(), body, endpoint, ignored));
  sluice::check_header_value(ignored);
  return 0;
}

const sluice::fuzz::Target request_target("request_fuzz", request_input);
