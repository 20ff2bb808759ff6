// SPDX-License-Identifier: Apache-2.0
// Filters on sequences and mappings.
#include <algorithm>
#include <array>
#include <utility>

#include "server/jinja/filters.h"
#include "server/jinja/methods.h"
#include "server/jinja/ops.h"
#include "server/jinja/print.h"
#include "server/jinja/protocols.h"
#include "server/jinja/tests.h"

namespace sluice::jinja {
namespace {

Origin origin_of(const Value& value) {
  if (value.is(Kind::kSequence)) return value.as<Sequence>().origin;
  if (value.is(Kind::kDict)) return value.as<Dict>().origin;
  return value.is(Kind::kString) ? value.text().overall() : Origin::kTemplate;
}

// item[a][b] for an attribute "a.b" or an index.
Result attribute_path(Runtime& runtime, Value item, const Value& attribute, const Value& fallback) {
  if (attribute.is(Kind::kNone)) return item;
  if (!attribute.is(Kind::kString)) {
    SLUICE_TRY(item, get_item(runtime, item, attribute));
  } else {
    std::string_view path = attribute.view();
    while (true) {
      const size_t dot = std::min(path.find('.'), path.size());
      const std::string_view part = path.substr(0, dot);
      const bool index = !part.empty() && part.size() < 10 &&
                         part.find_first_not_of("0123456789") == std::string_view::npos;
      SLUICE_TRY(const Value key,
                 index ? Result(Value(static_cast<int64_t>(std::stoll(std::string(part)))))
                       : runtime.text(std::string(part), Origin::kTemplate));
      SLUICE_TRY(item, get_item(runtime, item, key));
      if (item.is(Kind::kUndefined) && !fallback.is(Kind::kNone)) return fallback;
      if (dot == path.size()) break;
      path.remove_prefix(dot + 1);
    }
  }
  if (item.is(Kind::kUndefined) && !fallback.is(Kind::kNone)) return fallback;
  return item;
}

// What sorting and uniqueness look at.
Result sort_key(Runtime& runtime, const Value& item, const Value& attribute, bool case_sensitive) {
  SLUICE_TRY(Value key, attribute_path(runtime, item, attribute, Value()));
  if (!case_sensitive && key.is(Kind::kString)) {
    return map_case(runtime, key.text(), CaseMap::kLower);
  }
  return key;
}

// "role,name": a list of keys.
Result sort_keys(Runtime& runtime, const Value& item, const Text& attributes, bool case_sensitive) {
  std::vector<Value> keys;
  for (size_t begin = 0; begin <= attributes.size();) {
    const size_t end = std::min(attributes.view().find(',', begin), attributes.size());
    SLUICE_TRY(const Value attribute, runtime.text(attributes.substr(begin, end)));
    SLUICE_TRY(Value key, sort_key(runtime, item, attribute, case_sensitive));
    keys.push_back(std::move(key));
    begin = end + 1;
  }
  return runtime.sequence(std::move(keys));
}

struct Keyed {
  Value key;
  Value item;
};

Expected<std::vector<Keyed>> keyed(Runtime& runtime,
                                   const Value& self,
                                   const Value& attribute,
                                   bool case_sensitive) {
  SLUICE_TRY(const std::vector<Value> items, iterate(runtime, self));
  std::vector<Keyed> out;
  for (const Value& item : items) {
    SLUICE_TRY(Value key, sort_key(runtime, item, attribute, case_sensitive));
    out.push_back({std::move(key), item});
  }
  return out;
}

Expected<void> sort_keyed(Runtime& runtime, std::vector<Keyed>& items, bool reverse) {
  std::vector<Value> keys;
  for (const Keyed& entry : items) keys.push_back(entry.key);
  SLUICE_TRY(const std::vector<size_t> sorted, stable_order(runtime, keys, reverse));
  std::vector<Keyed> out;
  for (const size_t at : sorted) out.push_back(items[at]);
  items = std::move(out);
  return {};
}

// The argument `reverse` of Python's sorted().
Expected<bool> reversed(const Runtime& runtime, const Bound& bound, size_t i) {
  if (!bound.has(i)) return false;
  if (bound[i].integral()) return truthy(bound[i]);
  if (bound[i].is(Kind::kUndefined)) return undefined_error(runtime, bound[i]);
  return runtime.fail("'" + std::string(type_name(bound[i])) +
                      "' object cannot be interpreted as an integer");
}

Result values_of(Runtime& runtime, const std::vector<Keyed>& items, SequenceKind kind, Origin o) {
  std::vector<Value> out;
  for (const Keyed& entry : items) out.push_back(entry.item);
  return runtime.sequence(std::move(out), kind, o);
}

Result sort(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound,
             bind(runtime, "sort", args, {"reverse", "case_sensitive", "attribute"}));
  SLUICE_TRY(const bool reverse, reversed(runtime, bound, 0));
  const bool by_several =
      bound.has(2) && bound[2].is(Kind::kString) && bound[2].view().find(',') != std::string::npos;
  SLUICE_TRY(auto items,
             keyed(runtime, self, by_several ? Value() : bound.get(2), bound.flag(1, false)));
  // By attributes: lists are compared, whose undefined items are equal to each other.
  for (size_t i = 0; bound.has(2) && i < items.size(); ++i) {
    SLUICE_TRY(items[i].key,
               by_several ? sort_keys(runtime, items[i].item, bound[2].text(), bound.flag(1, false))
                          : runtime.sequence({items[i].key}));
  }
  SLUICE_TRY_VOID(sort_keyed(runtime, items, reverse));
  return values_of(runtime, items, SequenceKind::kList, origin_of(self));
}

Result unique(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "unique", args, {"case_sensitive", "attribute"}));
  SLUICE_TRY(const auto items, keyed(runtime, self, bound.get(1), bound.flag(0, false)));
  std::vector<Keyed> kept;
  for (const Keyed& entry : items) {
    SLUICE_TRY_VOID(check_hashable(runtime, entry.key));
    bool seen = false;
    for (size_t i = 0; !seen && i < kept.size(); ++i) {
      SLUICE_TRY(seen, equals(runtime, kept[i].key, entry.key));
    }
    if (!seen) kept.push_back(entry);
  }
  return values_of(runtime, kept, SequenceKind::kGenerator, origin_of(self));
}

template <bool kMax>
Result extreme(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "min", args, {"case_sensitive", "attribute"}));
  SLUICE_TRY(const auto items, keyed(runtime, self, bound.get(1), bound.flag(0, false)));
  if (items.empty()) return runtime.undefined("No aggregated item, sequence was empty.");
  const Keyed* best = &items[0];
  for (size_t i = 1; i < items.size(); ++i) {
    SLUICE_TRY(const auto result, order(runtime, items[i].key, best->key));
    if (kMax ? result > 0 : result < 0) best = &items[i];
  }
  return best->item;
}

Result sum(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "sum", args, {"attribute", "start"}));
  SLUICE_TRY(const std::vector<Value> items, iterate(runtime, self));
  Value total = bound.get(1, Value(int64_t{0}));
  if (total.is(Kind::kString)) return runtime.fail("sum() cannot add strings");
  for (const Value& item : items) {
    SLUICE_TRY(const Value part, attribute_path(runtime, item, bound.get(0), Value()));
    SLUICE_TRY(total, arithmetic(runtime, Op::kAdd, total, part));
  }
  return total;
}

Result count(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "length", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(const int64_t size, length(runtime, self));
  return Value(size);
}

Result list(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "list", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(std::vector<Value> items, iterate(runtime, self));
  return runtime.sequence(std::move(items), SequenceKind::kList, origin_of(self));
}

template <bool kLast>
Result end_item(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "first", args, {}).map([](const Bound&) {}));
  if (kLast && self.is(Kind::kSequence) && self.as<Sequence>().kind == SequenceKind::kGenerator) {
    return runtime.fail("'generator' object is not reversible");
  }
  SLUICE_TRY(const std::vector<Value> items, iterate(runtime, self));
  if (!items.empty()) return kLast ? items.back() : items.front();
  return runtime.undefined(kLast ? "No last item, sequence was empty."
                                 : "No first item, sequence was empty.");
}

Result join(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "join", args, {"d", "attribute"}));
  SLUICE_TRY(const std::vector<Value> items, iterate(runtime, self));
  Text separator;
  if (bound.has(0)) {
    SLUICE_TRY(const Value text, to_text(runtime, bound[0]));
    separator = text.text();
  }
  TextBuilder out(runtime);
  for (size_t i = 0; i < items.size() && !out.overflowed(); ++i) {
    if (i > 0) out.append(separator);
    SLUICE_TRY(const Value item, attribute_path(runtime, items[i], bound.get(1), Value()));
    SLUICE_TRY_VOID(append_str(runtime, item, out));
  }
  return out.finish();
}

Result items(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "items", args, {}).map([](const Bound&) {}));
  if (self.is(Kind::kUndefined)) return runtime.sequence({}, SequenceKind::kGenerator);
  if (!self.is(Kind::kDict)) return runtime.fail("Can only get item pairs from a mapping.");
  SLUICE_TRY(Value view, find_method(self, "items")->function(runtime, self, {}));
  return runtime.sequence(
      std::move(view.as<Sequence>().items), SequenceKind::kGenerator, self.as<Dict>().origin);
}

Result dictsort(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound,
             bind(runtime, "dictsort", args, {"case_sensitive", "by", "reverse"}));
  if (self.is(Kind::kUndefined)) return undefined_error(runtime, self);
  if (!self.is(Kind::kDict)) return runtime.fail("dictsort needs a mapping");
  int64_t by = 0;
  if (bound.has(1)) {
    const std::string_view name = bound[1].is(Kind::kString) ? bound[1].view() : "";
    if (name != "key" && name != "value") {
      return runtime.fail("You can only sort by either \"key\" or \"value\"");
    }
    by = name == "value" ? 1 : 0;
  }
  SLUICE_TRY(const Value pairs, find_method(self, "items")->function(runtime, self, {}));
  SLUICE_TRY(auto sorted, keyed(runtime, pairs, Value(by), bound.flag(0, false)));
  SLUICE_TRY(const bool reverse, reversed(runtime, bound, 2));
  SLUICE_TRY_VOID(sort_keyed(runtime, sorted, reverse));
  return values_of(runtime, sorted, SequenceKind::kList, self.as<Dict>().origin);
}

Result reverse(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "reverse", args, {}).map([](const Bound&) {}));
  if (self.is(Kind::kString)) {
    SLUICE_TRY(const Value slice, [&]() -> Result {
      SLUICE_TRY(auto object, runtime.make<Slice>(0, Value(), Value(), Value(int64_t{-1})));
      return Value(Kind::kSlice, object.get());
    }());
    return get_item(runtime, self, slice);
  }
  // What cannot be read backwards becomes a list first.
  const bool once =
      self.is(Kind::kSequence) && self.as<Sequence>().kind == SequenceKind::kGenerator;
  SLUICE_TRY(std::vector<Value> all, iterate(runtime, self));
  std::reverse(all.begin(), all.end());
  return runtime.sequence(
      std::move(all), once ? SequenceKind::kList : SequenceKind::kGenerator, origin_of(self));
}

tl::unexpected<Error> no_such(const Runtime& runtime, const char* what, const Value& name) {
  return runtime.fail("No " + std::string(what) + " named '" +
                      std::string(name.is(Kind::kString) ? name.view() : type_name(name)) + "'.");
}

Result map(Runtime& runtime, const Value& self, const CallArgs& args) {
  std::vector<Value> out;
  if (!truthy(self)) return runtime.sequence(std::move(out), SequenceKind::kGenerator);
  SLUICE_TRY(const std::vector<Value> all, iterate(runtime, self));
  if (args.positional.empty()) {
    SLUICE_TRY(const Bound bound, bind(runtime, "map", args, {"attribute", "default"}, 1));
    for (const Value& item : all) {
      SLUICE_TRY(Value value, attribute_path(runtime, item, bound[0], bound.get(1)));
      out.push_back(std::move(value));
    }
    return runtime.sequence(std::move(out), SequenceKind::kGenerator, origin_of(self));
  }
  const Value& name = args.positional[0];
  const NativeFunction filter = name.is(Kind::kString) ? find_filter(name.view()) : nullptr;
  if (filter == nullptr) return no_such(runtime, "filter", name);
  const CallArgs rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
  const Runtime::Depth depth(runtime);
  if (depth.exceeded()) return runtime.exhausted("filters are nested too deeply");
  for (const Value& item : all) {
    SLUICE_TRY(Value value, filter(runtime, item, rest));
    out.push_back(std::move(value));
  }
  return runtime.sequence(std::move(out), SequenceKind::kGenerator, origin_of(self));
}

// select, reject, selectattr, rejectattr.
template <bool kAttribute, bool kKeep>
Result select(Runtime& runtime, const Value& self, const CallArgs& args) {
  if (!truthy(self)) return runtime.sequence({}, SequenceKind::kGenerator);
  const size_t offset = kAttribute ? 1 : 0;
  if (args.positional.size() < offset) return runtime.fail("missing parameter for attribute name");
  TestFunction test = nullptr;
  CallArgs rest;
  if (args.positional.size() > offset) {
    const Value& name = args.positional[offset];
    test = name.is(Kind::kString) ? find_test(name.view()) : nullptr;
    if (test == nullptr) return no_such(runtime, "test", name);
    rest.positional.assign(args.positional.begin() + static_cast<int64_t>(offset) + 1,
                           args.positional.end());
    rest.named = args.named;
  }
  SLUICE_TRY(const std::vector<Value> all, iterate(runtime, self));
  std::vector<Value> kept;
  for (const Value& item : all) {
    SLUICE_TRY(const Value subject,
               attribute_path(runtime, item, kAttribute ? args.positional[0] : Value(), Value()));
    bool match = truthy(subject);
    if (test != nullptr) {
      SLUICE_TRY(match, test(runtime, subject, rest));
    }
    if (match == kKeep) kept.push_back(item);
  }
  return runtime.sequence(std::move(kept), SequenceKind::kGenerator, origin_of(self));
}

constexpr std::array kFilters = {
    FilterEntry{"length", count},
    FilterEntry{"count", count},
    FilterEntry{"list", list},
    FilterEntry{"first", end_item<false>},
    FilterEntry{"last", end_item<true>},
    FilterEntry{"join", join},
    FilterEntry{"items", items},
    FilterEntry{"dictsort", dictsort},
    FilterEntry{"sort", sort},
    FilterEntry{"unique", unique},
    FilterEntry{"min", extreme<false>},
    FilterEntry{"max", extreme<true>},
    FilterEntry{"sum", sum},
    FilterEntry{"reverse", reverse},
    FilterEntry{"map", map},
    FilterEntry{"select", select<false, true>},
    FilterEntry{"reject", select<false, false>},
    FilterEntry{"selectattr", select<true, true>},
    FilterEntry{"rejectattr", select<true, false>},
};

}  // namespace

NativeFunction find_sequence_filter(std::string_view name) { return find_entry(kFilters, name); }

}  // namespace sluice::jinja
