// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/tensor_pickle.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "engine/weights/file_tensor.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/json_file.h"

namespace sluice {
namespace {

using Kind = PickleValue::Kind;

// They bound the memory that a file can ask for: of the objects, then of the tensors made of them.
constexpr size_t kMaxValues = size_t{1} << 22;
constexpr size_t kMaxSteps = size_t{1} << 24;
constexpr size_t kMaxTensors = size_t{1} << 17;
constexpr uint32_t kNothing = UINT32_MAX;  // in the memo

enum class Role : uint8_t { kDict, kTensor, kTypedTensor, kParameter, kStorage, kType };

// A name that a pickle of tensors may have.
struct KnownName {
  std::string_view module;
  std::string_view name;
  Role role;
  std::string_view dtype = {};  // of kStorage and kType, in safetensors' spelling
  uint64_t bytes = 0;           // of an element
};

constexpr KnownName kKnownNames[] = {{"collections", "OrderedDict", Role::kDict},
                                     {"torch._utils", "_rebuild_tensor", Role::kTensor},
                                     {"torch._utils", "_rebuild_tensor_v2", Role::kTensor},
                                     {"torch._utils", "_rebuild_tensor_v3", Role::kTypedTensor},
                                     {"torch._utils", "_rebuild_parameter", Role::kParameter},
                                     {"torch", "FloatStorage", Role::kStorage, "F32", 4},
                                     {"torch", "HalfStorage", Role::kStorage, "F16", 2},
                                     {"torch", "BFloat16Storage", Role::kStorage, "BF16", 2},
                                     {"torch", "DoubleStorage", Role::kStorage, "F64", 8},
                                     {"torch", "LongStorage", Role::kStorage, "I64", 8},
                                     {"torch", "IntStorage", Role::kStorage, "I32", 4},
                                     {"torch", "ShortStorage", Role::kStorage, "I16", 2},
                                     {"torch", "CharStorage", Role::kStorage, "I8", 1},
                                     {"torch", "ByteStorage", Role::kStorage, "U8", 1},
                                     {"torch", "BoolStorage", Role::kStorage, "BOOL", 1},
                                     {"torch", "ComplexFloatStorage", Role::kStorage, "C64", 8},
                                     {"torch", "ComplexDoubleStorage", Role::kStorage, "C128", 16},
                                     {"torch", "UntypedStorage", Role::kStorage, "U8", 1},
                                     {"torch.storage", "UntypedStorage", Role::kStorage, "U8", 1},
                                     {"torch", "float8_e4m3fn", Role::kType, "F8_E4M3", 1},
                                     {"torch", "float8_e5m2", Role::kType, "F8_E5M2", 1},
                                     {"torch", "float8_e8m0fnu", Role::kType, "F8_E8M0", 1},
                                     {"torch", "uint16", Role::kType, "U16", 2},
                                     {"torch", "uint32", Role::kType, "U32", 4},
                                     {"torch", "uint64", Role::kType, "U64", 8}};

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), rest_(bytes), file_(file) {}

  Expected<TensorPickle> run() {
    constexpr uint8_t kStop = '.';
    for (size_t i = 0;; ++i) {
      if (i == kMaxSteps) return damaged("more than 2^24 opcodes", "those of a model");
      SLUICE_TRY(const auto opcode, take<uint8_t>());
      if (opcode == kStop) break;
      SLUICE_TRY_VOID(step(opcode));
    }
    SLUICE_TRY(const uint32_t root, pop());
    return TensorPickle{
        .values = std::move(values_), .root = root, .bytes = bytes_.size() - rest_.size()};
  }

 private:
  [[nodiscard]] tl::unexpected<Error> damaged(const std::string& found,
                                              const std::string& expected) const {
    return damaged_file(file_, "pickle", found, expected);
  }

  Expected<std::string_view> take_text(size_t bytes) {
    if (bytes > rest_.size()) return damaged("its end", "what the object before it needs");
    const std::string_view text(reinterpret_cast<const char*>(rest_.data()), bytes);
    rest_ = rest_.subspan(bytes);
    return text;
  }

  template <typename T>
  Expected<T> take() {
    SLUICE_TRY(const std::string_view bytes, take_text(sizeof(T)));
    T value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }

  // The rest of a line, without its end.
  Expected<std::string_view> take_line() {
    const auto end = std::ranges::find(rest_, std::byte{'\n'});
    SLUICE_TRY(const std::string_view line, take_text(static_cast<size_t>(end - rest_.begin())));
    SLUICE_TRY_VOID(take<uint8_t>());
    return line;
  }

  Expected<void> push(PickleValue value) {
    if (values_.size() == kMaxValues) return damaged("more than 2^22 objects", "those of a model");
    stack_.push_back(static_cast<uint32_t>(values_.size()));
    values_.push_back(std::move(value));
    return {};
  }

  Expected<void> push_number(int64_t number) {
    return push({.kind = Kind::kNumber, .number = number});
  }

  Expected<void> push_text(size_t bytes) {
    SLUICE_TRY(const std::string_view text, take_text(bytes));
    return push({.kind = Kind::kText, .text = text});
  }

  // Pops what was pushed after the last mark.
  Expected<uint32_t> pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      return damaged("an opcode without its operands", "objects before it");
    }
    const uint32_t value = stack_.back();
    stack_.pop_back();
    return value;
  }

  // Pops the last mark and what was pushed after it.
  Expected<std::vector<uint32_t>> pop_marked() {
    if (marks_.empty()) return damaged("an opcode without its mark", "a mark before it");
    const auto begin = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<uint32_t> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  Expected<std::vector<uint32_t>> pop_last(size_t count) {
    std::vector<uint32_t> items(count);
    for (size_t i = count; i > 0; --i) {
      SLUICE_TRY(items[i - 1], pop());
    }
    return items;
  }

  Expected<void> step(uint8_t opcode);
  Expected<void> check_protocol();
  Expected<void> push_long();
  Expected<void> push_name();
  Expected<void> put(uint32_t place);
  Expected<void> get(uint32_t place);
  // Adds to the list or dict that is on top.
  Expected<void> add_items(Kind kind, const std::vector<uint32_t>& items);
  Expected<void> make_storage();
  Expected<void> call();
  Expected<void> make_tensor(const std::vector<uint32_t>& arguments, bool is_typed);

  [[nodiscard]] bool is_name(uint32_t value, Role role) const {
    return values_[value].kind == Kind::kName &&
           kKnownNames[static_cast<size_t>(values_[value].number)].role == role;
  }

  [[nodiscard]] bool is_size(uint32_t value) const {
    return values_[value].kind == Kind::kNumber && values_[value].number >= 0;
  }

  // Whether it is a tuple of sizes or strides.
  [[nodiscard]] bool are_sizes(uint32_t value) const {
    const PickleValue& tuple = values_[value];
    return tuple.kind == Kind::kTuple && tuple.items.size() <= kMaxFileDims &&
           std::ranges::all_of(tuple.items, [this](uint32_t item) { return is_size(item); });
  }

  std::span<const std::byte> bytes_;
  std::span<const std::byte> rest_;
  const std::string& file_;
  std::vector<PickleValue> values_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::vector<uint32_t> memo_;
};

Expected<void> Machine::check_protocol() {
  SLUICE_TRY(const auto protocol, take<uint8_t>());
  if (protocol == 2) return {};
  return wrong_in_file(file_, "pickle", "protocol " + std::to_string(protocol), "2");
}

Expected<void> Machine::push_long() {
  SLUICE_TRY(const auto count, take<uint8_t>());
  SLUICE_TRY(const std::string_view bytes, take_text(count));
  if (bytes.size() > sizeof(int64_t)) return push({.kind = Kind::kText, .text = bytes});
  const bool is_negative = !bytes.empty() && (static_cast<uint8_t>(bytes.back()) & 0x80U) != 0;
  int64_t number = is_negative ? -1 : 0;
  std::memcpy(&number, bytes.data(), bytes.size());
  return push_number(number);
}

Expected<void> Machine::push_name() {
  SLUICE_TRY(const std::string_view module, take_line());
  SLUICE_TRY(const std::string_view name, take_line());
  const auto* const known = std::ranges::find_if(
      kKnownNames, [&](const KnownName& row) { return row.module == module && row.name == name; });
  if (known == std::end(kKnownNames)) {
    return wrong_in_file(file_,
                         "pickle",
                         "the name " + in_quotes(std::string(module) + "." + std::string(name)),
                         "names of tensors and their types alone: no code of a file is run");
  }
  return push({.kind = Kind::kName, .number = known - std::begin(kKnownNames)});
}

Expected<void> Machine::put(uint32_t place) {
  // Python numbers objects one after the other.
  if (place > values_.size()) return damaged("a gap in the memo", "objects in their order");
  if (memo_.size() <= place) memo_.resize(place + size_t{1}, kNothing);
  SLUICE_TRY(memo_[place], pop());
  stack_.push_back(memo_[place]);
  return {};
}

Expected<void> Machine::get(uint32_t place) {
  if (place >= memo_.size() || memo_[place] == kNothing) {
    return damaged("an empty place of the memo", "an object put there before");
  }
  stack_.push_back(memo_[place]);
  return {};
}

Expected<void> Machine::add_items(Kind kind, const std::vector<uint32_t>& items) {
  SLUICE_TRY(const uint32_t target, pop());
  stack_.push_back(target);
  PickleValue& value = values_[target];
  if (value.kind != kind || (kind == Kind::kDict && items.size() % 2 != 0)) {
    return damaged("items of no list or dict", "one before them");
  }
  value.items.insert(value.items.end(), items.begin(), items.end());
  return {};
}

// A storage is ("storage", type, key, device, elements), with a place in another in files of
// PyTorch before 1.0.
Expected<void> Machine::make_storage() {
  SLUICE_TRY(const uint32_t tuple, pop());
  const std::vector<uint32_t>& items = values_[tuple].items;
  const bool is_storage =
      values_[tuple].kind == Kind::kTuple && (items.size() == 5 || items.size() == 6) &&
      values_[items[0]].kind == Kind::kText && values_[items[0]].text == "storage" &&
      is_name(items[1], Role::kStorage) && values_[items[2]].kind == Kind::kText &&
      is_size(items[4]);
  if (!is_storage) return damaged("a reference to no storage", "storages alone");
  if (items.size() == 6 && values_[items[5]].kind != Kind::kNone) {
    return wrong_in_file(file_, "pickle", "a view of a storage", "whole storages");
  }
  return push({.kind = Kind::kStorage,
               .number = values_[items[4]].number,
               .text = values_[items[2]].text,
               .items = {items[1]}});
}

Expected<void> Machine::make_tensor(const std::vector<uint32_t>& arguments, bool is_typed) {
  constexpr size_t kType = 6;  // after requires_grad and hooks
  const bool is_tensor = arguments.size() >= (is_typed ? kType + 1 : 4) &&
                         values_[arguments[0]].kind == Kind::kStorage && is_size(arguments[1]) &&
                         are_sizes(arguments[2]) && are_sizes(arguments[3]) &&
                         values_[arguments[2]].items.size() == values_[arguments[3]].items.size() &&
                         (!is_typed || is_name(arguments[kType], Role::kType));
  if (!is_tensor) return damaged("a tensor of other arguments", "a storage, a place and a shape");
  const uint32_t type = is_typed ? arguments[kType] : values_[arguments[0]].items[0];
  return push({.kind = Kind::kTensor,
               .number = values_[arguments[1]].number,
               .items = {arguments[0], arguments[2], arguments[3], type}});
}

Expected<void> Machine::call() {
  SLUICE_TRY(const uint32_t tuple, pop());
  SLUICE_TRY(const uint32_t name, pop());
  if (values_[tuple].kind != Kind::kTuple || values_[name].kind != Kind::kName) {
    return damaged("a call of no name", "one of a name with a tuple");
  }
  const std::vector<uint32_t>& arguments = values_[tuple].items;  // until the next push
  const Role role = kKnownNames[static_cast<size_t>(values_[name].number)].role;
  if (role == Role::kDict && arguments.empty()) return push({.kind = Kind::kDict});
  if (role == Role::kTensor) return make_tensor(arguments, /*is_typed=*/false);
  if (role == Role::kTypedTensor) return make_tensor(arguments, /*is_typed=*/true);
  const bool is_parameter =
      role == Role::kParameter && !arguments.empty() && values_[arguments[0]].kind == Kind::kTensor;
  if (!is_parameter) return damaged("a call with other arguments", "those of tensors");
  stack_.push_back(arguments[0]);
  return {};
}

Expected<void> Machine::step(uint8_t opcode) {
  switch (opcode) {
    case 0x80:
      return check_protocol();
    case 'N':
      return push({.kind = Kind::kNone});
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      return push_number(opcode == 0x88 ? 1 : 0);
    case 'K':
      return take<uint8_t>().and_then([this](auto number) { return push_number(number); });
    case 'M':
      return take<uint16_t>().and_then([this](auto number) { return push_number(number); });
    case 'J':
      return take<int32_t>().and_then([this](auto number) { return push_number(number); });
    case 0x8a:  // LONG1
      return push_long();
    case 'U':
      return take<uint8_t>().and_then([this](auto bytes) { return push_text(bytes); });
    case 'X':
      return take<uint32_t>().and_then([this](auto bytes) { return push_text(bytes); });
    case 'c':
      return push_name();
    case ')':
      return push({.kind = Kind::kTuple});
    case ']':
      return push({.kind = Kind::kList});
    case '}':
      return push({.kind = Kind::kDict});
    case '(':
      marks_.push_back(stack_.size());
      return {};
    case 't':
    case 0x85:  // TUPLE1
    case 0x86:
    case 0x87: {
      SLUICE_TRY(std::vector<uint32_t> items,
                 opcode == 't' ? pop_marked() : pop_last(opcode - 0x84U));
      return push({.kind = Kind::kTuple, .items = std::move(items)});
    }
    case 'q':
      return take<uint8_t>().and_then([this](auto place) { return put(place); });
    case 'r':
      return take<uint32_t>().and_then([this](auto place) { return put(place); });
    case 'h':
      return take<uint8_t>().and_then([this](auto place) { return get(place); });
    case 'j':
      return take<uint32_t>().and_then([this](auto place) { return get(place); });
    case 'a':
      return pop_last(1).and_then([this](auto items) { return add_items(Kind::kList, items); });
    case 'e':
      return pop_marked().and_then([this](auto items) { return add_items(Kind::kList, items); });
    case 's':
      return pop_last(2).and_then([this](auto items) { return add_items(Kind::kDict, items); });
    case 'u':
      return pop_marked().and_then([this](auto items) { return add_items(Kind::kDict, items); });
    case 'Q':
      return make_storage();
    case 'R':
      return call();
    case 'b':  // BUILD: attributes of a dict, which are the versions of modules
      return pop_last(1).and_then([this](const auto&) { return add_items(Kind::kDict, {}); });
    default:
      return wrong_in_file(file_,
                           "pickle",
                           "opcode " + std::to_string(opcode),
                           "those with which torch.save() writes tensors");
  }
}

PickledTensor make_tensor(const TensorPickle& pickle, uint32_t at, std::string_view name) {
  const PickleValue& value = pickle.values[at];
  const PickleValue& storage = pickle.values[value.items[0]];
  const auto known = [&pickle](uint32_t row) -> const KnownName& {
    return kKnownNames[static_cast<size_t>(pickle.values[row].number)];
  };
  const auto sizes = [&pickle](uint32_t tuple) {
    std::vector<uint64_t> numbers;
    for (const uint32_t item : pickle.values[tuple].items) {
      numbers.push_back(static_cast<uint64_t>(pickle.values[item].number));
    }
    return numbers;
  };
  return {.name = std::string(name),
          .dtype = known(value.items[3]).dtype,
          .element_bytes = known(value.items[3]).bytes,
          .storage = storage.text,
          .storage_elements = static_cast<uint64_t>(storage.number),
          .storage_unit = known(storage.items[0]).bytes,
          .first = static_cast<uint64_t>(value.number),
          .shape = sizes(value.items[1]),
          .strides = sizes(value.items[2])};
}

}  // namespace

Expected<TensorPickle> read_tensor_pickle(std::span<const std::byte> bytes,
                                          const std::string& file_name) {
  return Machine(bytes, file_name).run();
}

Expected<std::vector<PickledTensor>> tensors_of_state_dict(const TensorPickle& pickle,
                                                           const std::string& file_name) {
  const PickleValue& root = pickle.values[pickle.root];
  if (root.kind != Kind::kDict) {
    return wrong_in_file(file_name, "pickle", "no dict", "a state dict: tensors by their names");
  }
  if (root.items.size() / 2 > kMaxTensors) {
    return damaged_file(file_name, "pickle", "more than 2^17 tensors", "those of a model");
  }
  std::vector<PickledTensor> tensors;
  std::set<std::string_view> names;
  for (size_t i = 0; i < root.items.size(); i += 2) {
    const PickleValue& name = pickle.values[root.items[i]];
    const std::string field = "entry " + in_quotes(name.text);
    if (name.kind != Kind::kText || pickle.values[root.items[i + 1]].kind != Kind::kTensor) {
      return wrong_in_file(
          file_name, field, "no tensor", "a state dict, which has tensors by their names alone");
    }
    if (!names.insert(name.text).second) {
      return damaged_file(file_name, field, "the name twice", "unique names");
    }
    tensors.push_back(make_tensor(pickle, root.items[i + 1], name.text));
  }
  return tensors;
}

}  // namespace sluice
