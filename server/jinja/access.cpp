// SPDX-License-Identifier: Apache-2.0
// Attributes, subscripts, slices and iteration.
#include <algorithm>

#include "server/jinja/ast.h"
#include "server/jinja/methods.h"
#include "server/jinja/ops.h"

namespace sluice::jinja {
namespace {

Result no_element(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.is(Kind::kUndefined)) return undefined_error(runtime, value);
  const std::string type =
      value.is(Kind::kNone) ? "'None'" : "'" + std::string(type_name(value)) + " object'";
  return runtime.undefined(type + " has no attribute '" + std::string(name) + "'");
}

Result loop_neighbour(Runtime& runtime, const Loop& loop, int64_t index, const char* what) {
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
  const Loop& loop = value.as<Loop>();
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
  const MethodEntry* method = find_method(value, name);
  if (method == nullptr) return std::optional<Value>();
  if (method->function == nullptr) {
    SLUICE_TRY(Value hidden,
               runtime.undefined("access to attribute '" + std::string(name) + "' of '" +
                                     std::string(type_name(value)) + "' object is unsafe.",
                                 /*security=*/true));
    return std::optional<Value>(std::move(hidden));
  }
  SLUICE_TRY(Value bound, runtime.function(method->name, method->function, value));
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
      return runtime.text(text.substr(begin, begin + bytes));
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
    return out.finish();
  }
  const Sequence& sequence = value.as<Sequence>();
  std::vector<Value> items;
  for (int64_t i = 0; i < range.count; ++i) {
    items.push_back(sequence.items[static_cast<size_t>(range.start + i * range.step)]);
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
    return runtime.undefined(std::string(type_name(value)) + " object has no element " +
                             std::to_string(index));
  }
  if (!value.is(Kind::kString)) return value.as<Sequence>().items[static_cast<size_t>(at)];
  SLUICE_TRY_VOID(runtime.charge(1 + at / 16));
  const size_t begin = byte_offset(value.view(), static_cast<size_t>(at));
  return runtime.text(value.text().substr(begin, begin + decode_at(value.view(), begin).size));
}

}  // namespace

Expected<SliceRange> resolve_slice(const Runtime& runtime, const Slice& slice, int64_t size) {
  SliceRange range;
  if (!slice.step.is(Kind::kNone)) {
    SLUICE_TRY(range.step, to_integer(runtime, slice.step, "slice step"));
  }
  if (range.step == 0) return runtime.fail("slice step cannot be zero");
  // A step beyond the size takes one element at most; the bound keeps the arithmetic in range.
  range.step = std::clamp(range.step, -size - 1, size + 1);
  const bool forward = range.step > 0;
  const auto bound = [&](const Value& value, int64_t fallback) -> Expected<int64_t> {
    if (value.is(Kind::kNone)) return fallback;
    SLUICE_TRY(int64_t index, to_integer(runtime, value, "slice index"));
    if (index < 0) index += size;
    return std::clamp(index, forward ? int64_t{0} : int64_t{-1}, forward ? size : size - 1);
  };
  SLUICE_TRY(range.start, bound(slice.start, forward ? 0 : size - 1));
  SLUICE_TRY(const int64_t stop, bound(slice.stop, forward ? size : -1));
  const int64_t span = forward ? stop - range.start : range.start - stop;
  const int64_t stride = forward ? range.step : -range.step;
  range.count = span > 0 ? (span - 1) / stride + 1 : 0;
  return range;
}

Expected<Value*> find_key(Runtime& runtime, Dict& dict, const Value& key) {
  if (key.is(Kind::kDict) ||
      (key.is(Kind::kSequence) && key.as<Sequence>().kind == SequenceKind::kList)) {
    return runtime.fail("unhashable type: '" + std::string(type_name(key)) + "'");
  }
  const bool is_text = key.is(Kind::kString);
  SLUICE_TRY_VOID(runtime.charge(static_cast<int64_t>(dict.entries.size() / 4)));
  for (auto& [name, value] : dict.entries) {
    if (is_text) {
      if (name.is(Kind::kString) && name.view() == key.view()) return &value;
      continue;
    }
    SLUICE_TRY(const bool same, equals(runtime, name, key));
    if (same) return &value;
  }
  return nullptr;
}

Result get_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.is(Kind::kUndefined)) return undefined_error(runtime, value);
  SLUICE_TRY(std::optional<Value> own, own_attribute(runtime, value, name));
  if (own) return std::move(*own);
  if (value.is(Kind::kDict)) {
    for (const auto& [key, item] : value.as<Dict>().entries) {
      if (key.is(Kind::kString) && key.view() == name) return item;
    }
  }
  return no_element(runtime, value, name);
}

Result get_item(Runtime& runtime, const Value& value, const Value& index) {
  if (value.is(Kind::kUndefined)) return undefined_error(runtime, value);
  if (index.is(Kind::kSlice)) {
    if (indexable(value)) return get_slice(runtime, value, index.as<Slice>());
    return runtime.undefined(std::string(type_name(value)) + " object has no such slice");
  }
  if (value.is(Kind::kDict) && !index.is(Kind::kDict)) {
    if (!index.is(Kind::kSequence)) {
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
  return runtime.undefined(std::string(type_name(value)) + " object has no such element");
}

Expected<std::vector<Value>> iterate(Runtime& runtime, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return std::vector<Value>();
    case Kind::kSequence: {
      Sequence& sequence = value.as<Sequence>();
      SLUICE_TRY_VOID(runtime.charge(static_cast<int64_t>(sequence.items.size() / 8)));
      if (sequence.kind == SequenceKind::kGenerator) return std::exchange(sequence.items, {});
      return sequence.items;
    }
    case Kind::kDict: {
      std::vector<Value> keys;
      for (const auto& [key, item] : value.as<Dict>().entries) keys.push_back(key);
      SLUICE_TRY_VOID(runtime.charge(static_cast<int64_t>(keys.size() / 8)));
      return keys;
    }
    case Kind::kString: {
      std::vector<Value> characters;
      const Text& text = value.text();
      for (size_t pos = 0; pos < text.size();) {
        const size_t size = decode_at(text.view(), pos).size;
        SLUICE_TRY(Value character, runtime.text(text.substr(pos, pos + size)));
        characters.push_back(std::move(character));
        pos += size;
      }
      return characters;
    }
    default:
      return runtime.fail("'" + std::string(type_name(value)) + "' object is not iterable");
  }
}

Expected<int64_t> length(Runtime& runtime, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      SLUICE_TRY_VOID(runtime.charge(static_cast<int64_t>(value.view().size() / 16)));
      return static_cast<int64_t>(count_characters(value.view()));
    case Kind::kDict:
      return static_cast<int64_t>(value.as<Dict>().entries.size());
    case Kind::kLoop:
      return static_cast<int64_t>(value.as<Loop>().items.size());
    case Kind::kSequence:
      if (value.as<Sequence>().kind != SequenceKind::kGenerator) {
        return static_cast<int64_t>(value.as<Sequence>().items.size());
      }
      break;
    default:
      break;
  }
  return runtime.fail("object of type '" + std::string(type_name(value)) + "' has no len()");
}

}  // namespace sluice::jinja
