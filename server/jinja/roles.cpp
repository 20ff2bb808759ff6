// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/roles.h"

#include <algorithm>
#include <string_view>

namespace sluice::jinja {
namespace {

bool is_literal(const Expr& expr) { return expr.kind == ExprKind::kString; }

// message.role, message['role'] | lower, role: what a template compares with names of roles.
bool is_role(const Expr& expr) {
  const Expr* at = &expr;
  while (at->kind == ExprKind::kFilter && !at->children.empty() && at->children[0] != nullptr) {
    at = at->children[0].get();
  }
  switch (at->kind) {
    case ExprKind::kAttribute:
      return at->text == "role";
    case ExprKind::kSubscript:
      return at->children[1] != nullptr && is_literal(*at->children[1]) &&
             at->children[1]->text == "role";
    case ExprKind::kName:
      return at->text.find("role") != std::string::npos;
    default:
      return false;
  }
}

class Finder {
 public:
  void visit(const Block& block) {
    for (const auto& stmt : block) visit(*stmt);
  }

  NamedRoles take() { return std::move(found_); }

 private:
  // Statements are nested no deeper than the parser allows.
  void visit(const Stmt& stmt) {
    for (const ExprPtr& expr : stmt.exprs) add(expr);
    for (const Block& block : stmt.blocks) visit(block);
    if (stmt.macro != nullptr) {
      for (const ExprPtr& expr : stmt.macro->defaults) add(expr);
      visit(stmt.macro->body);
    }
    // Without recursion: a long chain of filters is a deep tree.
    while (!pending_.empty()) {
      const Expr& expr = *pending_.back();
      pending_.pop_back();
      look_at(expr);
    }
  }

  void add(const ExprPtr& expr) {
    if (expr != nullptr) pending_.push_back(expr.get());
  }

  void look_at(const Expr& expr) {
    if (is_literal(expr) && expr.text == "developer") found_.has_developer = true;
    if (expr.kind == ExprKind::kName && expr.text == "messages") found_.reads_messages = true;
    if (expr.kind == ExprKind::kName && expr.text.ends_with("_token")) {
      add_name(expr.text, found_.tokens);
    }
    for (const ExprPtr& child : expr.children) add(child);
    for (const ExprPtr& argument : expr.arguments.positional) add(argument);
    for (const auto& [name, argument] : expr.arguments.named) add(argument);
    add(expr.arguments.star);
    add(expr.arguments.double_star);
    const bool compares = expr.kind == ExprKind::kCompare || expr.kind == ExprKind::kTest;
    const auto speaks_of_role = [](const ExprPtr& child) {
      return child != nullptr && is_role(*child);
    };
    if (!compares || std::ranges::none_of(expr.children, speaks_of_role)) return;
    for (const ExprPtr& child : expr.children) add_roles(child);
    for (const ExprPtr& argument : expr.arguments.positional) add_roles(argument);
  }

  // A literal, or a list of them.
  void add_roles(const ExprPtr& expr) {
    if (expr == nullptr) return;
    if (is_literal(*expr)) return add_name(expr->text, found_.compared);
    if (expr->kind != ExprKind::kList && expr->kind != ExprKind::kTuple) return;
    for (const ExprPtr& item : expr->children) {
      if (item != nullptr && is_literal(*item)) add_name(item->text, found_.compared);
    }
  }

  static void add_name(const std::string& name, std::vector<std::string>& names) {
    if (names.size() == kMaxNamedRoles || std::ranges::find(names, name) != names.end()) return;
    names.push_back(name);
  }

  NamedRoles found_;
  std::vector<const Expr*> pending_;
};

}  // namespace

NamedRoles find_named_roles(const Block& block) {
  Finder finder;
  finder.visit(block);
  return finder.take();
}

}  // namespace sluice::jinja
