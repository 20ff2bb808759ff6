// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/tests.h"

#include <algorithm>
#include <array>

#include "server/jinja/filters.h"
#include "server/jinja/ops.h"
#include "server/jinja/protocols.h"
#include "server/jinja/runtime.h"

namespace sluice::jinja {
namespace {

struct Entry {
  std::string_view name;
  TestFunction function;
};

// A test that takes no argument.
template <TestFunction kTest>
Expected<bool> alone(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "test", args, {}).map([](const Bound&) {}));
  return kTest(runtime, self, args);
}

Expected<Value> single(Runtime& runtime, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "test", args, {"other"}, 1));
  return bound[0];
}

template <Kind kKind>
Expected<bool> is_kind(Runtime&, const Value& self, const CallArgs&) {
  return self.is(kKind);
}

template <bool kDefined>
Expected<bool> is_defined(Runtime&, const Value& self, const CallArgs&) {
  return self.is(Kind::kUndefined) != kDefined;
}

Expected<bool> is_number(Runtime&, const Value& self, const CallArgs&) { return self.number(); }

template <bool kValue>
Expected<bool> is_exactly(Runtime&, const Value& self, const CallArgs&) {
  return self.is(Kind::kBool) && self.boolean() == kValue;
}

Expected<bool> is_mapping(Runtime&, const Value& self, const CallArgs&) {
  return self.is(Kind::kDict);
}

// Has a length and subscripts, in Python's view.
Expected<bool> is_sequence(Runtime&, const Value& self, const CallArgs&) {
  if (self.is(Kind::kString) || self.is(Kind::kDict) || self.is(Kind::kUndefined)) return true;
  if (!self.is(Kind::kSequence)) return false;
  const SequenceKind kind = self.as<Sequence>().kind;
  return kind == SequenceKind::kList || kind == SequenceKind::kTuple ||
         kind == SequenceKind::kRange;
}

Expected<bool> is_iterable(Runtime&, const Value& self, const CallArgs&) {
  return self.is(Kind::kString) || self.is(Kind::kDict) || self.is(Kind::kUndefined) ||
         self.is(Kind::kSequence) || self.is(Kind::kLoop);
}

Expected<bool> is_callable(Runtime&, const Value& self, const CallArgs&) {
  return self.is(Kind::kFunction) || self.is(Kind::kMacro) || self.is(Kind::kUndefined) ||
         self.is(Kind::kLoop);
}

template <Op kOp>
Expected<bool> compares(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Value other, single(runtime, args));
  return compare(runtime, kOp, self, other);
}

template <int64_t kRemainder>
Expected<bool> parity(Runtime& runtime, const Value& self, const CallArgs&) {
  SLUICE_TRY(const Value rest, arithmetic(runtime, Op::kMod, self, Value(int64_t{2})));
  return equals(runtime, rest, Value(kRemainder));
}

Expected<bool> divisible(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Value divisor, single(runtime, args));
  SLUICE_TRY(const Value rest, arithmetic(runtime, Op::kMod, self, divisor));
  return !truthy(rest);
}

Expected<bool> same_as(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Value other, single(runtime, args));
  if (self.kind() != other.kind()) return false;
  if (self.object() != nullptr && !self.is(Kind::kString)) return self.object() == other.object();
  return equals(runtime, self, other);
}

Expected<bool> is_filter(Runtime& runtime, const Value& self, const CallArgs&) {
  SLUICE_TRY_VOID(check_hashable(runtime, self));
  return self.is(Kind::kString) && find_filter(self.view()) != nullptr;
}

Expected<bool> is_test(Runtime& runtime, const Value& self, const CallArgs&) {
  SLUICE_TRY_VOID(check_hashable(runtime, self));
  return self.is(Kind::kString) && find_test(self.view()) != nullptr;
}

constexpr std::array kTests = {
    Entry{"defined", alone<is_defined<true>>},
    Entry{"undefined", alone<is_defined<false>>},
    Entry{"none", alone<is_kind<Kind::kNone>>},
    Entry{"string", alone<is_kind<Kind::kString>>},
    Entry{"boolean", alone<is_kind<Kind::kBool>>},
    Entry{"integer", alone<is_kind<Kind::kInt>>},
    Entry{"float", alone<is_kind<Kind::kFloat>>},
    Entry{"number", alone<is_number>},
    Entry{"true", alone<is_exactly<true>>},
    Entry{"false", alone<is_exactly<false>>},
    Entry{"mapping", alone<is_mapping>},
    Entry{"sequence", alone<is_sequence>},
    Entry{"iterable", alone<is_iterable>},
    Entry{"callable", alone<is_callable>},
    Entry{"sameas", same_as},
    Entry{"filter", alone<is_filter>},
    Entry{"test", alone<is_test>},
    Entry{"odd", alone<parity<1>>},
    Entry{"even", alone<parity<0>>},
    Entry{"divisibleby", divisible},
    Entry{"in", compares<Op::kIn>},
    Entry{"eq", compares<Op::kEq>},
    Entry{"equalto", compares<Op::kEq>},
    Entry{"==", compares<Op::kEq>},
    Entry{"ne", compares<Op::kNe>},
    Entry{"!=", compares<Op::kNe>},
    Entry{"lt", compares<Op::kLt>},
    Entry{"lessthan", compares<Op::kLt>},
    Entry{"<", compares<Op::kLt>},
    Entry{"le", compares<Op::kLe>},
    Entry{"<=", compares<Op::kLe>},
    Entry{"gt", compares<Op::kGt>},
    Entry{"greaterthan", compares<Op::kGt>},
    Entry{">", compares<Op::kGt>},
    Entry{"ge", compares<Op::kGe>},
    Entry{">=", compares<Op::kGe>},
};

}  // namespace

TestFunction find_test(std::string_view name) {
  const auto found = std::find_if(
      kTests.begin(), kTests.end(), [&](const Entry& entry) { return entry.name == name; });
  return found == kTests.end() ? nullptr : found->function;
}

}  // namespace sluice::jinja
