// SPDX-License-Identifier: Apache-2.0
#include "server/api/known_members.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "server/front/ignored_arguments.h"
#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// The members of the objects at a path, each followed by a comma; "!" in front of one that is left
// out by design. "PATH:KIND" are objects whose `type` is KIND, and "PATH:" those without a type.
struct KnownMembers {
  std::string_view path;
  std::string_view members;
};

constexpr std::array kChatMembers = {
    KnownMembers{"stream_options", "include_usage,continuous_usage_stats,include_obfuscation,"},
    KnownMembers{"reasoning", "enabled,effort,exclude,"},
    KnownMembers{"thinking", "type,"},
    KnownMembers{"prediction", "type,content,"},
    KnownMembers{"prediction.content", "type,text,prompt_cache_breakpoint,"},
    KnownMembers{"response_format", "type,json_schema,schema,"},
    KnownMembers{"response_format:structural_tag", "type,format,structures,triggers,"},
    KnownMembers{"response_format.json_schema", "name,description,schema,strict,"},
    KnownMembers{"structured_outputs",
                 "json,json_object,regex,choice,grammar,structural_tag,disable_any_whitespace,"
                 "disable_additional_properties,whitespace_pattern,"},
    KnownMembers{"tool_choice", "type,function,allowed_tools,custom,"},
    KnownMembers{"tool_choice.function", "name,"},
    KnownMembers{"tool_choice.allowed_tools", "mode,tools,"},
    KnownMembers{"messages", "*"},
    // Also what items of Responses hold.
    KnownMembers{"messages.content",
                 "type,text,refusal,annotations,logprobs,prompt_cache_breakpoint,cache_control,"
                 "image_url,input_audio,audio_url,video_url,file,file_id,file_data,file_url,"
                 "filename,detail,"},
};

constexpr std::string_view kBlock =
    "type,text,cache_control,citations,source,title,context,content,thinking,signature,data,id,name,"
    "input,caller,toolset_name,tool_use_id,is_error,tool_name,server_name,transformations,";
constexpr std::string_view kQuoted =
    "type,text,cache_control,!citations,source,title,context,content,";
constexpr std::string_view kTool =
    "type,name,description,input_schema,strict,cache_control,allowed_callers,defer_loading,"
    "eager_input_streaming,!input_examples,";

constexpr std::array kMessagesMembers = {
    KnownMembers{"system", "type,text,cache_control,citations,"},
    KnownMembers{"output_config", "effort,format,!task_budget,"},
    KnownMembers{"output_config.format", "type,schema,"},
    KnownMembers{"output_format", "type,schema,"},
    KnownMembers{"thinking", "type,budget_tokens,display,block_binding,"},
    KnownMembers{"tool_choice", "type,name,disable_parallel_tool_use,"},
    KnownMembers{"tools:", kTool},
    KnownMembers{"tools:custom", kTool},
    KnownMembers{"context_management", "edits,"},
    KnownMembers{"context_management.edits", "type,keep,"},
    KnownMembers{"context_management.edits.keep", "type,value,"},
    KnownMembers{"messages", "role,content,clear_at,output_config,"},
    KnownMembers{"messages.content", kBlock},
    KnownMembers{"messages.content:document", kQuoted},
    KnownMembers{"messages.content:document.source", "type,media_type,data,content,url,file_id,"},
    KnownMembers{"messages.content:document.source.content", kBlock},
    KnownMembers{"messages.content:search_result", kQuoted},
    KnownMembers{"messages.content:search_result.content", kBlock},
    KnownMembers{"messages.content:tool_result", kBlock},
    KnownMembers{"messages.content:tool_result.content", kBlock},
};

constexpr std::string_view kMessageItem = "type,role,content,phase,status,id,";
constexpr std::string_view kOutputItem =
    "type,id,call_id,output,caller,name,namespace,status,max_output_length,";
constexpr std::string_view kPart =
    "type,text,refusal,annotations,logprobs,prompt_cache_breakpoint,image_url,file_id,file_data,"
    "file_url,filename,detail,";
constexpr std::string_view kFunctionTool =
    "type,name,description,parameters,strict,async,allowed_callers,defer_loading,output_schema,";
constexpr std::string_view kCustomTool =
    "type,name,description,format,async,allowed_callers,defer_loading,";

constexpr std::array kResponsesMembers = {
    KnownMembers{"reasoning", "effort,summary,generate_summary,context,mode,"},
    KnownMembers{"text", "format,verbosity,"},
    KnownMembers{"text.format", "type,name,schema,description,strict,"},
    KnownMembers{"text.format:structural_tag", "type,format,structures,triggers,"},
    KnownMembers{"tool_choice", "type,name,namespace,mode,tools,server_label,"},
    KnownMembers{"tools:function", kFunctionTool},
    KnownMembers{"tools:custom", kCustomTool},
    KnownMembers{"tools:custom.format", "type,definition,syntax,"},
    KnownMembers{"tools:namespace", "type,name,description,tools,"},
    KnownMembers{"tools:namespace.tools:function", kFunctionTool},
    KnownMembers{"tools:namespace.tools:custom", kCustomTool},
    KnownMembers{"tools:namespace.tools:custom.format", "type,definition,syntax,"},
    KnownMembers{"input:", kMessageItem},
    KnownMembers{"input:.content", kPart},
    KnownMembers{"input:message", kMessageItem},
    KnownMembers{"input:message.content", kPart},
    KnownMembers{"input:function_call",
                 "type,id,call_id,name,namespace,arguments,status,async,caller,"},
    KnownMembers{"input:custom_tool_call",
                 "type,id,call_id,name,namespace,input,status,async,caller,"},
    KnownMembers{"input:local_shell_call", "type,id,call_id,action,status,"},
    KnownMembers{"input:shell_call", "type,id,call_id,action,status,caller,environment,"},
    KnownMembers{"input:apply_patch_call", "type,id,call_id,operation,status,caller,"},
    KnownMembers{"input:function_call_output", kOutputItem},
    KnownMembers{"input:function_call_output.output", kPart},
    KnownMembers{"input:custom_tool_call_output", kOutputItem},
    KnownMembers{"input:custom_tool_call_output.output", kPart},
    KnownMembers{"input:local_shell_call_output", kOutputItem},
    KnownMembers{"input:shell_call_output", kOutputItem},
    KnownMembers{"input:apply_patch_call_output", kOutputItem},
    KnownMembers{"input:reasoning", "type,id,summary,content,encrypted_content,status,"},
    KnownMembers{"input:reasoning.summary", "type,text,"},
    KnownMembers{"input:reasoning.content", "type,text,"},
};

std::span<const KnownMembers> members_of(Endpoint endpoint) {
  if (endpoint == Endpoint::kMessages) return kMessagesMembers;
  if (endpoint == Endpoint::kResponses) return kResponsesMembers;
  return kChatMembers;
}

enum class Standing : uint8_t { kUnknown, kLeftOut, kKnown };

Standing standing_of(std::string_view members, std::string_view name) {
  if (members == "*") return Standing::kKnown;
  while (!members.empty()) {
    const size_t comma = members.find(',');
    const std::string_view member = members.substr(0, comma);
    if (member == name) return Standing::kKnown;
    if (member.starts_with('!') && member.substr(1) == name) return Standing::kLeftOut;
    members.remove_prefix(comma + 1);
  }
  return Standing::kUnknown;
}

class Visitor {
 public:
  Visitor(Endpoint endpoint, IgnoredArguments& ignored)
      : known_(members_of(endpoint)), ignored_(ignored) {}

  // `path`: with the kinds of the enclosing objects; `name`: as in messages to the client.
  Expected<void> visit(Json& value, const std::string& path, const std::string& name);

 private:
  [[nodiscard]] const KnownMembers* find(std::string_view path) const {
    const auto row = std::ranges::find(known_, path, &KnownMembers::path);
    return row != known_.end() ? &*row : nullptr;
  }

  // Tells whether rows speak of what is inside the value there.
  [[nodiscard]] bool reaches(std::string_view path) const {
    return std::ranges::any_of(
        known_, [&](const KnownMembers& row) { return row.path.starts_with(path); });
  }

  Expected<void> visit_members(const KnownMembers& row,
                               Json& value,
                               const std::string& path,
                               const std::string& name);

  std::span<const KnownMembers> known_;
  IgnoredArguments& ignored_;
};

Expected<void> Visitor::visit(Json& value, const std::string& path, const std::string& name) {
  if (!value.is_structured() || !reaches(path)) return {};
  if (value.is_array()) {
    for (Json& element : value) {
      if (element.is_object()) SLUICE_TRY_VOID(visit(element, path, name));
    }
    return {};
  }
  const std::string with_kind = path + ":" + string_member(value, "type");
  if (const KnownMembers* row = find(with_kind)) return visit_members(*row, value, with_kind, name);
  if (const KnownMembers* row = find(path)) return visit_members(*row, value, path, name);
  return {};
}

Expected<void> Visitor::visit_members(const KnownMembers& row,
                                      Json& value,
                                      const std::string& path,
                                      const std::string& name) {
  return keep_members(value, [&](const std::string& key, Json& inner) -> Expected<bool> {
    const std::string member = name + "." + key;
    const Standing standing = standing_of(row.members, key);
    if (standing == Standing::kUnknown) {
      SLUICE_TRY_VOID(ignored_.add(member));
      return false;
    }
    if (standing == Standing::kLeftOut && !asks_nothing(inner)) ignored_.note(member);
    SLUICE_TRY_VOID(visit(inner, path + "." + key, member));
    return true;
  });
}

}  // namespace

bool asks_nothing(const Json& value) {
  if (value.is_object()) return std::ranges::all_of(value, asks_nothing);
  return value.is_null() || value == false || (value.is_array() && value.empty());
}

Expected<void> leave_out_unknown_members(Json& body, Endpoint endpoint, IgnoredArguments& ignored) {
  Visitor visitor(endpoint, ignored);
  for (auto& [name, value] : body.items()) {
    SLUICE_TRY_VOID(visitor.visit(value, name, name));
  }
  return {};
}

}  // namespace sluice
