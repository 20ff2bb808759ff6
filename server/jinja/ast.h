// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a template: built once, never changed, read by renders on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sluice::jinja {

enum class ExprKind : uint8_t {
  kNone,
  kBool,  // integer != 0
  kInteger,
  kFloat,
  kString,
  kName,
  kList,       // children
  kTuple,      // children
  kDict,       // children: key, value, key, value
  kAttribute,  // children[0].text
  kSubscript,  // children[0][children[1]]
  kSlice,      // children: start, stop, step; null where left out
  kCall,       // children[0](arguments)
  kFilter,     // children[0] | text(arguments); children[0] is null inside a filter block
  kTest,       // children[0] is text(arguments)
  kNot,
  kNegative,
  kPositive,
  kAnd,  // children, left to right
  kOr,
  kChain,    // children[0] op[0] children[1] op[1] ...: arithmetic of one precedence, left to right
  kCompare,  // the same for comparisons, with Python's chaining
  kConcat,   // children joined by ~
  kCondition,  // children: then, condition, else (null when left out)
};

enum class Op : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;         // *args
  ExprPtr double_star;  // **kwargs
};

struct Expr {
  Expr() = default;
  // Without recursion: a long chain of filters is a deep tree.
  ~Expr();
  Expr(const Expr&) = delete;
  Expr& operator=(const Expr&) = delete;

  ExprKind kind = ExprKind::kNone;
  int32_t line = 0;
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<ExprPtr> children;
  std::vector<Op> ops;
  Arguments arguments;
};

enum class StmtKind : uint8_t {
  kData,         // text
  kPrint,        // exprs[0]
  kIf,           // exprs[i] guards blocks[i]; one block more than exprs: else
  kFor,          // target in exprs[0] if exprs[1] (null: none); blocks: body, else
  kSet,          // target = exprs[0]
  kSetBlock,     // target = blocks[0] through filters exprs[0] (null: none)
  kWith,         // targets[i] = exprs[i]; blocks[0]
  kMacro,        // macro
  kCallBlock,    // exprs[0] is the call; macro is the caller
  kFilterBlock,  // exprs[0] is the filter chain; blocks[0]
  kScope,        // blocks[0] in a scope of its own (generation)
  kNamedBlock,   // text is its name; blocks[0], which sees the outermost scope unless scoped
  kLoad,         // include, import, from, extends
  kBreak,
  kContinue,
};

// What is assigned to: a name, name.attribute of a namespace, or several.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> parts;  // not empty: a tuple
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct MacroDef {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Block body;
  // Which of the implicit names its body reads; the others are refused in a call.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

struct Stmt {
  StmtKind kind = StmtKind::kData;
  int32_t line = 0;
  bool recursive = false;  // for
  bool scoped = false;     // block
  bool uses_loop = false;  // for: the body reads `loop`
  std::string text;
  std::vector<ExprPtr> exprs;
  std::vector<Target> targets;
  std::vector<Block> blocks;
  std::unique_ptr<MacroDef> macro;
};

}  // namespace sluice::jinja
