// SPDX-License-Identifier: Apache-2.0
#include "server/api/response_replay.h"

#include <nlohmann/json.hpp>
#include <string>

#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// The log-probabilities of a part in the form of events, which have no bytes.
Json without_bytes(Json logprobs) {
  for (Json& token : logprobs) {
    token.erase("bytes");
    if (const auto top = token.find("top_logprobs"); top != token.end()) {
      for (Json& other : *top) other.erase("bytes");
    }
  }
  return logprobs;
}

class Replay {
 public:
  std::string events(const Json& response) {
    Json begun = response;
    begun["status"] = "in_progress";
    begun["incomplete_details"] = nullptr;
    begun["output"] = Json::array();
    begun["usage"] = nullptr;
    add("response.created", {{"response", begun}});
    add("response.in_progress", {{"response", begun}});
    for (size_t i = 0; i < response["output"].size(); ++i) add_item(response["output"][i], i);
    add("response." + string_member(response, "status"), {{"response", response}});
    return std::move(out_);
  }

 private:
  void add(const std::string& type, const Json& members) {
    Json event = {{"type", type}, {"sequence_number", num_events_++}};
    event.update(members);
    out_ += "event: " + type + "\ndata: ";
    out_ += event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n\n";
  }

  void add_item(const Json& item, size_t idx) {
    Json begun = item;
    begun["status"] = "in_progress";
    for (const char* name : {"arguments", "input"}) {
      if (begun.contains(name)) begun[name] = "";
    }
    if (begun.contains("content")) begun["content"] = Json::array();
    add("response.output_item.added", {{"output_index", idx}, {"item", begun}});
    const Json place = {{"item_id", item["id"]}, {"output_index", idx}};
    if (const auto content = item.find("content"); content != item.end()) {
      for (size_t i = 0; i < content->size(); ++i) add_part((*content)[i], i, place);
    } else if (item.contains("input")) {
      add_text("response.custom_tool_call_input", "input", item["input"], place, Json::object());
    } else {
      add_text("response.function_call_arguments",
               "arguments",
               item["arguments"],
               place,
               {{"name", item["name"]}});
    }
    add("response.output_item.done", {{"output_index", idx}, {"item", item}});
  }

  void add_part(const Json& part, size_t idx, Json place) {
    place["content_index"] = idx;
    Json whole = place;
    whole["part"] = part;
    Json begun = whole;
    begun["part"]["text"] = "";
    const bool is_text = part["type"] == "output_text";
    if (is_text) begun["part"]["logprobs"] = Json::array();
    add("response.content_part.added", begun);
    if (is_text) place["logprobs"] = without_bytes(part["logprobs"]);
    add_text(is_text ? "response.output_text" : "response.reasoning_text",
             "text",
             part["text"],
             place,
             Json::object());
    add("response.content_part.done", whole);
  }

  // `of_end`: members that only the last of both events has.
  void add_text(const std::string& type,
                const char* name,
                const Json& text,
                const Json& place,
                const Json& of_end) {
    Json delta = place;
    delta["delta"] = text;
    if (text != "") add(type + ".delta", delta);
    Json done = place;
    done[name] = text;
    done.update(of_end);
    add(type + ".done", done);
  }

  int64_t num_events_ = 0;
  std::string out_;
};

}  // namespace

std::string response_events(const Json& response) { return Replay().events(response); }

}  // namespace sluice
