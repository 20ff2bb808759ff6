// SPDX-License-Identifier: Apache-2.0
// Functions a template can call by name.
#include <algorithm>
#include <array>
#include <ctime>

#include "server/jinja/methods.h"
#include "server/jinja/print.h"
#include "server/jinja/protocols.h"
#include "server/jinja/runtime.h"

namespace sluice::jinja {
namespace {

Result raise_exception(Runtime& runtime, const Value&, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "raise_exception", args, {"message"}, 1));
  SLUICE_TRY(const Value text, to_text(runtime, bound[0]));
  return Runtime::raise(std::string(text.view()));
}

Result range(Runtime& runtime, const Value&, const CallArgs& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty()) {
    return runtime.fail("range() takes 1 to 3 integers");
  }
  std::array<int64_t, 3> bounds = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    const size_t slot = args.positional.size() == 1 ? 1 : i;
    SLUICE_TRY(bounds[slot], to_integer(runtime, args.positional[i], "range()"));
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) return runtime.fail("range() arg 3 must not be zero");
  std::vector<Value> items;
  int64_t at = start;
  while (step > 0 ? at < stop : at > stop) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      return runtime.fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (" +
                          std::to_string(kMaxRange) + ").");
    }
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  SLUICE_TRY(Value value, runtime.sequence(std::move(items), SequenceKind::kRange));
  std::copy(bounds.begin(), bounds.end(), value.as<Sequence>().range);
  return value;
}

// dict(mapping or pairs, **named).
Result make_dict(Runtime& runtime, const Value&, const CallArgs& args) {
  SLUICE_TRY(auto dict, runtime.dict(Origin::kTemplate));
  if (args.positional.size() > 1) return runtime.fail("dict() takes at most one mapping");
  if (!args.positional.empty() && args.positional[0].is(Kind::kDict)) {
    const Dict& source = args.positional[0].as<Dict>();
    dict->origin = source.origin;
    for (const auto& [key, value] : source.entries) {
      SLUICE_TRY_VOID(insert(runtime, *dict, key, value));
    }
  } else if (!args.positional.empty()) {
    if (args.positional[0].is(Kind::kUndefined))
      return undefined_error(runtime, args.positional[0]);
    SLUICE_TRY(const std::vector<Value> pairs, iterate(runtime, args.positional[0]));
    for (const Value& pair : pairs) {
      SLUICE_TRY(const std::vector<Value> parts, iterate(runtime, pair));
      if (parts.size() != 2) return runtime.fail("dict() needs pairs");
      SLUICE_TRY_VOID(insert(runtime, *dict, parts[0], parts[1]));
    }
  }
  for (const auto& [name, value] : args.named) {
    SLUICE_TRY(Value key, runtime.text(name, Origin::kTemplate));
    SLUICE_TRY_VOID(insert(runtime, *dict, std::move(key), value));
  }
  return Value(Kind::kDict, dict.get());
}

Result make_namespace(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Value dict, make_dict(runtime, self, args));
  SLUICE_TRY(auto names, runtime.make<Namespace>(0));
  for (const auto& [key, value] : dict.as<Dict>().entries) {
    if (!key.is(Kind::kString)) return runtime.fail("namespace() needs string keys");
    if (key.view().starts_with('_')) {
      return underscore_error(runtime, key.view());
    }
    SLUICE_TRY_VOID(runtime.grow(
        *names, static_cast<int64_t>(sizeof(Value) + sizeof(std::string) + key.view().size())));
    names->entries.emplace_back(std::string(key.view()), value);
  }
  return Value(Kind::kNamespace, names.get());
}

// The format for strftime() of a time without a zone, as Python reads it: %z and %Z are empty, and
// %f are microseconds, which the clock does not have.
std::string naive_format(std::string_view format) {
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    const char directive = format[i] == '%' && i + 1 < format.size() ? format[i + 1] : '\0';
    if (directive == '\0') {
      out += format[i];
      continue;
    }
    ++i;
    if (directive == 'f') {
      out += "000000";
    } else if (directive != 'z' && directive != 'Z') {
      out += {'%', directive};
    }
  }
  return out;
}

// Local time (TZ) that does not name its zone, as Python's datetime.now().
Result strftime_now(Runtime& runtime, const Value&, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "strftime_now", args, {"format"}, 1));
  if (!bound[0].is(Kind::kString)) return runtime.fail("strftime_now() needs a string");
  const auto now = static_cast<time_t>(runtime.now());
  std::tm parts{};
  if (localtime_r(&now, &parts) == nullptr) return runtime.fail("the clock is out of range");
  // A mark at the end tells an empty result from one that did not fit.
  const std::string format = naive_format(bound[0].view()) + "|";
  if (format.size() > 256) return runtime.fail("strftime_now(): the format is too long");
  std::array<char, 4096> buffer{};
  const size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &parts);
  if (size == 0) return runtime.fail("strftime_now(): the format is too long");
  return runtime.text(std::string(buffer.data(), size - 1), bound[0].text().overall());
}

struct Entry {
  std::string_view name;
  NativeFunction function;
};

constexpr std::array kGlobals = {
    Entry{"raise_exception", raise_exception},
    Entry{"range", range},
    Entry{"dict", make_dict},
    Entry{"namespace", make_namespace},
    Entry{"strftime_now", strftime_now},
};

}  // namespace

tl::unexpected<Error> underscore_error(const Runtime& runtime, std::string_view name) {
  return runtime.fail(
      "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '" +
      std::string(name) + "'. Please rename the attribute.");
}

NativeFunction find_global(std::string_view name) {
  const auto found = std::find_if(
      kGlobals.begin(), kGlobals.end(), [&](const Entry& entry) { return entry.name == name; });
  return found == kGlobals.end() ? nullptr : found->function;
}

}  // namespace sluice::jinja
