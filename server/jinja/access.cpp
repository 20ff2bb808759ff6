// SPDX-License-Identifier: Apache-2.0
// Attributes and subscripts.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "server/jinja/ast.h"
#include "server/jinja/methods.h"
#include "server/jinja/ops.h"
#include "server/jinja/print.h"
#include "server/jinja/protocols.h"

namespace sluice::jinja {
namespace {

// The type as messages about missing attributes and elements name it.
std::string shown_type(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kMacro:
      return "jinja2.runtime.Macro object";
    case Kind::kLoop:
      return "jinja2.runtime.LoopContext object";
    case Kind::kNamespace:
      return "transformers.utils.chat_template_utils.TemplateNamespace object";
    case Kind::kFunction: {
      const Value& self = value.as<Function>().self;
      const bool is_method = (self.is(Kind::kString) && !self.markup()) || self.is(Kind::kDict) ||
                             self.is(Kind::kSequence);
      return is_method ? "builtin_function_or_method object" : "function object";
    }
    default:
      break;
  }
  if (value.markup()) return "markupsafe.Markup object";
  return std::string(type_name(value)) + " object";
}

Result no_element(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.is(Kind::kUndefined)) return undefined_error(runtime, value);
  return runtime.undefined("'" + shown_type(value) + "' has no attribute '" + std::string(name) +
                           "'");
}

Result loop_neighbour(Runtime& runtime, Loop& loop, int64_t index, const char* what) {
  SLUICE_TRY_VOID(loop.fetch(static_cast<size_t>(index + 1)));
  if (index >= 0 && index < static_cast<int64_t>(loop.items.size())) {
    return loop.items[static_cast<size_t>(index)];
  }
  return runtime.undefined(std::string("there is no ") + what + " item");
}

Result loop_cycle(Runtime& runtime, const Value& self, const CallArgs& args) {
  if (args.positional.empty()) return runtime.fail("no items for cycling given");
  const auto index = static_cast<size_t>(self.as<Loop>().index);
  return args.positional[index % args.positional.size()];
}

Result loop_changed(Runtime& runtime, const Value& self, const CallArgs& args) {
  Loop& loop = self.as<Loop>();
  bool same = loop.changed_called && loop.changed.size() == args.positional.size();
  for (size_t i = 0; same && i < args.positional.size(); ++i) {
    SLUICE_TRY(same, equals(runtime, loop.changed[i], args.positional[i]));
  }
  loop.changed = args.positional;
  loop.changed_called = true;
  return Value(!same);
}

Result loop_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  Loop& loop = value.as<Loop>();
  if (name == "last") SLUICE_TRY_VOID(loop.fetch(static_cast<size_t>(loop.index) + 2));
  if (name == "length" || name.starts_with("revindex")) {
    SLUICE_TRY_VOID(loop.fetch(std::numeric_limits<size_t>::max()));
  }
  const auto size = static_cast<int64_t>(loop.items.size());
  if (name == "index") return Value(loop.index + 1);
  if (name == "index0") return Value(loop.index);
  if (name == "revindex") return Value(size - loop.index);
  if (name == "revindex0") return Value(size - loop.index - 1);
  if (name == "first") return Value(loop.index == 0);
  if (name == "last") return Value(loop.index + 1 == size);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(loop.depth + 1);
  if (name == "depth0") return Value(loop.depth);
  if (name == "previtem") return loop_neighbour(runtime, loop, loop.index - 1, "previous");
  if (name == "nextitem") return loop_neighbour(runtime, loop, loop.index + 1, "next");
  if (name == "cycle") return runtime.function("cycle", loop_cycle, value);
  if (name == "changed") return runtime.function("changed", loop_changed, value);
  return no_element(runtime, value, name);
}

Result macro_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  const MacroDef& def = *value.as<Macro>().def;
  if (name == "name" && def.name.empty()) return Value();  // a call block
  if (name == "name") return runtime.text(def.name, Origin::kTemplate);
  if (name == "caller") return Value(def.uses_caller);
  if (name == "catch_varargs") return Value(def.uses_varargs);
  if (name == "catch_kwargs") return Value(def.uses_kwargs);
  if (name != "arguments") return no_element(runtime, value, name);
  std::vector<Value> names;
  for (const std::string& parameter : def.parameters) {
    SLUICE_TRY(Value text, runtime.text(parameter, Origin::kTemplate));
    names.push_back(std::move(text));
  }
  return runtime.sequence(std::move(names), SequenceKind::kTuple);
}

Result is_integer(Runtime&, const Value& self, const CallArgs&) {
  return Value(std::isfinite(self.real()) && self.real() == std::floor(self.real()));
}

Expected<std::optional<Value>> number_attribute(Runtime& runtime,
                                                const Value& value,
                                                std::string_view name) {
  const bool integral = value.integral();
  if (name == "real" || (integral && name == "numerator")) {
    return std::optional<Value>(integral ? Value(value.integer()) : value);
  }
  if (name == "imag") {
    return std::optional<Value>(integral ? Value(int64_t{0}) : Value(0.0));
  }
  if (integral && name == "denominator") return std::optional<Value>(Value(int64_t{1}));
  if (integral || name != "is_integer") return std::optional<Value>();
  SLUICE_TRY(Value method, runtime.function("is_integer", is_integer, value));
  return std::optional<Value>(std::move(method));
}

bool escapes_arguments(std::string_view method) {
  constexpr std::array<std::string_view, 13> kPlain = {"split",
                                                       "rsplit",
                                                       "splitlines",
                                                       "removeprefix",
                                                       "removesuffix",
                                                       "find",
                                                       "rfind",
                                                       "index",
                                                       "rindex",
                                                       "count",
                                                       "startswith",
                                                       "endswith",
                                                       "join"};
  return std::find(kPlain.begin(), kPlain.end(), method) == kPlain.end();
}

Result escaped_argument(Runtime& runtime, const Value& value, bool all) {
  if (!all && !value.is(Kind::kString)) return value;
  return escape_html(runtime, value);
}

// A method of a markup string: strings among its arguments are escaped, and what it returns is
// markup again. `self` is the method bound to its string.
Result call_markup_method(Runtime& runtime, const Value& self, const CallArgs& args) {
  const auto& method = self.as<Function>();
  CallArgs escaped = args;
  if (method.name == "join" && args.positional.size() == 1) {
    SLUICE_TRY(std::vector<Value> items, iterate(runtime, args.positional[0]));
    for (Value& item : items) {
      SLUICE_TRY(item, escaped_argument(runtime, item, /*all=*/true));
    }
    SLUICE_TRY(escaped.positional[0], runtime.sequence(std::move(items)));
  } else if (escapes_arguments(method.name)) {
    for (Value& value : escaped.positional) {
      SLUICE_TRY(value, escaped_argument(runtime, value, /*all=*/false));
    }
    for (auto& [name, value] : escaped.named) {
      SLUICE_TRY(value, escaped_argument(runtime, value, /*all=*/false));
    }
  }
  SLUICE_TRY(Value result, method.function(runtime, method.self, escaped));
  if (result.is(Kind::kString)) {
    result.set_markup(true);
  } else if (result.is(Kind::kSequence)) {
    for (Value& item : result.as<Sequence>().items) item.set_markup(true);
  }
  return result;
}

// What every Python object has and the sandbox hides.
bool is_hidden(std::string_view name) {
  constexpr std::array<std::string_view, 24> kHidden = {
      "__class__",   "__delattr__", "__dir__",           "__doc__",         "__eq__",
      "__format__",  "__ge__",      "__getattribute__",  "__getstate__",    "__gt__",
      "__hash__",    "__init__",    "__init_subclass__", "__le__",          "__lt__",
      "__ne__",      "__new__",     "__reduce__",        "__reduce_ex__",   "__repr__",
      "__setattr__", "__sizeof__",  "__str__",           "__subclasshook__"};
  return name.starts_with("__") && std::find(kHidden.begin(), kHidden.end(), name) != kHidden.end();
}

// Attributes proper, without the elements; an empty optional when there is none.
Expected<std::optional<Value>> own_attribute(Runtime& runtime,
                                             const Value& value,
                                             std::string_view name) {
  if (value.is(Kind::kNamespace)) {
    for (const auto& [key, item] : value.as<Namespace>().entries) {
      if (key == name) return std::optional<Value>(item);
    }
    return std::optional<Value>();
  }
  if (value.is(Kind::kLoop) || value.is(Kind::kMacro)) {
    SLUICE_TRY(Value found,
               value.is(Kind::kLoop) ? loop_attribute(runtime, value, name)
                                     : macro_attribute(runtime, value, name));
    return std::optional<Value>(std::move(found));
  }
  if (value.is(Kind::kFunction)) return std::optional<Value>();
  if (value.number() && !is_hidden(name)) return number_attribute(runtime, value, name);
  const MethodEntry* method = find_method(value, name);
  if (method == nullptr && !is_hidden(name)) return std::optional<Value>();
  if (method == nullptr || method->function == nullptr) {
    SLUICE_TRY(Value hidden,
               runtime.undefined("access to attribute '" + std::string(name) + "' of '" +
                                     std::string(type_name(value)) + "' object is unsafe.",
                                 /*security=*/true));
    return std::optional<Value>(std::move(hidden));
  }
  SLUICE_TRY(Value bound, runtime.function(method->name, method->function, value));
  if (value.markup()) {
    SLUICE_TRY(bound, runtime.function(method->name, call_markup_method, bound));
  }
  return std::optional<Value>(std::move(bound));
}

Result get_slice(Runtime& runtime, const Value& value, const Slice& slice) {
  SLUICE_TRY(const int64_t size, length(runtime, value));
  SLUICE_TRY(const SliceRange range, resolve_slice(runtime, slice, size));
  SLUICE_TRY_VOID(runtime.charge(1 + size / 16));
  if (value.is(Kind::kString)) {
    const Text& text = value.text();
    if (range.step == 1) {
      const size_t begin = byte_offset(text.view(), static_cast<size_t>(range.start));
      const size_t bytes = byte_offset(text.view().substr(begin), static_cast<size_t>(range.count));
      SLUICE_TRY(Value piece, runtime.text(text.substr(begin, begin + bytes)));
      piece.set_markup(value.markup());
      return piece;
    }
    std::vector<size_t> offsets;
    SLUICE_TRY_VOID(runtime.reserve(size * static_cast<int64_t>(sizeof(size_t))));
    for (size_t pos = 0; pos < text.size(); pos += decode_at(text.view(), pos).size) {
      offsets.push_back(pos);
    }
    offsets.push_back(text.size());
    TextBuilder out(runtime);
    for (int64_t i = 0; i < range.count; ++i) {
      const auto at = static_cast<size_t>(range.start + i * range.step);
      out.append(text, offsets[at], offsets[at + 1]);
    }
    SLUICE_TRY(Value piece, out.finish());
    piece.set_markup(value.markup());
    return piece;
  }
  const Sequence& sequence = value.as<Sequence>();
  std::vector<Value> items;
  for (int64_t i = 0; i < range.count; ++i) {
    items.push_back(sequence.items[static_cast<size_t>(range.start + i * range.step)]);
  }
  if (sequence.kind == SequenceKind::kRange) {
    SLUICE_TRY(Value part, runtime.sequence(std::move(items), SequenceKind::kRange));
    const auto& [first, last, stride] = sequence.range;
    int64_t(&bounds)[3] = part.as<Sequence>().range;
    bounds[0] = first + range.start * stride;
    bounds[1] = first + range.stop * stride;
    if (__builtin_mul_overflow(range.written_step, stride, &bounds[2])) {
      return runtime.fail("integer overflow");
    }
    return part;
  }
  const SequenceKind kind =
      sequence.kind == SequenceKind::kTuple ? SequenceKind::kTuple : SequenceKind::kList;
  return runtime.sequence(std::move(items), kind, sequence.origin);
}

bool indexable(const Value& value) {
  if (value.is(Kind::kString)) return true;
  if (!value.is(Kind::kSequence)) return false;
  const SequenceKind kind = value.as<Sequence>().kind;
  return kind == SequenceKind::kList || kind == SequenceKind::kTuple ||
         kind == SequenceKind::kRange;
}

Result get_index(Runtime& runtime, const Value& value, int64_t index) {
  SLUICE_TRY(const int64_t size, length(runtime, value));
  const int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) {
    return runtime.undefined(shown_type(value) + " has no element " + std::to_string(index));
  }
  if (!value.is(Kind::kString)) return value.as<Sequence>().items[static_cast<size_t>(at)];
  SLUICE_TRY_VOID(runtime.charge(1 + at / 16));
  const size_t begin = byte_offset(value.view(), static_cast<size_t>(at));
  SLUICE_TRY(Value character,
             runtime.text(value.text().substr(begin, begin + decode_at(value.view(), begin).size)));
  character.set_markup(value.markup());
  return character;
}

}  // namespace

Result get_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.is(Kind::kUndefined)) return undefined_error(runtime, value);
  SLUICE_TRY(std::optional<Value> own, own_attribute(runtime, value, name));
  if (own) return std::move(*own);
  if (value.is(Kind::kDict)) {
    const auto& entries = value.as<Dict>().entries;
    SLUICE_TRY_VOID(runtime.charge(static_cast<int64_t>(entries.size() / 16)));
    for (const auto& [key, item] : entries) {
      if (key.is(Kind::kString) && key.view() == name) return item;
    }
  }
  return no_element(runtime, value, name);
}

Result get_item(Runtime& runtime, const Value& value, const Value& index) {
  if (value.is(Kind::kUndefined)) return undefined_error(runtime, value);
  if (index.is(Kind::kSlice)) {
    if (indexable(value)) return get_slice(runtime, value, index.as<Slice>());
    return runtime.fail("'" + std::string(type_name(value)) + "' object cannot be sliced");
  }
  if (value.is(Kind::kDict)) {
    // What cannot be a key is not there.
    if (check_hashable(runtime, index)) {
      SLUICE_TRY(const Value* found, find_key(runtime, value.as<Dict>(), index));
      if (found != nullptr) return *found;
    }
  } else if (index.integral() && indexable(value)) {
    return get_index(runtime, value, index.integer());
  }
  if (index.is(Kind::kString)) {
    SLUICE_TRY(std::optional<Value> own, own_attribute(runtime, value, index.view()));
    if (own) return std::move(*own);
    return no_element(runtime, value, index.view());
  }
  TextBuilder what(runtime);
  SLUICE_TRY_VOID(append_repr(runtime, index, what));
  SLUICE_TRY(const Text shown, what.take());
  return runtime.undefined(shown_type(value) + " has no element " + std::string(shown.view()));
}

}  // namespace sluice::jinja
