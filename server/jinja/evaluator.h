// SPDX-License-Identifier: Apache-2.0
// Walks the syntax tree with one Runtime: a tree-walking evaluator with lexical scopes. One render,
// one thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "server/jinja/ast.h"
#include "server/jinja/runtime.h"
#include "server/jinja/value.h"

namespace sluice::jinja {

class Evaluator {
 public:
  // `variables` is the outermost scope.
  Evaluator(Runtime& runtime, Ref<Scope> variables)
      : runtime_(runtime), scope_(std::move(variables)), outermost_(scope_) {}

  Expected<Text> render(const Block& block);

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  using FlowResult = Expected<Flow>;

  // Takes what is written while it lives, and counts it against memory.
  class Capture {
   public:
    explicit Capture(Evaluator& evaluator);
    ~Capture();
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    TextBuilder text;
    int64_t counted = 0;

   private:
    Evaluator& evaluator_;
    Capture* outer_;
  };

  // Makes `scope` current while it lives.
  class Enter {
   public:
    Enter(Evaluator& evaluator, Ref<Scope> scope)
        : evaluator_(evaluator), outer_(std::exchange(evaluator.scope_, std::move(scope))) {}

    ~Enter() { evaluator_.scope_ = std::move(outer_); }

    Enter(const Enter&) = delete;
    Enter& operator=(const Enter&) = delete;

   private:
    Evaluator& evaluator_;
    Ref<Scope> outer_;
  };

  class Level {
   public:
    explicit Level(int32_t& depth) : depth_(depth) { ++depth_; }

    ~Level() { --depth_; }

    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int32_t& depth_;
  };

  FlowResult execute(const Block& block);
  FlowResult execute(const Stmt& stmt);
  FlowResult execute_if(const Stmt& stmt);
  FlowResult execute_for(const Stmt& stmt);
  Expected<Ref<Loop>> new_loop(const Stmt& stmt, std::vector<Value> items);
  FlowResult run_loop(const Stmt& stmt, const Value& iterable, int64_t depth);
  FlowResult run_iteration(const Stmt& stmt, const Value& item, const Ref<Loop>& loop);
  Expected<bool> passes_filter(const Stmt& stmt, const Value& item);
  Expected<void> execute_set_block(const Stmt& stmt);
  FlowResult execute_with(const Stmt& stmt);
  FlowResult execute_named_block(const Stmt& stmt);
  Expected<void> execute_macro(const Stmt& stmt);
  Expected<void> execute_call_block(const Stmt& stmt);
  Expected<void> execute_filter_block(const Stmt& stmt);
  Expected<void> write(const Value& value);
  Expected<void> count_written();
  // What a block writes, in a scope of its own.
  Result capture(const Block& block);
  Result apply_filters(const Expr* filters, Value input);
  Expected<void> assign(const Target& target, Value value);
  Expected<void> set_name(std::string_view name, Value value);
  Expected<Ref<Scope>> new_scope();

  Result evaluate(const Expr& expr);
  Result evaluate_constant(const Expr& expr);
  Result evaluate_name(const Expr& expr);
  Result evaluate_items(const Expr& expr);
  Result evaluate_dict(const Expr& expr);
  Result evaluate_slice(const Expr& expr);
  Result evaluate_call(const Expr& expr, const Value* caller);
  Result evaluate_filter(const Expr& expr);
  Result evaluate_test(const Expr& expr);
  Result evaluate_logic(const Expr& expr);
  Result evaluate_chain(const Expr& expr);
  Result evaluate_compare(const Expr& expr);
  Result evaluate_condition(const Expr& expr);
  Expected<CallArgs> evaluate_arguments(const Arguments& arguments);
  Result call(const Value& callee, CallArgs args);
  Result call_macro(const Macro& macro, CallArgs args);
  Expected<void> bind_macro(const Macro& macro, CallArgs args);
  Result call_loop(const Loop& loop, const CallArgs& args);

  Runtime& runtime_;
  Ref<Scope> scope_;
  Ref<Scope> outermost_;
  Capture* out_ = nullptr;
  const Value* filter_input_ = nullptr;  // of the filter block being applied
  int32_t level_ = 0;
  int32_t macro_depth_ = 0;
};

}  // namespace sluice::jinja
