// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/message_json.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/front/ignored_arguments.h"
#include "server/json/json_reader.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Limits lists: an item is 16 bytes here and may be one on the wire.
constexpr int kMaxListItems = 1 << 22;

// Returns the double of the float's shortest text: 0.7, not the double next to 0.7F.
double widen(float value) {
  char digits[32];
  const auto written = std::to_chars(std::begin(digits), std::end(digits), value);
  double wide = value;
  std::from_chars(digits, written.ptr, wide);
  return wide;
}

// `index` < 0: the field is not repeated.
Expected<Json> value_json(const Message& message,
                          const FieldDescriptor* field,
                          int index,
                          IgnoredArguments& ignored) {
  const Reflection* reflection = message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return Json(one ? reflection->GetInt32(message, field)
                      : reflection->GetRepeatedInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT32:
      return Json(one ? reflection->GetUInt32(message, field)
                      : reflection->GetRepeatedUInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_INT64:
      return Json(one ? reflection->GetInt64(message, field)
                      : reflection->GetRepeatedInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Json(widen(one ? reflection->GetFloat(message, field)
                            : reflection->GetRepeatedFloat(message, field, index)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return Json(one ? reflection->GetBool(message, field)
                      : reflection->GetRepeatedBool(message, field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return Json(one ? reflection->GetString(message, field)
                      : reflection->GetRepeatedString(message, field, index));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return message_json(one ? reflection->GetMessage(message, field)
                              : reflection->GetRepeatedMessage(message, field, index),
                          ignored);
    default:
      SLUICE_UNREACHABLE("a field type that no request message has");
  }
}

std::string key_text(const Message& entry, const FieldDescriptor* key) {
  return std::to_string(entry.GetReflection()->GetInt32(entry, key));
}

Expected<Json> map_json(const Message& message,
                        const FieldDescriptor* field,
                        IgnoredArguments& ignored) {
  const Reflection* reflection = message.GetReflection();
  const int size = reflection->FieldSize(message, field);
  if (size > kMaxJsonMembers) {
    return make_error(ErrorCode::kInvalidArgument,
                      field->name() + " may have at most " + std::to_string(kMaxJsonMembers) +
                          " entries, got " + std::to_string(size) + ".",
                      field->name());
  }
  Json map = Json::object();
  for (int i = 0; i < size; ++i) {
    const Message& entry = reflection->GetRepeatedMessage(message, field, i);
    const auto* type = field->message_type();
    SLUICE_TRY(Json value, value_json(entry, type->map_value(), -1, ignored));
    map[key_text(entry, type->map_key())] = std::move(value);
  }
  return map;
}

Expected<Json> list_json(const Message& message,
                         const FieldDescriptor* field,
                         IgnoredArguments& ignored) {
  const int size = message.GetReflection()->FieldSize(message, field);
  if (size > kMaxListItems) {
    return make_error(ErrorCode::kInvalidArgument,
                      field->name() + " may have at most " + std::to_string(kMaxListItems) +
                          " entries, got " + std::to_string(size) + ".",
                      field->name());
  }
  Json list = Json::array();
  list.get_ref<Json::array_t&>().reserve(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    SLUICE_TRY(Json value, value_json(message, field, i, ignored));
    list.push_back(std::move(value));
  }
  return list;
}

}  // namespace

Expected<Json> message_json(const Message& message, IgnoredArguments& ignored) {
  const Reflection* reflection = message.GetReflection();
  const auto& unknown = reflection->GetUnknownFields(message);
  // A type without fields means a feature that is refused whole, by its own name.
  for (int i = 0; message.GetDescriptor()->field_count() > 0 && i < unknown.field_count(); ++i) {
    SLUICE_TRY_VOID(ignored.add(message.GetDescriptor()->name() + "." +
                                std::to_string(unknown.field(i).number())));
  }
  std::vector<const FieldDescriptor*> set;
  reflection->ListFields(message, &set);
  Json out = Json::object();
  for (const FieldDescriptor* field : set) {
    auto value = field->is_map()        ? map_json(message, field, ignored)
                 : field->is_repeated() ? list_json(message, field, ignored)
                                        : value_json(message, field, -1, ignored);
    if (!value) return tl::unexpected(std::move(value).error());
    out[field->name()] = std::move(*value);
  }
  return out;
}

}  // namespace sluice
