// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/runtime.h"

namespace sluice::jinja {

tl::unexpected<Error> Runtime::fail(const std::string& what) const {
  return make_error(ErrorCode::kInvalidArgument,
                    "template line " + std::to_string(line) + ": " + what);
}

tl::unexpected<Error> Runtime::raise(std::string message) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message));
}

tl::unexpected<Error> Runtime::exhausted(const std::string& what) const {
  return make_error(ErrorCode::kResourceExhausted,
                    "template line " + std::to_string(line) + ": " + what);
}

Expected<void> Runtime::charge(int64_t steps) {
  if (steps > fuel_) {
    fuel_ = 0;
    return exhausted("the render takes more than " + std::to_string(limits_.fuel) + " steps");
  }
  fuel_ -= steps;
  return {};
}

Expected<void> Runtime::reserve(int64_t bytes) const {
  if (!heap_.fits(bytes)) {
    return exhausted("the render's values take more than " +
                     std::to_string(limits_.max_memory_bytes) + " bytes");
  }
  return {};
}

Expected<void> Runtime::grow(Object& object, int64_t bytes) {
  SLUICE_TRY_VOID(reserve(bytes));
  object.bytes += bytes;
  heap_.count(bytes);
  return {};
}

Result Runtime::text(Text value) {
  const auto bytes = static_cast<int64_t>(value.memory_bytes());
  SLUICE_TRY_VOID(charge(1 + bytes / 16));
  SLUICE_TRY(auto object, make<TextObject>(bytes, std::move(value)));
  return Value(Kind::kString, object.get());
}

Result Runtime::sequence(std::vector<Value> items, SequenceKind kind, Origin origin) {
  const auto count = static_cast<int64_t>(items.size());
  SLUICE_TRY_VOID(charge(1 + count / 4));
  SLUICE_TRY(
      auto object,
      make<Sequence>(count * static_cast<int64_t>(sizeof(Value)), kind, std::move(items), origin));
  return Value(Kind::kSequence, object.get());
}

Result Runtime::undefined(std::string message, bool security) {
  const auto bytes = static_cast<int64_t>(message.size());
  SLUICE_TRY(auto object, make<UndefinedObject>(bytes, std::move(message), security));
  return Value(Kind::kUndefined, object.get());
}

Result Runtime::function(std::string_view name, NativeFunction native, Value self) {
  SLUICE_TRY(auto object, make<Function>(0, name, native, std::move(self)));
  return Value(Kind::kFunction, object.get());
}

bool TextBuilder::admit(size_t bytes) {
  if (overflowed_) return false;
  // A range may cost more than the byte it marks.
  const auto cost = static_cast<int64_t>(bytes + sizeof(ByteRange));
  if (static_cast<int64_t>(text_.memory_bytes()) + cost > room_) overflowed_ = true;
  return !overflowed_;
}

void TextBuilder::append(const Text& piece, size_t begin, size_t end) {
  if (begin < end && admit(end - begin)) text_.append(piece, begin, end);
}

void TextBuilder::append(std::string_view piece, Origin origin) {
  if (!piece.empty() && admit(piece.size())) text_.append(piece, origin);
}

void TextBuilder::fill(std::string_view piece, Origin origin, int64_t times) {
  for (; times > 0 && !overflowed_ && !piece.empty(); --times) append(piece, origin);
}

Expected<Text> TextBuilder::take() {
  if (overflowed_) SLUICE_TRY_VOID(runtime_.reserve(room_ + 1));
  return std::move(text_);
}

Result TextBuilder::finish() {
  SLUICE_TRY(Text text, take());
  return runtime_.text(std::move(text));
}

Expected<Bound> bind(const Runtime& runtime,
                     std::string_view function,
                     const CallArgs& args,
                     std::span<const std::string_view> names,
                     size_t required) {
  const std::string who(function);
  std::vector<std::optional<Value>> values(names.size());
  if (args.positional.size() > names.size()) {
    return runtime.fail(who + "() takes at most " + std::to_string(names.size()) + " arguments, " +
                        std::to_string(args.positional.size()) + " were given");
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values[i] = args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < names.size() && names[i] != name) ++i;
    if (i == names.size()) {
      return runtime.fail(who + "() got an unexpected keyword argument '" + name + "'");
    }
    if (values[i]) return runtime.fail(who + "() got '" + name + "' twice");
    values[i] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values[i]) {
      return runtime.fail(who + "() misses its argument '" + std::string(names[i]) + "'");
    }
  }
  return Bound(std::move(values));
}

Expected<Bound> bind(const Runtime& runtime,
                     std::string_view function,
                     const CallArgs& args,
                     std::initializer_list<std::string_view> names,
                     size_t required) {
  return bind(runtime,
              function,
              args,
              std::span<const std::string_view>(names.begin(), names.size()),
              required);
}

}  // namespace sluice::jinja
