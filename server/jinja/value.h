// SPDX-License-Identifier: Apache-2.0
// Values of a render. Scalars live in the Value, the rest in reference-counted objects owned by the
// render's Heap, which counts their bytes against a cap, frees without recursion, and at its end
// frees cycles too (a macro's closure holds the macro). One thread; nothing outlives the Heap.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "server/jinja/text.h"

namespace sluice::jinja {

struct MacroDef;
class Heap;
class Runtime;
class Value;
struct CallArgs;

struct Object {
  Object() = default;
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  virtual void drop_references() {}

  Heap* heap = nullptr;
  Object* previous = nullptr;
  Object* next = nullptr;
  int64_t references = 0;
  int64_t bytes = 0;
};

class Heap {
 public:
  explicit Heap(int64_t max_bytes) : max_bytes_(max_bytes) {}

  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  [[nodiscard]] bool fits(int64_t bytes) const { return bytes <= max_bytes_ - used_bytes_; }

  [[nodiscard]] int64_t free_bytes() const { return max_bytes_ - used_bytes_; }

  // Bytes of something that is not an object: negative gives them back.
  void count(int64_t bytes) { used_bytes_ += bytes; }

  void adopt(Object* object, int64_t bytes);
  void release(Object* object);

 private:
  void destroy(Object* object);

  int64_t max_bytes_;
  int64_t used_bytes_ = 0;
  Object* first_ = nullptr;
  bool draining_ = false;
  std::vector<Object*> pending_;
};

template <typename T>
class Ref {
 public:
  Ref() = default;

  explicit Ref(T* object) : object_(object) { retain(); }

  Ref(const Ref& other) : object_(other.object_) { retain(); }

  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}

  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  ~Ref() {
    if (object_ != nullptr && --object_->references == 0) object_->heap->release(object_);
  }

  [[nodiscard]] T* get() const { return object_; }

  T* operator->() const { return object_; }

  T& operator*() const { return *object_; }

  explicit operator bool() const { return object_ != nullptr; }

 private:
  void retain() {
    if (object_ != nullptr) ++object_->references;
  }

  T* object_ = nullptr;
};

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kDict,
  kNamespace,
  kFunction,
  kMacro,
  kLoop,
  kSlice,
};

class Value {
 public:
  Value() : kind_(Kind::kNone) {}

  explicit Value(bool value) : kind_(Kind::kBool) { scalar_.integer = value ? 1 : 0; }

  explicit Value(int64_t value) : kind_(Kind::kInt) { scalar_.integer = value; }

  explicit Value(double value) : kind_(Kind::kFloat) { scalar_.real = value; }

  Value(Kind kind, Object* object) : kind_(kind), object_(object) {}

  Value(const char*) = delete;

  [[nodiscard]] Kind kind() const { return kind_; }

  [[nodiscard]] bool is(Kind kind) const { return kind_ == kind; }

  // Scalars that came from the inputs keep that mark until they are computed with.
  [[nodiscard]] Origin origin() const { return origin_; }

  void set_origin(Origin origin) { origin_ = origin; }

  // A string that `safe` or `escape` produced: + escapes what joins it, as markupsafe does.
  [[nodiscard]] bool markup() const { return markup_; }

  void set_markup(bool markup) { markup_ = markup; }

  [[nodiscard]] bool boolean() const { return scalar_.integer != 0; }

  [[nodiscard]] int64_t integer() const { return scalar_.integer; }

  [[nodiscard]] double real() const { return scalar_.real; }

  [[nodiscard]] bool integral() const { return is(Kind::kInt) || is(Kind::kBool); }

  [[nodiscard]] bool number() const { return integral() || is(Kind::kFloat); }

  [[nodiscard]] double as_double() const {
    return is(Kind::kFloat) ? scalar_.real : static_cast<double>(scalar_.integer);
  }

  [[nodiscard]] Object* object() const { return object_.get(); }

  template <typename T>
  [[nodiscard]] T& as() const {
    return static_cast<T&>(*object_.get());
  }

  [[nodiscard]] const Text& text() const;

  [[nodiscard]] std::string_view view() const { return text().view(); }

 private:
  Kind kind_;
  Origin origin_ = Origin::kTemplate;
  bool markup_ = false;

  union Scalar {
    int64_t integer;
    double real;
  } scalar_{0};

  Ref<Object> object_;
};

using Result = Expected<Value>;

struct TextObject : Object {
  explicit TextObject(Text t) : text(std::move(t)) {}

  Text text;
};

struct UndefinedObject : Object {
  UndefinedObject(std::string m, bool s) : message(std::move(m)), security(s) {}

  std::string message;
  bool security;  // an attribute the sandbox hides
};

enum class SequenceKind : uint8_t {
  kList,
  kTuple,
  kGenerator,  // read once; neither length nor index
  kDictKeys,
  kDictValues,
  kDictItems,
  kRange,
};

struct Sequence : Object {
  Sequence(SequenceKind k, std::vector<Value> v, Origin o)
      : kind(k), origin(o), items(std::move(v)) {}

  void drop_references() override { items.clear(); }

  SequenceKind kind;
  Origin origin;  // who wrote the brackets and commas
  std::vector<Value> items;
  int64_t range[3] = {0, 0, 1};  // start, stop, step
};

struct Dict : Object {
  explicit Dict(Origin o) : origin(o) {}

  void drop_references() override { entries.clear(); }

  Origin origin;
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion, keys unique
};

struct Namespace : Object {
  void drop_references() override { entries.clear(); }

  std::vector<std::pair<std::string, Value>> entries;
};

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A global function or a method bound to `self`.
using NativeFunction = Result (*)(Runtime& runtime, const Value& self, const CallArgs& args);

struct Function : Object {
  Function(std::string_view n, NativeFunction f, Value s)
      : name(n), function(f), self(std::move(s)) {}

  void drop_references() override { self = Value(); }

  std::string_view name;
  NativeFunction function;
  Value self;
};

// Names of one scope; lookup goes up the parents. Keys point into the syntax tree or the inputs.
struct Scope : Object {
  explicit Scope(Ref<Scope> p) : parent(std::move(p)) {}

  void drop_references() override {
    entries.clear();
    parent = Ref<Scope>();
  }

  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
  Ref<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> entries;
};

struct Macro : Object {
  Macro(const MacroDef* d, Ref<Scope> c) : def(d), closure(std::move(c)) {}

  void drop_references() override { closure = Ref<Scope>(); }

  const MacroDef* def;
  Ref<Scope> closure;
};

struct Slice : Object {
  Slice(Value a, Value b, Value c) : start(std::move(a)), stop(std::move(b)), step(std::move(c)) {}

  void drop_references() override { start = stop = step = Value(); }

  Value start, stop, step;
};

struct Stmt;

// The `loop` of a running for.
struct Loop : Object {
  void drop_references() override {
    items.clear();
    source.clear();
    passes = nullptr;
    changed.clear();
    scope = Ref<Scope>();
  }

  // Makes sure that items has `count` of them, unless there are no more. A filtered loop asks its
  // filter as late as jinja2 does: the body may change what the filter reads.
  Expected<void> fetch(size_t count);

  std::vector<Value> items;
  std::vector<Value> source;  // what waits for the filter, from `taken` on
  size_t taken = 0;
  std::function<Expected<bool>(const Value&)> passes;
  int64_t index = 0;
  int64_t depth = 0;           // 0: outermost of a recursive loop
  const Stmt* stmt = nullptr;  // set when recursive
  Ref<Scope> scope;            // the scope around a recursive loop
  std::vector<Value> changed;  // what changed() saw last
  bool changed_called = false;
};

// Python's name of the type, as jinja2 prints it ("dict object" without " object").
std::string_view type_name(const Value& value);
bool truthy(const Value& value);

}  // namespace sluice::jinja
