// SPDX-License-Identifier: Apache-2.0
// What every operation of a render needs: its budgets, its heap, the line it is at. Any function
// that allocates or loops goes through here, so that a hostile template ends in kResourceExhausted
// and never in a long wait.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "server/jinja/text.h"
#include "server/jinja/value.h"

namespace sluice::jinja {

struct Limits {
  int64_t fuel = 0;
  int64_t max_output_bytes = 0;
  int64_t max_memory_bytes = 0;
  int32_t max_depth = 0;
};

// Seconds since the epoch, for strftime_now.
using Clock = std::function<int64_t()>;

// How deep evaluation may recurse for one level of max_depth: a macro call passes a handful of
// nested statements and expressions.
inline constexpr int32_t kEvaluationLevelsPerDepth = 16;
// Jinja's own sandbox limit.
inline constexpr int64_t kMaxRange = 100'000;

class Runtime {
 public:
  Runtime(const Limits& limits, const Clock& clock)
      : heap_(limits.max_memory_bytes), limits_(limits), clock_(clock), fuel_(limits.fuel) {}

  [[nodiscard]] const Limits& limits() const { return limits_; }

  [[nodiscard]] int64_t now() const { return clock_(); }

  Heap& heap() { return heap_; }

  int32_t line = 0;

  // The render's mistake: kInvalidArgument with the line.
  [[nodiscard]] tl::unexpected<Error> fail(const std::string& what) const;
  // Fails with the bare message, for raise_exception.
  [[nodiscard]] static tl::unexpected<Error> raise(std::string message);
  [[nodiscard]] tl::unexpected<Error> exhausted(const std::string& what) const;

  Expected<void> charge(int64_t steps);
  // Fails when `bytes` more would not fit; call before building something large.
  Expected<void> reserve(int64_t bytes) const;

  template <typename T, typename... Args>
  Expected<Ref<T>> make(int64_t payload_bytes, Args&&... args) {
    const auto bytes = static_cast<int64_t>(sizeof(T)) + payload_bytes;
    SLUICE_TRY_VOID(reserve(bytes));
    Ref<T> object(new T(std::forward<Args>(args)...));
    heap_.adopt(object.get(), bytes);
    return object;
  }

  // More bytes for an object that grew.
  Expected<void> grow(Object& object, int64_t bytes);

  Result text(Text value);

  Result text(std::string bytes, Origin origin) { return text(Text(std::move(bytes), origin)); }

  Result sequence(std::vector<Value> items,
                  SequenceKind kind = SequenceKind::kList,
                  Origin origin = Origin::kTemplate);
  Result undefined(std::string message, bool security = false);
  Result function(std::string_view name, NativeFunction function, Value self);

  Expected<Ref<Dict>> dict(Origin origin) { return make<Dict>(0, origin); }

  // Recursion on values (printing, comparing): counts one level while it lives.
  class Depth {
   public:
    explicit Depth(Runtime& runtime) : runtime_(runtime) { ++runtime_.value_depth_; }

    ~Depth() { --runtime_.value_depth_; }

    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

    [[nodiscard]] bool exceeded() const {
      return runtime_.value_depth_ > runtime_.limits_.max_depth;
    }

   private:
    Runtime& runtime_;
  };

 private:
  Heap heap_;
  Limits limits_;
  const Clock& clock_;
  int64_t fuel_;
  int32_t value_depth_ = 0;
};

// Builds a string piece by piece and stops growing where memory ends: finish() then fails.
class TextBuilder {
 public:
  explicit TextBuilder(Runtime& runtime) : runtime_(runtime), room_(runtime.heap().free_bytes()) {}

  void append(const Text& piece) { append(piece, 0, piece.size()); }

  void append(const Text& piece, size_t begin, size_t end);
  void append(std::string_view piece, Origin origin);
  void fill(std::string_view piece, Origin origin, int64_t times);

  [[nodiscard]] size_t size() const { return text_.size(); }

  [[nodiscard]] bool overflowed() const { return overflowed_; }

  Expected<Text> take();
  Result finish();

 private:
  bool admit(size_t bytes);

  Runtime& runtime_;
  int64_t room_;
  bool overflowed_ = false;
  Text text_;
};

// Arguments of a filter, test or native function matched to its parameter names.
class Bound {
 public:
  explicit Bound(std::vector<std::optional<Value>> values) : values_(std::move(values)) {}

  [[nodiscard]] bool has(size_t i) const { return values_[i].has_value(); }

  [[nodiscard]] const Value& operator[](size_t i) const { return *values_[i]; }

  [[nodiscard]] Value get(size_t i, Value fallback = Value()) const {
    return values_[i] ? *values_[i] : std::move(fallback);
  }

  [[nodiscard]] bool flag(size_t i, bool fallback) const {
    return values_[i] ? truthy(*values_[i]) : fallback;
  }

 private:
  std::vector<std::optional<Value>> values_;
};

// `required` of `names` must be given.
Expected<Bound> bind(const Runtime& runtime,
                     std::string_view function,
                     const CallArgs& args,
                     std::span<const std::string_view> names,
                     size_t required);
Expected<Bound> bind(const Runtime& runtime,
                     std::string_view function,
                     const CallArgs& args,
                     std::initializer_list<std::string_view> names,
                     size_t required = 0);

}  // namespace sluice::jinja
