// SPDX-License-Identifier: Apache-2.0
// Statements. Expressions are in evaluator_expr.cpp.
#include "server/jinja/evaluator.h"

#include <utility>

#include "server/jinja/methods.h"
#include "server/jinja/print.h"
#include "server/jinja/protocols.h"

namespace sluice::jinja {

Evaluator::Capture::Capture(Evaluator& evaluator)
    : text(evaluator.runtime_),
      evaluator_(evaluator),
      outer_(std::exchange(evaluator.out_, this)) {}

Evaluator::Capture::~Capture() {
  evaluator_.out_ = outer_;
  evaluator_.runtime_.heap().count(-counted);
}

Expected<Text> Evaluator::render(const Block& block) {
  Capture output(*this);
  SLUICE_TRY_VOID(execute(block).map([](Flow) {}));
  return output.text.take();
}

Expected<void> Evaluator::count_written() {
  const auto size = static_cast<int64_t>(out_->text.size());
  if (out_->text.overflowed() || size > runtime_.limits().max_output_bytes) {
    return runtime_.exhausted("the output is longer than " +
                              std::to_string(runtime_.limits().max_output_bytes) + " bytes");
  }
  SLUICE_TRY_VOID(runtime_.reserve(size - out_->counted));
  SLUICE_TRY_VOID(runtime_.charge((size - out_->counted) / 16));
  runtime_.heap().count(size - out_->counted);
  out_->counted = size;
  return {};
}

Expected<void> Evaluator::write(const Value& value) {
  SLUICE_TRY_VOID(append_str(runtime_, value, out_->text));
  return count_written();
}

Expected<Ref<Scope>> Evaluator::new_scope() { return runtime_.make<Scope>(0, scope_); }

Expected<void> Evaluator::set_name(std::string_view name, Value value) {
  const size_t before = scope_->entries.size();
  SLUICE_TRY_VOID(runtime_.charge(1 + static_cast<int64_t>(before / 8)));
  scope_->set(name, std::move(value));
  if (scope_->entries.size() == before) return {};
  return runtime_.grow(*scope_, sizeof(std::pair<std::string_view, Value>));
}

Evaluator::FlowResult Evaluator::execute(const Block& block) {
  for (const auto& stmt : block) {
    SLUICE_TRY(const Flow flow, execute(*stmt));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Evaluator::FlowResult Evaluator::execute(const Stmt& stmt) {
  const Level level(level_);
  if (level_ > runtime_.limits().max_depth * kEvaluationLevelsPerDepth) {
    return runtime_.exhausted("statements are nested too deeply");
  }
  runtime_.line = stmt.line;
  SLUICE_TRY_VOID(runtime_.charge(1));
  Expected<void> done;
  switch (stmt.kind) {
    case StmtKind::kData:
      out_->text.append(stmt.text, Origin::kTemplate);
      done = count_written();
      break;
    case StmtKind::kPrint: {
      SLUICE_TRY(const Value value, evaluate(*stmt.exprs[0]));
      done = write(value);
      break;
    }
    case StmtKind::kIf:
      return execute_if(stmt);
    case StmtKind::kFor:
      return execute_for(stmt);
    case StmtKind::kSet: {
      SLUICE_TRY(Value value, evaluate(*stmt.exprs[0]));
      done = assign(stmt.targets[0], std::move(value));
      break;
    }
    case StmtKind::kSetBlock:
      done = execute_set_block(stmt);
      break;
    case StmtKind::kWith:
      return execute_with(stmt);
    case StmtKind::kMacro:
      done = execute_macro(stmt);
      break;
    case StmtKind::kCallBlock:
      done = execute_call_block(stmt);
      break;
    case StmtKind::kFilterBlock:
      done = execute_filter_block(stmt);
      break;
    case StmtKind::kScope: {
      SLUICE_TRY(const Value text, capture(stmt.blocks[0]));
      done = write(text);
      break;
    }
    case StmtKind::kNamedBlock:
      return execute_named_block(stmt);
    case StmtKind::kLoad:
      return runtime_.fail("no loader for this environment specified");
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  if (!done) return tl::unexpected(std::move(done).error());
  return Flow::kNormal;
}

Evaluator::FlowResult Evaluator::execute_if(const Stmt& stmt) {
  for (size_t i = 0; i < stmt.exprs.size(); ++i) {
    SLUICE_TRY(const Value guard, evaluate(*stmt.exprs[i]));
    if (truthy(guard)) return execute(stmt.blocks[i]);
  }
  if (stmt.blocks.size() > stmt.exprs.size()) return execute(stmt.blocks.back());
  return Flow::kNormal;
}

Expected<bool> Evaluator::passes_filter(const Stmt& stmt, const Value& item) {
  if (stmt.exprs[1] == nullptr) return true;
  SLUICE_TRY(Ref<Scope> scope, new_scope());
  const Enter enter(*this, std::move(scope));
  SLUICE_TRY_VOID(assign(stmt.targets[0], item));
  SLUICE_TRY(const Value verdict, evaluate(*stmt.exprs[1]));
  return truthy(verdict);
}

Evaluator::FlowResult Evaluator::run_iteration(const Stmt& stmt,
                                               const Value& item,
                                               const Ref<Loop>& loop) {
  SLUICE_TRY_VOID(runtime_.charge(1));
  SLUICE_TRY(Ref<Scope> scope, new_scope());
  const Enter enter(*this, std::move(scope));
  SLUICE_TRY_VOID(assign(stmt.targets[0], item));
  if (loop) SLUICE_TRY_VOID(set_name("loop", Value(Kind::kLoop, loop.get())));
  return execute(stmt.blocks[0]);
}

Evaluator::FlowResult Evaluator::execute_for(const Stmt& stmt) {
  SLUICE_TRY(const Value iterable, evaluate(*stmt.exprs[0]));
  return run_loop(stmt, iterable, 0);
}

Expected<Ref<Loop>> Evaluator::new_loop(const Stmt& stmt, std::vector<Value> items) {
  SLUICE_TRY(Ref<Loop> loop,
             runtime_.make<Loop>(static_cast<int64_t>(items.size() * sizeof(Value))));
  if (stmt.exprs[1] == nullptr) {
    loop->items = std::move(items);
  } else {
    loop->source = std::move(items);
    loop->passes = [this, &stmt, outer = scope_](const Value& item) -> Expected<bool> {
      const Enter enter(*this, outer);
      return passes_filter(stmt, item);
    };
  }
  if (stmt.recursive) {
    loop->stmt = &stmt;
    loop->scope = scope_;
  }
  return loop;
}

Evaluator::FlowResult Evaluator::run_loop(const Stmt& stmt, const Value& iterable, int64_t depth) {
  SLUICE_TRY(std::vector<Value> items, iterate(runtime_, iterable));
  // jinja2 takes a loop for empty as long as no round came to the end of its body.
  bool completed = false;
  if (stmt.uses_loop) {
    SLUICE_TRY(const Ref<Loop> loop, new_loop(stmt, std::move(items)));
    loop->depth = depth;
    for (size_t at = 0;; ++at) {
      SLUICE_TRY_VOID(loop->fetch(at + 1));
      if (at >= loop->items.size()) break;
      loop->index = static_cast<int64_t>(at);
      const Value item = loop->items[at];
      SLUICE_TRY(const Flow flow, run_iteration(stmt, item, loop));
      completed = completed || flow == Flow::kNormal;
      if (flow == Flow::kBreak) break;
    }
  } else {
    for (const Value& item : items) {
      SLUICE_TRY(const bool keep, passes_filter(stmt, item));
      if (!keep) continue;
      SLUICE_TRY(const Flow flow, run_iteration(stmt, item, Ref<Loop>()));
      completed = completed || flow == Flow::kNormal;
      if (flow == Flow::kBreak) break;
    }
  }
  if (completed || stmt.blocks[1].empty()) return Flow::kNormal;
  SLUICE_TRY(Ref<Scope> scope, new_scope());
  const Enter enter(*this, std::move(scope));
  return execute(stmt.blocks[1]);
}

Result Evaluator::call_loop(const Loop& loop, const CallArgs& args) {
  if (loop.stmt == nullptr) {
    return runtime_.fail("The loop must have the 'recursive' marker to be called recursively.");
  }
  SLUICE_TRY(const Bound bound, bind(runtime_, "loop", args, {"iterable"}, 1));
  const Level level(macro_depth_);
  if (macro_depth_ > runtime_.limits().max_depth) {
    return runtime_.exhausted("loops recurse too deeply");
  }
  const Enter enter(*this, loop.scope);
  Capture output(*this);
  SLUICE_TRY_VOID(run_loop(*loop.stmt, bound[0], loop.depth + 1).map([](Flow) {}));
  return output.text.finish();
}

Result Evaluator::capture(const Block& block) {
  SLUICE_TRY(Ref<Scope> scope, new_scope());
  const Enter enter(*this, std::move(scope));
  Capture output(*this);
  SLUICE_TRY_VOID(execute(block).map([](Flow) {}));
  return output.text.finish();
}

Result Evaluator::apply_filters(const Expr* filters, Value input) {
  if (filters == nullptr) return input;
  const Value* outer = std::exchange(filter_input_, &input);
  Result result = evaluate(*filters);
  filter_input_ = outer;
  return result;
}

Expected<void> Evaluator::execute_set_block(const Stmt& stmt) {
  SLUICE_TRY(Value text, capture(stmt.blocks[0]));
  SLUICE_TRY(Value value, apply_filters(stmt.exprs[0].get(), std::move(text)));
  return assign(stmt.targets[0], std::move(value));
}

Expected<void> Evaluator::execute_filter_block(const Stmt& stmt) {
  SLUICE_TRY(Value text, capture(stmt.blocks[0]));
  SLUICE_TRY(const Value value, apply_filters(stmt.exprs[0].get(), std::move(text)));
  // It is a part of the output as it is, without a conversion.
  if (!value.is(Kind::kString)) {
    return runtime_.fail("sequence item: expected str instance, " + std::string(type_name(value)) +
                         " found");
  }
  return write(value);
}

Evaluator::FlowResult Evaluator::execute_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const ExprPtr& expr : stmt.exprs) {
    SLUICE_TRY(Value value, evaluate(*expr));
    values.push_back(std::move(value));
  }
  SLUICE_TRY(Ref<Scope> scope, new_scope());
  const Enter enter(*this, std::move(scope));
  for (size_t i = 0; i < values.size(); ++i) {
    SLUICE_TRY_VOID(assign(stmt.targets[i], std::move(values[i])));
  }
  return execute(stmt.blocks[0]);
}

Evaluator::FlowResult Evaluator::execute_named_block(const Stmt& stmt) {
  SLUICE_TRY(Ref<Scope> scope, runtime_.make<Scope>(0, stmt.scoped ? scope_ : outermost_));
  const Enter enter(*this, std::move(scope));
  return execute(stmt.blocks[0]);
}

Expected<void> Evaluator::execute_macro(const Stmt& stmt) {
  SLUICE_TRY(auto macro, runtime_.make<Macro>(0, stmt.macro.get(), scope_));
  return set_name(stmt.macro->name, Value(Kind::kMacro, macro.get()));
}

Expected<void> Evaluator::execute_call_block(const Stmt& stmt) {
  SLUICE_TRY(auto macro, runtime_.make<Macro>(0, stmt.macro.get(), scope_));
  const Value caller(Kind::kMacro, macro.get());
  SLUICE_TRY(const Value text, evaluate_call(*stmt.exprs[0], &caller));
  return write(text);
}

Expected<void> Evaluator::assign(const Target& target, Value value) {
  if (!target.parts.empty()) {
    SLUICE_TRY(std::vector<Value> parts, iterate(runtime_, value));
    if (parts.size() != target.parts.size()) {
      return runtime_.fail("cannot unpack " + std::to_string(parts.size()) + " values into " +
                           std::to_string(target.parts.size()) + " names");
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      SLUICE_TRY_VOID(assign(target.parts[i], std::move(parts[i])));
    }
    return {};
  }
  if (target.attribute.empty()) return set_name(target.name, std::move(value));
  const Value* holder = scope_->find(target.name);
  if (holder == nullptr || !holder->is(Kind::kNamespace)) {
    return runtime_.fail("cannot assign attribute on non-namespace object");
  }
  if (target.attribute.starts_with('_')) {
    return underscore_error(runtime_, target.attribute);
  }
  auto& names = holder->as<Namespace>();
  for (auto& [name, current] : names.entries) {
    if (name == target.attribute) {
      current = std::move(value);
      return {};
    }
  }
  SLUICE_TRY_VOID(runtime_.grow(
      names, static_cast<int64_t>(sizeof(Value) + sizeof(std::string) + target.attribute.size())));
  names.entries.emplace_back(target.attribute, std::move(value));
  return {};
}

}  // namespace sluice::jinja
