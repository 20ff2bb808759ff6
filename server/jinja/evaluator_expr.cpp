// SPDX-License-Identifier: Apache-2.0
// Expressions and calls.
#include <utility>

#include "server/jinja/evaluator.h"
#include "server/jinja/filters.h"
#include "server/jinja/methods.h"
#include "server/jinja/ops.h"
#include "server/jinja/protocols.h"
#include "server/jinja/tests.h"

namespace sluice::jinja {

Result Evaluator::evaluate(const Expr& expr) {
  const Level level(level_);
  if (level_ > runtime_.limits().max_depth * kEvaluationLevelsPerDepth) {
    return runtime_.exhausted("expressions are nested too deeply");
  }
  SLUICE_TRY_VOID(runtime_.charge(1));
  switch (expr.kind) {
    case ExprKind::kName:
      return evaluate_name(expr);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return evaluate_items(expr);
    case ExprKind::kDict:
      return evaluate_dict(expr);
    case ExprKind::kAttribute: {
      SLUICE_TRY(const Value object, evaluate(*expr.children[0]));
      runtime_.line = expr.line;
      return get_attribute(runtime_, object, expr.text);
    }
    case ExprKind::kSubscript: {
      SLUICE_TRY(const Value object, evaluate(*expr.children[0]));
      SLUICE_TRY(const Value index, evaluate(*expr.children[1]));
      runtime_.line = expr.line;
      return get_item(runtime_, object, index);
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr);
    case ExprKind::kCall:
      return evaluate_call(expr, nullptr);
    case ExprKind::kFilter:
      return evaluate_filter(expr);
    case ExprKind::kTest:
      return evaluate_test(expr);
    case ExprKind::kNot: {
      SLUICE_TRY(const Value operand, evaluate(*expr.children[0]));
      return Value(!truthy(operand));
    }
    case ExprKind::kNegative:
    case ExprKind::kPositive: {
      SLUICE_TRY(const Value operand, evaluate(*expr.children[0]));
      if (expr.kind == ExprKind::kNegative) return negate(runtime_, operand);
      if (operand.is(Kind::kFloat)) return operand;
      SLUICE_TRY(const int64_t number, to_integer(runtime_, operand, "operand of unary +"));
      return Value(number);
    }
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return evaluate_logic(expr);
    case ExprKind::kChain:
      return evaluate_chain(expr);
    case ExprKind::kCompare:
      return evaluate_compare(expr);
    case ExprKind::kConcat: {
      std::vector<Value> parts;
      for (const ExprPtr& child : expr.children) {
        SLUICE_TRY(Value part, evaluate(*child));
        parts.push_back(std::move(part));
      }
      return concat(runtime_, parts);
    }
    case ExprKind::kCondition:
      return evaluate_condition(expr);
    default:
      return evaluate_constant(expr);
  }
}

Result Evaluator::evaluate_constant(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kBool:
      return Value(expr.integer != 0);
    case ExprKind::kInteger:
      return Value(expr.integer);
    case ExprKind::kFloat:
      return Value(expr.real);
    case ExprKind::kString:
      return runtime_.text(expr.text, Origin::kTemplate);
    default:
      return Value();
  }
}

Result Evaluator::evaluate_name(const Expr& expr) {
  if (const Value* value = scope_->find(expr.text)) return *value;
  if (const NativeFunction function = find_global(expr.text)) {
    return runtime_.function(expr.text, function, Value());
  }
  return runtime_.undefined("'" + expr.text + "' is undefined");
}

Result Evaluator::evaluate_items(const Expr& expr) {
  std::vector<Value> items;
  for (const ExprPtr& child : expr.children) {
    SLUICE_TRY(Value item, evaluate(*child));
    items.push_back(std::move(item));
  }
  return runtime_.sequence(
      std::move(items), expr.kind == ExprKind::kTuple ? SequenceKind::kTuple : SequenceKind::kList);
}

Result Evaluator::evaluate_dict(const Expr& expr) {
  SLUICE_TRY(auto dict, runtime_.dict(Origin::kTemplate));
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    SLUICE_TRY(Value key, evaluate(*expr.children[i]));
    SLUICE_TRY(Value value, evaluate(*expr.children[i + 1]));
    SLUICE_TRY_VOID(insert(runtime_, *dict, std::move(key), std::move(value)));
  }
  return Value(Kind::kDict, dict.get());
}

Result Evaluator::evaluate_slice(const Expr& expr) {
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.children[i] == nullptr) continue;
    SLUICE_TRY(parts[i], evaluate(*expr.children[i]));
  }
  SLUICE_TRY(auto slice, runtime_.make<Slice>(0, parts[0], parts[1], parts[2]));
  return Value(Kind::kSlice, slice.get());
}

Expected<CallArgs> Evaluator::evaluate_arguments(const Arguments& arguments) {
  CallArgs args;
  for (const ExprPtr& expr : arguments.positional) {
    SLUICE_TRY(Value value, evaluate(*expr));
    args.positional.push_back(std::move(value));
  }
  for (const auto& [name, expr] : arguments.named) {
    SLUICE_TRY(Value value, evaluate(*expr));
    args.named.emplace_back(name, std::move(value));
  }
  if (arguments.star != nullptr) {
    SLUICE_TRY(const Value list, evaluate(*arguments.star));
    SLUICE_TRY(const std::vector<Value> items, iterate(runtime_, list));
    args.positional.insert(args.positional.end(), items.begin(), items.end());
  }
  if (arguments.double_star != nullptr) {
    SLUICE_TRY(const Value dict, evaluate(*arguments.double_star));
    if (dict.is(Kind::kUndefined)) return undefined_error(runtime_, dict);
    if (!dict.is(Kind::kDict)) return runtime_.fail("argument after ** must be a mapping");
    for (const auto& [key, value] : dict.as<Dict>().entries) {
      if (!key.is(Kind::kString)) return runtime_.fail("keywords must be strings");
      args.named.emplace_back(std::string(key.view()), value);
    }
  }
  return args;
}

Result Evaluator::evaluate_call(const Expr& expr, const Value* caller) {
  SLUICE_TRY(const Value callee, evaluate(*expr.children[0]));
  SLUICE_TRY(CallArgs args, evaluate_arguments(expr.arguments));
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  runtime_.line = expr.line;
  return call(callee, std::move(args));
}

Result Evaluator::call(const Value& callee, CallArgs args) {
  switch (callee.kind()) {
    case Kind::kFunction: {
      const auto& function = callee.as<Function>();
      return function.function(runtime_, function.self, args);
    }
    case Kind::kMacro:
      return call_macro(callee.as<Macro>(), std::move(args));
    case Kind::kLoop:
      return call_loop(callee.as<Loop>(), args);
    case Kind::kUndefined:
      return undefined_error(runtime_, callee);
    default:
      return runtime_.fail("'" + std::string(type_name(callee)) + "' object is not callable");
  }
}

Result Evaluator::call_macro(const Macro& macro, CallArgs args) {
  const Level level(macro_depth_);
  if (macro_depth_ > runtime_.limits().max_depth) {
    return runtime_.exhausted("macros call each other too deeply");
  }
  SLUICE_TRY(Ref<Scope> scope, runtime_.make<Scope>(0, macro.closure));
  const Enter enter(*this, std::move(scope));
  SLUICE_TRY_VOID(bind_macro(macro, std::move(args)));
  Capture output(*this);
  SLUICE_TRY_VOID(execute(macro.def->body).map([](Flow) {}));
  return output.text.finish();
}

Expected<void> Evaluator::bind_macro(const Macro& macro, CallArgs args) {
  const MacroDef& def = *macro.def;
  const size_t count = def.parameters.size();
  const size_t first_default = count - def.defaults.size();
  const auto take_named = [&args](std::string_view name) -> std::optional<Value> {
    for (auto it = args.named.begin(); it != args.named.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      args.named.erase(it);
      return value;
    }
    return std::nullopt;
  };
  for (size_t i = 0; i < count; ++i) {
    // A name given twice stays among the keywords, which the macro may take or not.
    std::optional<Value> given = i < args.positional.size() ? std::optional(args.positional[i])
                                                            : take_named(def.parameters[i]);
    if (!given && i >= first_default) {
      SLUICE_TRY(given, evaluate(*def.defaults[i - first_default]));
    }
    if (!given) {
      SLUICE_TRY(given,
                 runtime_.undefined("parameter '" + def.parameters[i] + "' was not provided"));
    }
    SLUICE_TRY_VOID(set_name(def.parameters[i], std::move(*given)));
  }
  if (def.uses_caller) {
    std::optional<Value> caller = take_named("caller");
    if (!caller) {
      SLUICE_TRY(caller, runtime_.undefined("No caller defined"));
    }
    SLUICE_TRY_VOID(set_name("caller", std::move(*caller)));
  }
  if (def.uses_kwargs) {
    SLUICE_TRY(auto dict, runtime_.dict(Origin::kTemplate));
    for (const auto& [name, value] : args.named) {
      SLUICE_TRY(Value key, runtime_.text(name, Origin::kTemplate));
      SLUICE_TRY_VOID(insert(runtime_, *dict, std::move(key), value));
    }
    SLUICE_TRY_VOID(set_name("kwargs", Value(Kind::kDict, dict.get())));
  } else if (!args.named.empty()) {
    return runtime_.fail("macro '" + def.name + "' takes no keyword argument '" +
                         args.named[0].first + "'");
  }
  if (def.uses_varargs) {
    const size_t skip = std::min(count, args.positional.size());
    SLUICE_TRY(Value rest,
               runtime_.sequence(
                   {args.positional.begin() + static_cast<int64_t>(skip), args.positional.end()},
                   SequenceKind::kTuple));
    return set_name("varargs", std::move(rest));
  }
  if (args.positional.size() > count) {
    return runtime_.fail("macro '" + def.name + "' takes not more than " + std::to_string(count) +
                         " argument(s)");
  }
  return {};
}

Result Evaluator::evaluate_filter(const Expr& expr) {
  Value input;
  if (expr.children[0] == nullptr) {
    input = *filter_input_;
  } else {
    SLUICE_TRY(input, evaluate(*expr.children[0]));
  }
  SLUICE_TRY(const CallArgs args, evaluate_arguments(expr.arguments));
  runtime_.line = expr.line;
  const NativeFunction filter = find_filter(expr.text);
  if (filter == nullptr) return runtime_.fail("No filter named '" + expr.text + "' found.");
  return filter(runtime_, input, args);
}

Result Evaluator::evaluate_test(const Expr& expr) {
  SLUICE_TRY(const Value subject, evaluate(*expr.children[0]));
  SLUICE_TRY(const CallArgs args, evaluate_arguments(expr.arguments));
  runtime_.line = expr.line;
  const TestFunction test = find_test(expr.text);
  if (test == nullptr) return runtime_.fail("No test named '" + expr.text + "' found.");
  SLUICE_TRY(const bool verdict, test(runtime_, subject, args));
  return Value(verdict);
}

Result Evaluator::evaluate_logic(const Expr& expr) {
  Value value;
  for (const ExprPtr& child : expr.children) {
    SLUICE_TRY(value, evaluate(*child));
    if (truthy(value) != (expr.kind == ExprKind::kAnd)) break;
  }
  return value;
}

Result Evaluator::evaluate_chain(const Expr& expr) {
  SLUICE_TRY(Value value, evaluate(*expr.children[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    SLUICE_TRY(const Value operand, evaluate(*expr.children[i + 1]));
    runtime_.line = expr.line;
    SLUICE_TRY(value, arithmetic(runtime_, expr.ops[i], value, operand));
  }
  return value;
}

Result Evaluator::evaluate_compare(const Expr& expr) {
  SLUICE_TRY(Value left, evaluate(*expr.children[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    SLUICE_TRY(Value right, evaluate(*expr.children[i + 1]));
    runtime_.line = expr.line;
    SLUICE_TRY(const bool holds, compare(runtime_, expr.ops[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result Evaluator::evaluate_condition(const Expr& expr) {
  SLUICE_TRY(const Value guard, evaluate(*expr.children[1]));
  if (truthy(guard)) return evaluate(*expr.children[0]);
  if (expr.children[2] != nullptr) return evaluate(*expr.children[2]);
  return runtime_.undefined("the inline if-expression on line " + std::to_string(expr.line) +
                            " evaluated to false and no else section was defined.");
}

}  // namespace sluice::jinja
