// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/protocols.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace sluice::jinja {
namespace {

Expected<bool> equal_items(Runtime& runtime,
                           const std::vector<Value>& a,
                           const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    SLUICE_TRY(const bool same, equals(runtime, a[i], b[i]));
    if (!same) return false;
  }
  return true;
}

Expected<bool> equal_dicts(Runtime& runtime, Dict& a, Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    SLUICE_TRY(Value * other, find_key(runtime, b, key));
    if (other == nullptr) return false;
    SLUICE_TRY(const bool same, equals(runtime, value, *other));
    if (!same) return false;
  }
  return true;
}

}  // namespace

bool is_plain_sequence(const Value& value) {
  return value.is(Kind::kSequence) && (value.as<Sequence>().kind == SequenceKind::kList ||
                                       value.as<Sequence>().kind == SequenceKind::kTuple);
}

tl::unexpected<Error> undefined_error(const Runtime& runtime, const Value& value) {
  return runtime.fail(value.as<UndefinedObject>().message);
}

tl::unexpected<Error> operand_error(const Runtime& runtime,
                                    std::string_view symbol,
                                    const Value& a,
                                    const Value& b) {
  return runtime.fail("unsupported operand types for " + std::string(symbol) + ": '" +
                      std::string(type_name(a)) + "' and '" + std::string(type_name(b)) + "'");
}

Expected<int64_t> to_integer(const Runtime& runtime, const Value& value, std::string_view what) {
  if (value.is(Kind::kUndefined)) return undefined_error(runtime, value);
  if (value.integral()) return value.integer();
  return runtime.fail(std::string(what) + " must be an integer, not " +
                      std::string(type_name(value)));
}

Expected<bool> equals(Runtime& runtime, const Value& a, const Value& b) {
  SLUICE_TRY_VOID(runtime.charge(1));
  if (a.number() && b.number()) {
    if (a.integral() && b.integral()) return a.integer() == b.integer();
    return a.as_double() == b.as_double();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.view() == b.view();
    case Kind::kDict:
    case Kind::kSequence:
      break;
    default:
      return a.object() == b.object();
  }
  if (a.object() == b.object()) return true;
  const Runtime::Depth depth(runtime);
  if (depth.exceeded()) return runtime.exhausted("values are nested too deeply");
  if (a.is(Kind::kDict)) return equal_dicts(runtime, a.as<Dict>(), b.as<Dict>());
  if (a.as<Sequence>().kind != b.as<Sequence>().kind) return false;
  if (a.as<Sequence>().kind == SequenceKind::kGenerator) return false;
  return equal_items(runtime, a.as<Sequence>().items, b.as<Sequence>().items);
}

Expected<std::partial_ordering> order(Runtime& runtime, const Value& a, const Value& b) {
  SLUICE_TRY_VOID(runtime.charge(1));
  if (a.is(Kind::kUndefined)) return undefined_error(runtime, a);
  if (b.is(Kind::kUndefined)) return undefined_error(runtime, b);
  if (a.integral() && b.integral()) return std::partial_ordering(a.integer() <=> b.integer());
  if (a.number() && b.number()) return a.as_double() <=> b.as_double();
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    return std::partial_ordering(a.view() <=> b.view());
  }
  if (!is_plain_sequence(a) || !is_plain_sequence(b) ||
      a.as<Sequence>().kind != b.as<Sequence>().kind) {
    return operand_error(runtime, "<", a, b);
  }
  const Runtime::Depth depth(runtime);
  if (depth.exceeded()) return runtime.exhausted("values are nested too deeply");
  const auto& left = a.as<Sequence>().items;
  const auto& right = b.as<Sequence>().items;
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    SLUICE_TRY(const bool same, equals(runtime, left[i], right[i]));
    if (!same) return order(runtime, left[i], right[i]);
  }
  return std::partial_ordering(left.size() <=> right.size());
}

// A bottom-up merge sort: a comparison may fail half-way, which std::stable_sort cannot pass on.
Expected<std::vector<size_t>> stable_order(Runtime& runtime,
                                           const std::vector<Value>& keys,
                                           bool descending) {
  const size_t size = keys.size();
  std::vector<size_t> from(size);
  for (size_t i = 0; i < size; ++i) from[i] = i;
  std::vector<size_t> to(size);
  for (size_t width = 1; width < size; width *= 2) {
    for (size_t begin = 0; begin < size; begin += 2 * width) {
      const size_t middle = std::min(begin + width, size);
      const size_t end = std::min(begin + 2 * width, size);
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left == middle;
        if (!take_right && right < end) {
          SLUICE_TRY(const auto result, order(runtime, keys[from[right]], keys[from[left]]));
          take_right = descending ? result > 0 : result < 0;
        }
        to[out] = take_right ? from[right++] : from[left++];
      }
    }
    from.swap(to);
  }
  return from;
}

Expected<void> check_hashable(const Runtime& runtime, const Value& key) {
  bool hashable = !key.is(Kind::kDict);
  if (key.is(Kind::kSequence)) {
    const Sequence& sequence = key.as<Sequence>();
    hashable = sequence.kind == SequenceKind::kTuple || sequence.kind == SequenceKind::kRange ||
               sequence.kind == SequenceKind::kGenerator;
    // What a tuple holds lives in the heap, whose depth evaluation bounds.
    for (size_t i = 0; sequence.kind == SequenceKind::kTuple && i < sequence.items.size(); ++i) {
      const Value& item = sequence.items[i];
      const bool nested =
          item.is(Kind::kSequence) && item.as<Sequence>().kind == SequenceKind::kTuple;
      if (!nested) SLUICE_TRY_VOID(check_hashable(runtime, item));
    }
  }
  if (hashable) return {};
  return runtime.fail("unhashable type: '" + std::string(type_name(key)) + "'");
}

Expected<Value*> find_key(Runtime& runtime, Dict& dict, const Value& key) {
  SLUICE_TRY_VOID(check_hashable(runtime, key));
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

Expected<void> insert(Runtime& runtime, Dict& dict, Value key, Value value) {
  SLUICE_TRY(Value * found, find_key(runtime, dict, key));
  if (found != nullptr) {
    *found = std::move(value);
    return {};
  }
  SLUICE_TRY_VOID(runtime.grow(dict, 2 * static_cast<int64_t>(sizeof(Value))));
  dict.entries.emplace_back(std::move(key), std::move(value));
  return {};
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
      SLUICE_TRY_VOID(value.as<Loop>().fetch(std::numeric_limits<size_t>::max()));
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

Expected<SliceRange> resolve_slice(const Runtime& runtime, const Slice& slice, int64_t size) {
  SliceRange range;
  if (!slice.step.is(Kind::kNone)) {
    SLUICE_TRY(range.step, to_integer(runtime, slice.step, "slice step"));
  }
  if (range.step == 0) return runtime.fail("slice step cannot be zero");
  range.written_step = range.step;
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
  SLUICE_TRY(range.stop, bound(slice.stop, forward ? size : -1));
  const int64_t span = forward ? range.stop - range.start : range.start - range.stop;
  const int64_t stride = forward ? range.step : -range.step;
  range.count = span > 0 ? (span - 1) / stride + 1 : 0;
  return range;
}

}  // namespace sluice::jinja
