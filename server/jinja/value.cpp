// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/value.h"

namespace sluice::jinja {

void Heap::adopt(Object* object, int64_t bytes) {
  object->heap = this;
  object->bytes = bytes;
  object->next = first_;
  if (first_ != nullptr) first_->previous = object;
  first_ = object;
  used_bytes_ += bytes;
}

void Heap::destroy(Object* object) {
  if (object->previous != nullptr) object->previous->next = object->next;
  if (object->next != nullptr) object->next->previous = object->previous;
  if (first_ == object) first_ = object->next;
  used_bytes_ -= object->bytes;
  delete object;
}

void Heap::release(Object* object) {
  pending_.push_back(object);
  if (draining_) return;
  draining_ = true;
  while (!pending_.empty()) {
    Object* doomed = pending_.back();
    pending_.pop_back();
    destroy(doomed);
  }
  draining_ = false;
}

Heap::~Heap() {
  // What is left are cycles. Hold every object while all let go of each other, then free them.
  for (Object* object = first_; object != nullptr; object = object->next) ++object->references;
  for (Object* object = first_; object != nullptr; object = object->next) object->drop_references();
  while (first_ != nullptr) destroy(first_);
}

const Text& Value::text() const { return as<TextObject>().text; }

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [key, value] : scope->entries) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, current] : entries) {
    if (key == name) {
      current = std::move(value);
      return;
    }
  }
  entries.emplace_back(name, std::move(value));
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kFunction:
      return "function";
    case Kind::kMacro:
      return "Macro";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kSlice:
      return "slice";
    case Kind::kSequence:
      break;
  }
  switch (value.as<Sequence>().kind) {
    case SequenceKind::kList:
      return "list";
    case SequenceKind::kTuple:
      return "tuple";
    case SequenceKind::kGenerator:
      return "generator";
    case SequenceKind::kDictKeys:
      return "dict_keys";
    case SequenceKind::kDictValues:
      return "dict_values";
    case SequenceKind::kDictItems:
      return "dict_items";
    case SequenceKind::kRange:
      return "range";
  }
  return "object";
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.real() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kSequence:
      return value.as<Sequence>().kind == SequenceKind::kGenerator ||
             !value.as<Sequence>().items.empty();
    case Kind::kDict:
      return !value.as<Dict>().entries.empty();
    default:
      return true;
  }
}

Expected<void> Loop::fetch(size_t count) {
  while (items.size() < count && taken < source.size()) {
    const Value item = source[taken++];
    SLUICE_TRY(const bool keep, passes(item));
    if (keep) items.push_back(item);
  }
  return {};
}

}  // namespace sluice::jinja
