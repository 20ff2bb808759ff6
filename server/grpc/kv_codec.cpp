// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/kv_codec.h"

#include <kv_control.pb.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace sluice {
namespace {

namespace wire = kv::v1;

tl::unexpected<Error> refuse(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, std::string("KV control message: ") + what);
}

template <size_t kBytes>
void set_bytes(const std::array<uint8_t, kBytes>& bytes, std::string& out) {
  out.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <size_t kBytes>
bool get_bytes(const std::string& text, std::array<uint8_t, kBytes>& out) {
  if (text.size() != kBytes) return false;
  std::memcpy(out.data(), text.data(), kBytes);
  return true;
}

template <typename Message>
void set_ref(const KvTransferRef& ref, Message& out) {
  set_bytes(ref.transfer, *out.mutable_transfer());
  out.set_attempt(ref.attempt);
}

template <typename Message>
bool get_ref(const Message& in, KvTransferRef& ref) {
  ref.attempt = in.attempt();
  return get_bytes(in.transfer(), ref.transfer);
}

constexpr const char* kBadTransfer = "a transfer's id has 16 bytes";
constexpr uint32_t kMostSenderState = static_cast<uint32_t>(KvSenderState::kServing);
constexpr uint32_t kMostCancelReason = static_cast<uint32_t>(KvCancelReason::kBadFrames);

// --- Encoding --------------------------------------------------------------------------------

struct Encoder {
  wire::Envelope& out;

  void operator()(const KvClaim& in) const {
    wire::Claim& claim = *out.mutable_claim();
    set_ref(in.ref, claim);
    claim.set_epoch(in.epoch);
    claim.set_num_prompt_tokens(in.num_prompt_tokens);
    set_bytes(in.last_key, *claim.mutable_last_key());
    claim.mutable_first_blocks()->Assign(in.first_blocks.begin(), in.first_blocks.end());
    claim.set_transport(static_cast<uint32_t>(in.transport));
    claim.set_deadline_ms(in.deadline_ms);
    claim.set_trace(in.trace);
  }

  void operator()(const KvAccept& in) const {
    wire::Accept& accept = *out.mutable_accept();
    set_ref(in.ref, accept);
    accept.set_num_ready(in.num_ready);
    accept.set_num_blocks(in.num_blocks);
    accept.set_lease_ms(in.lease_ms);
    accept.set_state(static_cast<uint32_t>(in.state));
  }

  void operator()(const KvRefuse& in) const {
    wire::Refuse& refusal = *out.mutable_refuse();
    set_ref(in.ref, refusal);
    refusal.set_reason(static_cast<uint32_t>(in.reason));
    refusal.set_retry_after_ms(in.retry_after_ms);
  }

  void operator()(const KvCredit& in) const {
    wire::Credit& credit = *out.mutable_credit();
    set_ref(in.ref, credit);
    for (const KvSlot& one : in.slots) {
      wire::Slot& slot = *credit.add_slots();
      slot.set_slot(one.slot);
      slot.set_generation(one.generation);
      slot.set_bytes(one.bytes);
    }
  }

  void operator()(const KvFinal& in) const {
    wire::Final& final = *out.mutable_final();
    set_ref(in.ref, final);
    final.set_ok(in.ok);
    final.set_num_blocks(in.num_blocks);
    final.set_first_token(in.first_token);
    final.set_check(in.check);
    final.set_seed(in.seed);
  }

  void operator()(const KvRenew& in) const {
    for (const KvTransferRef& ref : in.refs) set_ref(ref, *out.mutable_renew()->add_refs());
    out.mutable_renew();
  }

  void operator()(const KvRenewAck& in) const {
    for (const KvTransferRef& ref : in.refs) set_ref(ref, *out.mutable_renew_ack()->add_refs());
    out.mutable_renew_ack();
  }

  void operator()(const KvRelease& in) const { set_ref(in.ref, *out.mutable_release()); }

  void operator()(const KvReleased& in) const { set_ref(in.ref, *out.mutable_released()); }

  void operator()(const KvCancel& in) const {
    set_ref(in.ref, *out.mutable_cancel());
    out.mutable_cancel()->set_reason(static_cast<uint32_t>(in.reason));
  }

  void operator()(const KvDrain& in) const { out.mutable_drain()->set_until_ms(in.until_ms); }
};

// --- Decoding --------------------------------------------------------------------------------

Expected<KvMessage> decode(const wire::Claim& in) {
  KvClaim claim;
  if (!get_ref(in, claim.ref)) return refuse(kBadTransfer);
  if (!get_bytes(in.last_key(), claim.last_key)) return refuse("a key has 16 bytes");
  if (in.first_blocks_size() > static_cast<int>(kMaxKvGroups)) return refuse("too many groups");
  if (in.transport() > UINT8_MAX) return refuse("no transport has this number");
  if (in.trace().size() > kMaxKvText) return refuse("too long a trace");
  claim.epoch = in.epoch();
  claim.num_prompt_tokens = in.num_prompt_tokens();
  claim.first_blocks.assign(in.first_blocks().begin(), in.first_blocks().end());
  claim.transport = static_cast<KvTransportKind>(in.transport());
  claim.deadline_ms = in.deadline_ms();
  claim.trace = in.trace();
  return claim;
}

Expected<KvMessage> decode(const wire::Accept& in) {
  KvAccept accept;
  if (!get_ref(in, accept.ref)) return refuse(kBadTransfer);
  if (in.state() > kMostSenderState) return refuse("unknown state of a sender");
  accept.num_ready = in.num_ready();
  accept.num_blocks = in.num_blocks();
  accept.lease_ms = in.lease_ms();
  accept.state = static_cast<KvSenderState>(in.state());
  return accept;
}

Expected<KvMessage> decode(const wire::Refuse& in) {
  KvRefuse refusal;
  if (!get_ref(in, refusal.ref)) return refuse(kBadTransfer);
  if (in.reason() >= kNumKvRefusals) return refuse("unknown reason of a refusal");
  refusal.reason = static_cast<KvRefusal>(in.reason());
  refusal.retry_after_ms = in.retry_after_ms();
  return refusal;
}

Expected<KvMessage> decode(const wire::Credit& in) {
  KvCredit credit;
  if (!get_ref(in, credit.ref)) return refuse(kBadTransfer);
  if (in.slots_size() > static_cast<int>(kMaxKvCreditSlots)) return refuse("too many slots");
  for (const wire::Slot& slot : in.slots()) {
    credit.slots.push_back({slot.slot(), slot.generation(), slot.bytes()});
  }
  return credit;
}

Expected<KvMessage> decode(const wire::Final& in) {
  KvFinal final;
  if (!get_ref(in, final.ref)) return refuse(kBadTransfer);
  if (in.first_token() < kInvalidToken) return refuse("a token below 0");
  final.ok = in.ok();
  final.num_blocks = in.num_blocks();
  final.first_token = in.first_token();
  final.check = in.check();
  final.seed = in.seed();
  return final;
}

template <typename Plain, typename Wire>
Expected<KvMessage> decode_refs(const Wire& in) {
  if (in.refs_size() > static_cast<int>(kMaxKvRenewals)) return refuse("too many renewals");
  Plain out;
  for (const wire::Ref& one : in.refs()) {
    if (!get_ref(one, out.refs.emplace_back())) return refuse(kBadTransfer);
  }
  return out;
}

Expected<KvMessage> decode(const wire::Renew& in) { return decode_refs<KvRenew>(in); }

Expected<KvMessage> decode(const wire::RenewAck& in) { return decode_refs<KvRenewAck>(in); }

Expected<KvMessage> decode(const wire::Release& in) {
  KvRelease release;
  if (!get_ref(in, release.ref)) return refuse(kBadTransfer);
  return release;
}

Expected<KvMessage> decode(const wire::Released& in) {
  KvReleased released;
  if (!get_ref(in, released.ref)) return refuse(kBadTransfer);
  return released;
}

Expected<KvMessage> decode(const wire::Cancel& in) {
  KvCancel cancel;
  if (!get_ref(in, cancel.ref)) return refuse(kBadTransfer);
  if (in.reason() > kMostCancelReason) return refuse("unknown reason to cancel");
  cancel.reason = static_cast<KvCancelReason>(in.reason());
  return cancel;
}

Expected<KvMessage> decode(const wire::Drain& in) { return KvDrain{in.until_ms()}; }

void encode_layout(const KvLayout& in, wire::Layout& out) {
  out.set_block_size(in.block_size);
  out.set_dtype(in.dtype);
  out.set_tensor_parallel(in.tensor_parallel);
  out.set_heads_per_rank(in.heads_per_rank);
  for (const KvGroupLayout& one : in.groups) {
    wire::GroupLayout& group = *out.add_groups();
    group.set_kind(one.kind);
    group.set_num_layers(one.num_layers);
    group.set_window(one.window);
    group.set_half_block_bytes(one.half_block_bytes);
    group.set_scale_bytes(one.scale_bytes);
  }
}

Expected<KvLayout> decode_layout(const wire::Layout& in) {
  KvLayout layout;
  if (in.groups_size() > static_cast<int>(kMaxKvGroups)) return refuse("too many groups");
  if (in.dtype() > UINT8_MAX) return refuse("no type has this number");
  layout.block_size = in.block_size();
  layout.dtype = static_cast<uint8_t>(in.dtype());
  layout.tensor_parallel = in.tensor_parallel();
  layout.heads_per_rank = in.heads_per_rank();
  for (const wire::GroupLayout& group : in.groups()) {
    if (group.kind() > UINT8_MAX) return refuse("no kind of group has this number");
    layout.groups.push_back({.kind = static_cast<uint8_t>(group.kind()),
                             .num_layers = group.num_layers(),
                             .window = group.window(),
                             .half_block_bytes = group.half_block_bytes(),
                             .scale_bytes = group.scale_bytes()});
  }
  return layout;
}

}  // namespace

void encode_kv_message(const KvMessage& message, wire::Envelope& out) {
  std::visit(Encoder{out}, message);
}

Expected<KvMessage> decode_kv_message(const wire::Envelope& envelope) {
  using Body = wire::Envelope::BodyCase;
  switch (envelope.body_case()) {
    case Body::kClaim:
      return decode(envelope.claim());
    case Body::kAccept:
      return decode(envelope.accept());
    case Body::kRefuse:
      return decode(envelope.refuse());
    case Body::kCredit:
      return decode(envelope.credit());
    case Body::kFinal:
      return decode(envelope.final());
    case Body::kRenew:
      return decode(envelope.renew());
    case Body::kRenewAck:
      return decode(envelope.renew_ack());
    case Body::kRelease:
      return decode(envelope.release());
    case Body::kReleased:
      return decode(envelope.released());
    case Body::kCancel:
      return decode(envelope.cancel());
    case Body::kDrain:
      return decode(envelope.drain());
    case Body::kChallenge:
    case Body::kHello:
    case Body::kPing:
    case Body::kPong:
    case Body::BODY_NOT_SET:
      break;
  }
  return refuse("not one about transfers");
}

void encode_kv_load(const KvLoad& load, wire::Load& out) {
  out.set_num_active_blocks(load.num_active_blocks);
  out.set_num_queued_tokens(load.num_queued_tokens);
  out.set_num_pinned_blocks(load.num_pinned_blocks);
}

std::string encode_kv_hello(const KvHello& in) {
  wire::Hello hello;
  hello.set_min_version(in.min_version);
  hello.set_max_version(in.max_version);
  hello.set_epoch(in.epoch);
  hello.set_worker(in.worker);
  set_bytes(in.fingerprint, *hello.mutable_fingerprint());
  encode_layout(in.layout, *hello.mutable_layout());
  for (const KvTransportOffer& one : in.transports) {
    wire::TransportOffer& offer = *hello.add_transports();
    offer.set_kind(static_cast<uint32_t>(one.kind));
    offer.set_address(one.address);
    offer.set_max_frame_bytes(one.max_frame_bytes);
  }
  set_bytes(in.session, *hello.mutable_session());
  hello.set_max_in_flight(in.max_in_flight);
  hello.set_draining(in.draining);
  return hello.SerializeAsString();
}

Expected<KvHello> decode_kv_hello(const std::string& bytes) {
  wire::Hello in;
  if (bytes.size() > kMaxKvMessageBytes || !in.ParseFromString(bytes)) return refuse("no Hello");
  KvHello hello;
  if (in.epoch() == 0) return refuse("an epoch is never 0");
  if (in.worker().size() > kMaxKvWorkerName) return refuse("too long a name of a worker");
  if (!get_bytes(in.fingerprint(), hello.fingerprint)) return refuse("a fingerprint has 32 bytes");
  if (!get_bytes(in.session(), hello.session)) return refuse("a session's token has 16 bytes");
  if (in.transports_size() > static_cast<int>(kMaxKvTransports)) {
    return refuse("too many transports");
  }
  SLUICE_TRY(hello.layout, decode_layout(in.layout()));
  for (const wire::TransportOffer& offer : in.transports()) {
    if (offer.kind() > UINT8_MAX) return refuse("no transport has this number");
    if (offer.address().size() > kMaxKvText) return refuse("too long an address");
    hello.transports.push_back({.kind = static_cast<KvTransportKind>(offer.kind()),
                                .address = offer.address(),
                                .max_frame_bytes = offer.max_frame_bytes()});
  }
  hello.min_version = in.min_version();
  hello.max_version = in.max_version();
  hello.epoch = in.epoch();
  hello.worker = in.worker();
  hello.max_in_flight = in.max_in_flight();
  hello.draining = in.draining();
  return hello;
}

}  // namespace sluice
