// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/methods.h"

#include <algorithm>
#include <array>

#include "server/jinja/char_class.h"
#include "server/jinja/print.h"
#include "server/jinja/protocols.h"
#include "server/jinja/runtime.h"

namespace sluice::jinja {
namespace {

// Null for None or a missing argument.
Expected<const Text*> optional_text(const Runtime& runtime, const Bound& args, size_t i) {
  if (!args.has(i) || args[i].is(Kind::kNone)) return nullptr;
  if (!args[i].is(Kind::kString)) {
    return runtime.fail("expected a string, not " + std::string(type_name(args[i])));
  }
  return &args[i].text();
}

Expected<const Text*> needed_text(const Runtime& runtime, const Bound& args, size_t i) {
  SLUICE_TRY(const Text* text, optional_text(runtime, args, i));
  if (text == nullptr) return runtime.fail("expected a string, not None");
  return text;
}

Expected<int64_t> optional_int(const Runtime& runtime, const Bound& args, size_t i, int64_t other) {
  if (!args.has(i)) return other;
  return to_integer(runtime, args[i], "argument");
}

template <StripSide kSide>
Result strip(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "strip", args, {"chars"}));
  SLUICE_TRY(const Text* characters, optional_text(runtime, bound, 0));
  return strip_text(runtime, self.text(), characters, kSide);
}

template <CaseMap kMap>
Result cased(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "case", args, {}).map([](const Bound&) {}));
  return map_case(runtime, self.text(), kMap);
}

Result split(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "split", args, {"sep", "maxsplit"}));
  SLUICE_TRY(const Text* separator, optional_text(runtime, bound, 0));
  SLUICE_TRY(const int64_t limit, optional_int(runtime, bound, 1, -1));
  return split_text(runtime, self.text(), separator, limit);
}

// At runs of white space, from the right.
Result rsplit_words(Runtime& runtime, const Text& text, int64_t limit) {
  const std::string_view view = text.view();
  std::vector<ByteRange> words;
  for (size_t pos = skip_space(view, 0); pos < view.size(); pos = skip_space(view, pos)) {
    const size_t begin = pos;
    while (pos < view.size() && !is_space(decode_at(view, pos).value)) {
      pos += decode_at(view, pos).size;
    }
    words.push_back({begin, pos});
  }
  std::vector<Value> parts;
  while (!words.empty()) {
    const bool is_rest = static_cast<int64_t>(parts.size()) == limit;
    // What is left keeps the white space at its start.
    SLUICE_TRY(Value part,
               runtime.text(text.substr(is_rest ? 0 : words.back().begin, words.back().end)));
    parts.push_back(std::move(part));
    if (is_rest) break;
    words.pop_back();
  }
  std::reverse(parts.begin(), parts.end());
  return runtime.sequence(std::move(parts));
}

// From the right: splits everywhere, then joins the surplus at the left again.
Result rsplit(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "rsplit", args, {"sep", "maxsplit"}));
  SLUICE_TRY(const Text* separator, optional_text(runtime, bound, 0));
  SLUICE_TRY(const int64_t limit, optional_int(runtime, bound, 1, -1));
  if (limit < 0) return split_text(runtime, self.text(), separator, -1);
  if (separator == nullptr) return rsplit_words(runtime, self.text(), limit);
  if (separator->empty()) return runtime.fail("empty separator");
  std::vector<Value> parts;
  const Text& text = self.text();
  size_t end = text.size();
  while (static_cast<int64_t>(parts.size()) < limit && end >= separator->size()) {
    const size_t found = text.view().substr(0, end).rfind(separator->view());
    if (found == std::string_view::npos) break;
    SLUICE_TRY(Value part, runtime.text(text.substr(found + separator->size(), end)));
    parts.push_back(std::move(part));
    end = found;
  }
  SLUICE_TRY(Value rest, runtime.text(text.substr(0, end)));
  parts.push_back(std::move(rest));
  std::reverse(parts.begin(), parts.end());
  return runtime.sequence(std::move(parts));
}

Result splitlines(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "splitlines", args, {"keepends"}));
  const Text& text = self.text();
  const std::string_view view = text.view();
  std::vector<Value> lines;
  for (size_t pos = 0; pos < view.size();) {
    const ByteRange end = find_line_break(view, pos);
    SLUICE_TRY(Value line,
               runtime.text(text.substr(pos, bound.flag(0, false) ? end.end : end.begin)));
    lines.push_back(std::move(line));
    pos = end.end;
  }
  return runtime.sequence(std::move(lines));
}

// Characters [start, end) of a string.
Expected<std::string_view> window(Runtime& runtime,
                                  const Value& self,
                                  const Value& start,
                                  const Value& end) {
  const std::string_view view = self.view();
  if (start.is(Kind::kUndefined) && end.is(Kind::kUndefined)) return view;
  SLUICE_TRY(const int64_t size, length(runtime, self));
  const Slice slice(start, end, Value());
  SLUICE_TRY(const SliceRange range, resolve_slice(runtime, slice, size));
  const size_t begin = byte_offset(view, static_cast<size_t>(range.start));
  return view.substr(begin, byte_offset(view.substr(begin), static_cast<size_t>(range.count)));
}

template <bool kStart>
Result affix(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound,
             bind(runtime, kStart ? "startswith" : "endswith", args, {"affix", "start", "end"}, 1));
  SLUICE_TRY(const std::string_view inside, window(runtime, self, bound.get(1), bound.get(2)));
  std::vector<Value> candidates = {bound[0]};
  if (bound[0].is(Kind::kSequence) && bound[0].as<Sequence>().kind == SequenceKind::kTuple) {
    candidates = bound[0].as<Sequence>().items;
  }
  for (const Value& candidate : candidates) {
    if (!candidate.is(Kind::kString)) {
      return runtime.fail("startswith and endswith need a string, not " +
                          std::string(type_name(candidate)));
    }
    const std::string_view part = candidate.view();
    if (kStart ? inside.starts_with(part) : inside.ends_with(part)) return Value(true);
  }
  return Value(false);
}

template <bool kPrefix>
Result remove_affix(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "removeprefix", args, {"affix"}, 1));
  SLUICE_TRY(const Text* part, needed_text(runtime, bound, 0));
  const Text& text = self.text();
  if (kPrefix && text.view().starts_with(part->view())) {
    return runtime.text(text.substr(part->size(), text.size()));
  }
  if (!kPrefix && text.view().ends_with(part->view())) {
    return runtime.text(text.substr(0, text.size() - part->size()));
  }
  return self;
}

Result replace(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "replace", args, {"old", "new", "count"}, 2));
  SLUICE_TRY(const Text* from, needed_text(runtime, bound, 0));
  SLUICE_TRY(const Text* to, needed_text(runtime, bound, 1));
  SLUICE_TRY(const int64_t count, optional_int(runtime, bound, 2, -1));
  return replace_text(runtime, self.text(), *from, *to, count);
}

// find, rfind, index, rindex: kLast looks from the right, kMust fails where nothing is found.
template <bool kLast, bool kMust>
Result find(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "find", args, {"sub", "start", "end"}, 1));
  SLUICE_TRY(const Text* part, needed_text(runtime, bound, 0));
  SLUICE_TRY(const int64_t size, length(runtime, self));
  const Slice window(bound.get(1), bound.get(2), Value());
  SLUICE_TRY(const SliceRange range, resolve_slice(runtime, window, size));
  const std::string_view view = self.view();
  const size_t begin = byte_offset(view, static_cast<size_t>(range.start));
  const std::string_view inside =
      view.substr(begin, byte_offset(view.substr(begin), static_cast<size_t>(range.count)));
  const size_t found = kLast ? inside.rfind(part->view()) : inside.find(part->view());
  if (found != std::string_view::npos) {
    return Value(range.start + static_cast<int64_t>(count_characters(inside.substr(0, found))));
  }
  if (kMust) return runtime.fail("substring not found");
  return Value(int64_t{-1});
}

Result count_text(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "count", args, {"sub", "start", "end"}, 1));
  SLUICE_TRY(const Text* part, needed_text(runtime, bound, 0));
  SLUICE_TRY(const std::string_view view, window(runtime, self, bound.get(1), bound.get(2)));
  if (part->empty()) return Value(static_cast<int64_t>(count_characters(view)) + 1);
  int64_t count = 0;
  for (size_t pos = 0; (pos = view.find(part->view(), pos)) != std::string_view::npos;
       pos += part->size()) {
    ++count;
  }
  return Value(count);
}

Result join_strings(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "join", args, {"iterable"}, 1));
  SLUICE_TRY(const std::vector<Value> items, iterate(runtime, bound[0]));
  TextBuilder out(runtime);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Kind::kString)) {
      return runtime.fail("sequence item " + std::to_string(i) + ": expected str, not " +
                          std::string(type_name(items[i])));
    }
    if (i > 0) out.append(self.text());
    out.append(items[i].text());
  }
  return out.finish();
}

Result format(Runtime& runtime, const Value& self, const CallArgs& args) {
  return brace_format(runtime, self.text(), args);
}

template <CharClass kClass>
bool is_a(char32_t c) {
  return in_class(c, kClass);
}

template <bool (*kPredicate)(char32_t)>
Result all_are(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "predicate", args, {}).map([](const Bound&) {}));
  const std::string_view view = self.view();
  for (size_t pos = 0; pos < view.size(); pos += decode_at(view, pos).size) {
    if (!kPredicate(decode_at(view, pos).value)) return Value(false);
  }
  return Value(!view.empty());
}

// keys, values, items.
template <SequenceKind kView>
Result dict_view(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "view", args, {}).map([](const Bound&) {}));
  const Dict& dict = self.as<Dict>();
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    if (kView == SequenceKind::kDictItems) {
      SLUICE_TRY(Value pair, runtime.sequence({key, value}, SequenceKind::kTuple, dict.origin));
      items.push_back(std::move(pair));
    } else {
      items.push_back(kView == SequenceKind::kDictKeys ? key : value);
    }
  }
  return runtime.sequence(std::move(items), kView, dict.origin);
}

Result dict_get(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "get", args, {"key", "default"}, 1));
  SLUICE_TRY(const Value* found, find_key(runtime, self.as<Dict>(), bound[0]));
  return found != nullptr ? *found : bound.get(1);
}

Result dict_copy(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "copy", args, {}).map([](const Bound&) {}));
  const Dict& source = self.as<Dict>();
  SLUICE_TRY(auto copy, runtime.dict(source.origin));
  SLUICE_TRY_VOID(
      runtime.grow(*copy, static_cast<int64_t>(source.entries.size() * 2 * sizeof(Value))));
  copy->entries = source.entries;
  return Value(Kind::kDict, copy.get());
}

Result list_copy(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "copy", args, {}).map([](const Bound&) {}));
  return runtime.sequence(
      self.as<Sequence>().items, SequenceKind::kList, self.as<Sequence>().origin);
}

Result list_index(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "index", args, {"value"}, 1));
  const auto& items = self.as<Sequence>().items;
  for (size_t i = 0; i < items.size(); ++i) {
    SLUICE_TRY(const bool same, equals(runtime, items[i], bound[0]));
    if (same) return Value(static_cast<int64_t>(i));
  }
  return runtime.fail("the value is not in the list");
}

Result list_count(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "count", args, {"value"}, 1));
  int64_t count = 0;
  for (const Value& item : self.as<Sequence>().items) {
    SLUICE_TRY(const bool same, equals(runtime, item, bound[0]));
    count += same ? 1 : 0;
  }
  return Value(count);
}

constexpr std::array kStringMethods = {
    MethodEntry{"split", split},
    MethodEntry{"rsplit", rsplit},
    MethodEntry{"splitlines", splitlines},
    MethodEntry{"strip", strip<StripSide::kBoth>},
    MethodEntry{"lstrip", strip<StripSide::kLeft>},
    MethodEntry{"rstrip", strip<StripSide::kRight>},
    MethodEntry{"startswith", affix<true>},
    MethodEntry{"endswith", affix<false>},
    MethodEntry{"removeprefix", remove_affix<true>},
    MethodEntry{"removesuffix", remove_affix<false>},
    MethodEntry{"replace", replace},
    MethodEntry{"upper", cased<CaseMap::kUpper>},
    MethodEntry{"lower", cased<CaseMap::kLower>},
    MethodEntry{"title", cased<CaseMap::kTitle>},
    MethodEntry{"capitalize", cased<CaseMap::kCapitalize>},
    MethodEntry{"find", find<false, false>},
    MethodEntry{"rfind", find<true, false>},
    MethodEntry{"index", find<false, true>},
    MethodEntry{"rindex", find<true, true>},
    MethodEntry{"count", count_text},
    MethodEntry{"join", join_strings},
    MethodEntry{"format", format},
    MethodEntry{"isdigit", all_are<is_a<CharClass::kDigit>>},
    MethodEntry{"isalpha", all_are<is_a<CharClass::kAlpha>>},
    MethodEntry{"isspace", all_are<is_space>},
};

constexpr std::array kDictMethods = {
    MethodEntry{"get", dict_get},
    MethodEntry{"items", dict_view<SequenceKind::kDictItems>},
    MethodEntry{"keys", dict_view<SequenceKind::kDictKeys>},
    MethodEntry{"values", dict_view<SequenceKind::kDictValues>},
    MethodEntry{"copy", dict_copy},
    MethodEntry{"pop", nullptr},
    MethodEntry{"popitem", nullptr},
    MethodEntry{"update", nullptr},
    MethodEntry{"setdefault", nullptr},
    MethodEntry{"clear", nullptr},
};

constexpr std::array kTupleMethods = {
    MethodEntry{"index", list_index},
    MethodEntry{"count", list_count},
};

constexpr std::array kListMethods = {
    MethodEntry{"index", list_index},
    MethodEntry{"count", list_count},
    MethodEntry{"copy", list_copy},
    MethodEntry{"append", nullptr},
    MethodEntry{"extend", nullptr},
    MethodEntry{"insert", nullptr},
    MethodEntry{"pop", nullptr},
    MethodEntry{"remove", nullptr},
    MethodEntry{"reverse", nullptr},
    MethodEntry{"sort", nullptr},
    MethodEntry{"clear", nullptr},
};

template <size_t N>
const MethodEntry* lookup(const std::array<MethodEntry, N>& table, std::string_view name) {
  const auto found = std::find_if(
      table.begin(), table.end(), [&](const MethodEntry& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace

const MethodEntry* find_method(const Value& value, std::string_view name) {
  if (value.is(Kind::kString)) return lookup(kStringMethods, name);
  if (value.is(Kind::kDict)) return lookup(kDictMethods, name);
  if (!value.is(Kind::kSequence)) return nullptr;
  const SequenceKind kind = value.as<Sequence>().kind;
  if (kind == SequenceKind::kList) return lookup(kListMethods, name);
  const bool fixed = kind == SequenceKind::kTuple || kind == SequenceKind::kRange;
  return fixed ? lookup(kTupleMethods, name) : nullptr;
}

}  // namespace sluice::jinja
